"""Tables and figures of the papers' claims, from `studies/results`.

Run: python studies/evidence [--check]
Writes the figures to docs/figures and, between the marks `<!-- NAME -->` and `<!-- end -->`, the
tables of docs/results.md and README.md. With --check nothing is written, and tables that are not
those of the results are named. Where runs kept resamples of the images, intervals and verdicts are
those of `sfumato report` (judged.py); in older results they are 95 % t intervals over seeds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
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

RESULTS, README = "docs/results.md", "README.md"
Table = tuple[str, tuple[str, ...], Callable[..., str]]  # page, studies, what makes the table


def _judged(study: str, columns: Sequence[JudgedColumn], **paper: Any) -> Table:
    return RESULTS, (), partial(judged.judged_table, study, columns, **paper)


def _steps(study: str) -> Table:
    return RESULTS, (), partial(judged.steps_table, study, judged.CHOICE)


NEWSGROUPS = {
    "paper": papers.MBLS_TABLE_1_NEWSGROUPS,
    "paper_title": "paper: ECE %; after scaling (T)",
}
TABLES: dict[str, Table] = {
    "margins": (RESULTS, ("cifar10-margins",), tables.margins),
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
    "sizes": (RESULTS, ("cifar10-sizes",), tables.sizes),
    "mollification": _judged(
        "cifar10-mollification",
        judged.CHOICE,
        paper=papers.MOLLIFICATION_TABLE_1,
        paper_title="paper: error %, ECE (clean / corrupted)",
    ),
    "mollification steps": _steps("cifar10-mollification"),
    "mollification types": (RESULTS, ("cifar10-mollification",), tables.mollification_types),
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
    "spatial sizes": (RESULTS, ("cifar10-spatial",), tables.spatial_sizes),
    "curvature": (RESULTS, (), curvature.curvature),
    "camvid": _judged(
        "camvid",
        judged.VIDEO_MAPS,
        paper=papers.CAMVID_TABLE_E4,
        paper_title="paper: NLL, accuracy, ECE, consistency %",
    ),
    "objectness tiny-imagenet": (
        RESULTS,
        ("objectness-tiny-imagenet",),
        partial(tables.objectness, with_paper=True),
    ),
    "objectness scenes": (RESULTS, ("objectness-scenes",), tables.objectness),
    "combinations": _judged("cifar10-combinations", judged.CHOICE),
    "combination effects": (
        RESULTS,
        (),
        partial(judged.effects_table, "cifar10-combinations", judged.CHOICE),
    ),
    "costs": (RESULTS, (), tables.costs),
    "choice": _judged("cifar10", (*judged.CHOICE, *judged.SCALED)),
    "methods": (
        README,
        (),
        partial(judged.judged_table, "cifar10", judged.CHOICE, intervals=False),
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
    "true calibration": (RESULTS, (), judged.estimators),
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


def with_table(text: str, name: str, made: str) -> str:
    """The page with what stands between the marks of `name` replaced."""
    start, end = f"<!-- {name} -->", "<!-- end -->"
    pattern = re.compile(f"{start}.*?{end}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"there are no marks {start} ... {end}")
    return pattern.sub(lambda _: f"{start}\n{made}\n{end}", text)


def main(*, check: bool) -> None:
    for name, (page, studies, make) in TABLES.items():
        path = ROOT / page
        text = path.read_text()
        made = with_table(text, name, make(*map(load, studies)))
        if check and made != text:
            raise SystemExit(f"{page}: the table {name!r} is not that of studies/results")
        if not check:
            path.write_text(made)
    if not check:
        for name, (studies, draw) in FIGURES.items():
            figures.save(draw(*map(load, studies)), name)


if __name__ == "__main__":
    main(check="--check" in sys.argv[1:])
