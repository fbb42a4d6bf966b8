"""Draw docs/figures/house.svg: the packages, who may import whom, the way of a sample.

Run: python docs/figures/house.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 960, 620
COLOURS = (
    "svg{--ink:#20242c;--paper:#fff;--line:#8a93a3;"
    "--top:#f3e8d2;--engine:#dfe9f5;--world:#e6efe0;--leaf:#f7dfd9;--ground:#e9e6ef}"
    "@media (prefers-color-scheme:dark){svg{--ink:#e8eaee;--paper:#1b1e25;--line:#6b7383;"
    "--top:#4a3f26;--engine:#26384d;--world:#2d3f27;--leaf:#4d2e26;--ground:#37324a}}"
)

# name: (x, y, width, floor, what it holds)
ROOMS: dict[str, tuple[int, int, int, str, str]] = {
    "cli": (40, 60, 160, "top", "the commands"),
    "auditing": (220, 60, 200, "top", "judges prediction files"),
    "study": (440, 60, 180, "top", "study file to runs"),
    "report": (640, 60, 280, "top", "result files to tables and pages"),
    "engine": (40, 164, 880, "engine", "trains, predicts, measures, keeps runs on disk"),
    "data": (40, 270, 200, "world", "where samples come from"),
    "models": (260, 270, 280, "world", "networks, features inside"),
    "analysis": (560, 270, 360, "world", "why it works"),
    "augment": (40, 380, 112, "leaf", "moves, mixes"),
    "inputs": (168, 380, 112, "leaf", "mollifies"),
    "features": (296, 380, 112, "leaf", "smooths maps"),
    "labels": (424, 380, 112, "leaf", "losses"),
    "predictions": (552, 380, 116, "leaf", "averages"),
    "corruptions": (684, 380, 116, "leaf", "corrupts"),
    "metrics": (816, 380, 104, "leaf", "measures"),
    "ops": (40, 490, 430, "ground", "operations under the losses, and their C"),
    "_core": (490, 490, 430, "ground", "checks, files, seeds, names with parameters"),
}
ROOM_HEIGHT = 72
# The way of one sample, in order.
WAY = ("data", "augment", "inputs", "models", "labels", "predictions", "metrics", "study", "report")


def room(name: str) -> str:
    x, y, width, floor, holds = ROOMS[name]
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{ROOM_HEIGHT}" rx="6" '
        f'fill="var(--{floor})" stroke="var(--line)"/>',
        f'<text x="{x + 12}" y="{y + 30}" class="name">{escape(name)}</text>',
        f'<text x="{x + 12}" y="{y + 54}" class="holds">{escape(holds)}</text>',
    ]
    if name in WAY:
        step = WAY.index(name) + 1
        parts += [
            f'<circle cx="{x + width - 8}" cy="{y}" r="11" fill="var(--ink)"/>',
            f'<text x="{x + width - 8}" y="{y + 4}" class="step">{step}</text>',
        ]
    return "".join(parts)


def arrow(y: int) -> str:
    """From a row down to the next: the upper one imports the lower one."""
    x = WIDTH // 2
    return (
        f'<line x1="{x}" y1="{y + 2}" x2="{x}" y2="{y + 24}" stroke="var(--ink)" stroke-width="2"/>'
        f'<path d="M {x - 6} {y + 22} L {x + 6} {y + 22} L {x} {y + 33} Z" fill="var(--ink)"/>'
    )


def picture() -> str:
    style = (
        f"{COLOURS}text{{font-family:system-ui,sans-serif;fill:var(--ink)}}"
        ".name{font-size:15px;font-weight:600}.holds{font-size:13px}"
        ".step{font-size:12px;fill:var(--paper);text-anchor:middle}.note{font-size:14px}"
    )
    floors = (134, 232, 342, 452)
    body = [*map(arrow, floors), *map(room, ROOMS)]
    notes = (
        "A row imports the rows below it, never one above; leaves share soft targets and no more.",
        "Numbers: the way of one sample. The engine leads it through the packages.",
    )
    body += [
        f'<text x="40" y="{588 + 20 * i}" class="note">{escape(note)}</text>'
        for i, note in enumerate(notes)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    title = "<title>The packages and the way of one sample through them</title>"
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="var(--paper)"/>'
    heading = '<text x="40" y="36" class="name">The packages</text>'
    return f"{head}{title}<style>{style}</style>{paper}{heading}{''.join(body)}</svg>\n"


if __name__ == "__main__":
    Path(__file__).with_name("house.svg").write_text(picture(), encoding="utf-8")
