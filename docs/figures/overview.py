"""Draw docs/figures/overview.svg: the four places, a reliability diagram, a foggy image.

Run: sfumato run studies/what-to-take-scenes.yaml "evaluate={}" --only "cross entropy"
         --only "mollification + spatial smoothing" --seeds 0 --out RUNS
     python docs/figures/overview.py RUNS
The diagrams and the confidences are measured on 2,000 foggy scenes (severity 4) with one seed, and
kept in overview.json; without RUNS the drawing is made from there.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from html import escape
from pathlib import Path

import torch
from PIL import Image

from sfumato.corruptions import corrupt, corruption_generator
from sfumato.data import ArrayDataset, scenes
from sfumato.engine import load_network
from sfumato.metrics import calibration_error

WIDTH, HEIGHT = 960, 520
BINS = 10
METHODS = {"cross entropy": "without smoothing", "mollification + spatial smoothing": "smoothed"}
STYLE = """
svg{--paper:#fff;--ink:#20242c;--soft:#5b6472;--line:#c3c9d3;--box:#f3f5f8;--accent:#b4532a;
--bar:#4a6fa5;--over:#e3a58b;--under:#a9c4e6}
@media (prefers-color-scheme:dark){svg{--paper:#1b1e25;--ink:#e8eaee;--soft:#a9b1bf;--line:#454c59;
--box:#262b35;--accent:#f0a27d;--bar:#86aee0;--over:#a5573a;--under:#3f5f8a}}
text{font-family:system-ui,sans-serif;fill:var(--ink);font-size:14px}
.title{font-size:16px;font-weight:600}.place{font-weight:600;fill:var(--accent)}
.soft{fill:var(--soft);font-size:13px}.middle{text-anchor:middle}.end{text-anchor:end}
.paper{fill:var(--paper)}.box{fill:var(--box);stroke:var(--line)}
.way{stroke:var(--soft);stroke-width:1.5;fill:none}.head{fill:var(--soft)}
.bar{fill:var(--bar)}.over{fill:var(--over)}.under{fill:var(--under)}
.ideal{stroke:var(--ink);stroke-dasharray:4 3}
.pixels{image-rendering:pixelated}
"""


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="box"/>'


def arrow(x: float, y: float, to: float) -> str:
    return (
        f'<path class="way" d="M{x} {y}H{to - 8}"/>'
        f'<path class="head" d="M{to - 9} {y - 5}L{to} {y}L{to - 9} {y + 5}Z"/>'
    )


def picture_of(image: torch.Tensor, x: float, y: float, size: float) -> str:
    """An image (3, H, W) of bytes inside the drawing."""
    buffer = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<image x="{x}" y="{y}" width="{size}" height="{size}" class="pixels" '
        f'href="data:image/png;base64,{data}"/>'
    )


def way_of_one_sample(image: torch.Tensor) -> str:
    """The first row: the four places along the way of one sample."""
    stations = (
        (150, "inputs", "mollification", "noise and blur,", "softer label"),
        (350, "features", "spatial smoothing", "blurred maps,", "one pass"),
        (550, "labels", "MbLS, ACLS, ...", "a loss with", "a margin"),
        (750, "predictions", "temperature, MC", "dropout, ensembles,", "over time"),
    )
    found = [text(30, 36, "Smooth a classifier in four places", "title")]
    found += [picture_of(image, 40, 76, 72), text(76, 166, "image", "soft middle")]
    start = 116
    for x, place, method, line, more in stations:
        found += [arrow(start, 112, x), box(x, 58, 160, 108), text(x + 14, 82, place, "place")]
        found += [text(x + 14, 106, method), text(x + 14, 130, line, "soft")]
        found += [text(x + 14, 150, more, "soft")]
        start = x + 164
    return "".join(found)


def reliability(x: float, y: float, size: float, bins: list[list[float]]) -> str:
    """Bars of accuracy by confidence, the gap to it, and the diagonal."""
    found = [box(x, y, size, size)]
    step = size / BINS
    for place, (confidence, accuracy) in enumerate(bins):
        left = x + place * step + 1
        low, high = sorted((confidence, accuracy))
        kind = "over" if confidence > accuracy else "under"
        found.append(
            f'<rect class="bar" x="{left:.1f}" y="{y + size * (1 - low):.1f}" '
            f'width="{step - 2:.1f}" height="{size * low:.1f}"/>'
            f'<rect class="{kind}" x="{left:.1f}" y="{y + size * (1 - high):.1f}" '
            f'width="{step - 2:.1f}" height="{size * (high - low):.1f}"/>'
        )
    found.append(f'<line class="ideal" x1="{x}" y1="{y + size}" x2="{x + size}" y2="{y}"/>')
    return "".join(found)


def confidence_bar(x: float, y: float, name: str, share: float) -> str:
    width = 120
    return (
        text(x, y + 11, name, "soft")
        + f'<rect class="box" x="{x + 70}" y="{y}" width="{width}" height="14"/>'
        + f'<rect class="bar" x="{x + 70}" y="{y}" width="{width * share:.1f}" height="14"/>'
        + text(x + 70 + width + 8, y + 12, f"{100 * share:.0f} %")
    )


def drawing(measured: dict) -> str:
    clear, foggy = (torch.tensor(measured[key], dtype=torch.uint8) for key in ("clear", "foggy"))
    body = [way_of_one_sample(clear), text(30, 216, "On 2,000 foggy images", "title")]
    for place, (name, found) in enumerate(measured["networks"].items()):
        left = 60 + 260 * place
        body += [text(left, 246, name, "place"), reliability(left, 258, 190, found["bins"])]
        body += [text(left + 95, 466, "confidence", "soft middle")]
        facts = f"accuracy {100 * found['accuracy']:.0f} %, ECE {100 * found['ece']:.0f} %"
        body.append(text(left, 488, facts))
    turned = 'transform="translate(46 353) rotate(-90)"'
    body.append(f'<text class="soft middle" {turned}>accuracy</text>')
    for left, kind, words in ((300, "over", "overconfident"), (430, "under", "underconfident")):
        body.append(f'<rect class="{kind}" x="{left}" y="205" width="12" height="12"/>')
        body.append(text(left + 18, 216, words, "soft"))
    body += [text(590, 216, "One of them", "title"), picture_of(clear, 590, 246, 96)]
    body += [text(638, 360, "clear", "soft middle"), picture_of(foggy, 590, 374, 96)]
    body.append(text(638, 488, "in fog", "soft middle"))
    for place, (name, found) in enumerate(measured["networks"].items()):
        for row, light in enumerate(("clear", "foggy")):
            said, share = found[light]
            top = 258 + 128 * row + 52 * place
            body.append(text(706, top, name, "place"))
            body.append(confidence_bar(706, top + 10, said, share))
    title = "Four places to smooth a classifier, and what it does to foggy images"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="10"/>{"".join(body)}</svg>\n'
    )


def measure(runs: Path) -> dict:
    """Reliability of both networks in fog, and what they say about one image."""
    test = scenes.generate(2000, seed=7, size=24)
    generator = corruption_generator(0, "fog", 4)
    foggy = corrupt(test.images, "fog", 4, generator=generator)
    networks: dict[str, dict] = {}
    probs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for run in json.loads((runs / "study.json").read_text())["runs"]:
        if run["method"] in METHODS and run["seed"] == 0:
            network = load_network(runs / "runs" / run["run"])
            with torch.no_grad():
                found = (network(test.images).softmax(1), network(foggy).softmax(1))
            probs[run["method"]] = found
    plain, smooth = (probs[method] for method in METHODS)
    # An image that both know when it is clear, and that only the plain network gets wrong in fog.
    known = (plain[0].argmax(1) == test.labels) & (smooth[0].argmax(1) == test.labels)
    wrong = known & (plain[1].argmax(1) != test.labels)
    score = (plain[1].max(1).values - smooth[1].max(1).values).masked_fill(~wrong, -1)
    chosen = int(score.argmax())
    for method, name in METHODS.items():
        networks[name] = facts(probs[method], test, chosen)
    images = {"clear": test.images[chosen].tolist(), "foggy": foggy[chosen].tolist()}
    return {**images, "networks": networks}


def facts(probs: tuple[torch.Tensor, torch.Tensor], test: ArrayDataset, chosen: int) -> dict:
    confidence, predicted = probs[1].max(1)
    right = (predicted == test.labels).float()
    place = (confidence * BINS).long().clamp(max=BINS - 1)
    bins = []
    for number in range(BINS):
        inside = place == number
        empty = not inside.any()
        means = (confidence[inside].mean(), right[inside].mean())
        bins.append([0.0, 0.0] if empty else [float(mean) for mean in means])
    said = {}
    for light, of in zip(("clear", "foggy"), probs, strict=True):
        best = int(of[chosen].argmax())
        said[light] = (test.classes[best], float(of[chosen, best]))
    ece = float(calibration_error(probs[1], test.labels))
    return {"bins": bins, "accuracy": float(right.mean()), "ece": ece, **said}


if __name__ == "__main__":
    kept = Path(__file__).with_name("overview.json")
    if sys.argv[1:]:
        kept.write_text(json.dumps(measure(Path(sys.argv[1]))) + "\n", encoding="utf-8")
    kept.with_suffix(".svg").write_text(drawing(json.loads(kept.read_text())), encoding="utf-8")
