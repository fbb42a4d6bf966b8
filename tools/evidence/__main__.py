"""Tables and figures of the papers' claims, from `studies/results`.

Run: python tools/evidence [--check]
Writes the figures to docs/figures and, between the marks `<!-- NAME -->` and `<!-- end -->`, the
tables of README.md, docs/results.md and docs/results/. With --check nothing is written, and tables
that are not those of the results are named. Where runs kept resamples of the images, intervals and
verdicts are those of `sfumato report` (judged.py); in older results they are 95 % t intervals over
seeds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import curvature
import figures
import judged
import judged_figures
import papers
import tables
from judged import JudgedColumn
from matplotlib.figure import Figure
from readings import ROOT, load, load_curves

PAGES = [
    *(ROOT / "README.md", ROOT / "docs/results.md"),
    *sorted((ROOT / "docs/results").glob("*.md")),
]
Table = tuple[tuple[str, ...], Callable[..., str]]  # studies, what makes the table


def _judged(study: str, columns: Sequence[JudgedColumn], **paper: Any) -> Table:
    return (), partial(judged.judged_table, study, columns, **paper)


def _steps(study: str) -> Table:
    return (), partial(judged.steps_table, study, judged.CHOICE)


NEWSGROUPS = {
    "paper": papers.MBLS_TABLE_1_NEWSGROUPS,
    "paper_title": "paper: ECE %; after scaling (T)",
}
SHORT = [column for column in judged.CHOICE if column.title not in ("AURC %", "corrupted NLL")]
README_METHODS = (
    "cross entropy",
    "cross entropy, temperature",
    "ACLS",
    "mollification",
    "spatial smoothing",
    "mollification + spatial smoothing",
)
# The tables of docs/results.md: some rows and columns of a study's own table, without intervals.
FINDINGS = {
    "losses": (
        "cifar10-labels",
        judged.GAINS,
        ("cross entropy", "cross entropy, temperature", "ACLS", "MbLS", "online label smoothing"),
    ),
    "features": (
        "spatial-gains-cifar10",
        judged.GAINS,
        ("plain", "smooth", "BlurPool", "MC dropout", "MC dropout + smooth"),
    ),
    "inputs": ("cifar10", SHORT, ("cross entropy", "mollification")),
    "together": (
        "what-to-take-scenes",
        SHORT,
        (
            *("cross entropy", "mollification", "spatial smoothing"),
            "mollification + spatial smoothing",
        ),
    ),
}
TABLES: dict[str, Table] = {
    **{
        f"finding: {name}": (
            (),
            partial(judged.judged_table, study, columns, intervals=False, methods=methods),
        )
        for name, (study, columns, methods) in FINDINGS.items()
    },
    "margins": (("cifar10-margins",), tables.margins),
    "labels": _judged(
        "cifar10-labels",
        judged.LABELS,
        paper=papers.ACLS_TABLE_3_AND_MBLS_TABLE_1,
        paper_title="papers: ECE / AECE %; ECE % after scaling (T)",
    ),
    "ACLS ablations": _judged(
        "acls-ablations-cifar10",
        judged.REAL_DATA,
        paper=papers.ACLS_ABLATIONS,
        paper_title="paper, Tiny-ImageNet: ECE %",
    ),
    "newsgroups": _judged("20news", judged.REAL_DATA, **NEWSGROUPS),
    "newsgroups, three seeds": _judged("20news-short", judged.REAL_DATA, **NEWSGROUPS),
    "sizes": (("cifar10-sizes",), tables.sizes),
    "mollification": _judged(
        "cifar10-mollification",
        judged.CHOICE,
        paper=papers.MOLLIFICATION_TABLE_1,
        paper_title="paper: error %, ECE (clean / corrupted)",
    ),
    "mollification steps": _steps("cifar10-mollification"),
    "mollification types": (("cifar10-mollification",), tables.mollification_types),
    "mollification ablations": _judged("mollification-ablations-cifar10", judged.CHOICE),
    "spatial gains, scenes": _judged("spatial-gains-scenes", judged.AFTER_THE_PAPERS),
    "spatial gains, CIFAR-10": _judged("spatial-gains-cifar10", judged.REAL_DATA),
    "spatial": _judged(
        "cifar10-spatial",
        judged.CHOICE,
        paper=papers.SPATIAL_TABLE_E1,
        paper_title="paper: NLL, accuracy %, ECE %",
    ),
    "spatial steps": _steps("cifar10-spatial"),
    "spatial sizes": (("cifar10-spatial",), tables.spatial_sizes),
    "curvature": ((), curvature.curvature),
    "camvid": _judged(
        "camvid",
        judged.VIDEO_MAPS,
        paper=papers.CAMVID_TABLE_E4,
        paper_title="paper: NLL, accuracy, ECE, consistency %",
    ),
    "objectness tiny-imagenet": (
        ("objectness-tiny-imagenet",),
        partial(tables.objectness, with_paper=True),
    ),
    "objectness scenes": (("objectness-scenes",), tables.objectness),
    "combinations": _judged("cifar10-combinations", judged.CHOICE),
    "combination effects": (
        (),
        partial(judged.effects_table, "cifar10-combinations", judged.CHOICE),
    ),
    "costs": ((), tables.costs),
    "choice": _judged("cifar10", (*judged.CHOICE, *judged.SCALED)),
    "methods": (
        (),
        partial(
            judged.judged_table,
            "cifar10",
            SHORT,
            intervals=False,
            methods=README_METHODS,
        ),
    ),
    "other scenes": _judged("what-to-take-scenes", (*judged.CHOICE, *judged.SCALED)),
    "tiny-imagenet": _judged(
        "tiny-imagenet",
        (*judged.CHOICE, *judged.SCALED),
        paper=papers.ACLS_TABLE_3_TINY_IMAGENET,
        paper_title="ACLS paper, 200 classes: ECE %",
    ),
    "tiny-imagenet, objects": _judged("tiny-imagenet", judged.OBJECTS),
    "after the papers": _judged("after-the-papers", judged.AFTER_THE_PAPERS),
    "after the papers, CIFAR-10": _judged("after-the-papers-cifar10", judged.REAL_DATA),
    "after the papers, features": _judged("after-the-papers-features", judged.AFTER_THE_PAPERS),
    "after the papers, maps": _judged("nacl-scenes", judged.MAPS),
    "true calibration": ((), judged.estimators),
    "regret": ((), judged.regret_table),
    "unseen silhouettes": _judged("ood-scenes", judged.NEAR),
    "textures": _judged("ood-scenes", judged.STRANGE["textures"]),
    "noise": _judged("ood-scenes", judged.STRANGE["noise"]),
    "other photographs": _judged("ood-cifar10", judged.NEAR),
    "drawn scenes": _judged("ood-cifar10", judged.STRANGE["scenes"]),
    "noise, CIFAR-10": _judged("ood-cifar10", judged.STRANGE["noise"]),
}
# name: studies, what draws the figure
FIGURES: dict[str, tuple[tuple[str, ...], Callable[..., Figure]]] = {
    "cifar10-labels": (("cifar10-labels",), figures.labels),
    "acls-ablations-cifar10": (
        (),
        partial(
            judged_figures.by_method,
            {"CIFAR-10": "acls-ablations-cifar10"},
            judged.GAINS,
            left_out=("ACLS, gradient of Eq. 12", "adaptive only"),
        ),
    ),
    "20news": (("20news-short",), partial(figures.newsgroups, load_curves("20news"))),
    "cifar10": (
        (),
        partial(judged_figures.by_method, {"CIFAR-10": "cifar10"}, judged.CHOICE_FIGURE),
    ),
    "what-to-take-scenes": (
        (),
        partial(judged_figures.by_method, {"scenes": "what-to-take-scenes"}, judged.CHOICE_FIGURE),
    ),
    "ood-scenes": (
        (),
        partial(
            judged_figures.by_method,
            {"scenes": "ood-scenes", "CIFAR-10": "ood-cifar10"},
            judged.STRANGE_FIGURE,
        ),
    ),
    "regret": ((), judged_figures.regret),
    "cifar10-sizes": (("cifar10-sizes",), figures.sizes),
    "cifar10-mollification": (("cifar10-mollification",), figures.mollification),
    "mollification-ablations-cifar10": (
        (),
        partial(
            judged_figures.by_method,
            {"CIFAR-10": "mollification-ablations-cifar10"},
            judged.CHOICE_FIGURE,
        ),
    ),
    "cifar10-spatial": (("cifar10-spatial",), figures.spatial),
    "spatial-gains": (
        (),
        partial(
            judged_figures.by_method,
            {"scenes": "spatial-gains-scenes", "CIFAR-10": "spatial-gains-cifar10"},
            judged.GAINS,
        ),
    ),
    "after-the-papers": (
        (),
        partial(
            judged_figures.by_method,
            {"scenes": "after-the-papers", "CIFAR-10": "after-the-papers-cifar10"},
            judged.GAINS,
        ),
    ),
    "camvid": (
        (),
        partial(judged_figures.by_method, {"CamVid": "camvid"}, judged.VIDEO_FIGURE),
    ),
    "tiny-imagenet": (
        (),
        partial(judged_figures.by_method, {"Tiny-ImageNet": "tiny-imagenet"}, judged.CHOICE_FIGURE),
    ),
    "objectness": (("objectness-tiny-imagenet", "objectness-scenes"), figures.objectness),
    "cifar10-combinations": (
        (),
        partial(
            judged_figures.by_method, {"CIFAR-10": "cifar10-combinations"}, judged.CHOICE_FIGURE
        ),
    ),
}


def page_of(name: str) -> Path:
    """The one page that has the marks of a table."""
    found = [page for page in PAGES if f"<!-- {name} -->" in page.read_text()]
    if len(found) != 1:
        raise SystemExit(f"the mark <!-- {name} --> stands on {len(found)} pages, not on one")
    return found[0]


def with_table(text: str, name: str, made: str) -> str:
    """The page with what stands between the marks of `name` replaced."""
    start, end = f"<!-- {name} -->", "<!-- end -->"
    pattern = re.compile(f"{start}.*?{end}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"there are no marks {start} ... {end}")
    return pattern.sub(lambda _: f"{start}\n{made}\n{end}", text)


def main(*, check: bool) -> None:
    for name, (studies, make) in TABLES.items():
        path = page_of(name)
        text = path.read_text()
        made = with_table(text, name, make(*map(load, studies)))
        if check and made != text:
            raise SystemExit(f"{path.name}: the table {name!r} is not that of studies/results")
        if not check:
            path.write_text(made)
    if not check:
        for name, (studies, draw) in FIGURES.items():
            figures.save(draw(*map(load, studies)), name)


if __name__ == "__main__":
    main(check="--check" in sys.argv[1:])
