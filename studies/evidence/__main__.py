"""Tables and figures of the CIFAR-10 studies, from `studies/results/cifar10-*.json`.

Run: python studies/evidence [--check]
Writes the figures to docs/figures and, between the marks `<!-- NAME -->` and `<!-- end -->`, the
tables of docs/results.md and README.md. With --check nothing is written, and tables that are not
those of the results are named. Intervals are 95 % t intervals over seeds; verdicts are those of
`sfumato report`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import figures
import tables
from readings import ROOT, Runs, load

RESULTS, README = "docs/results.md", "README.md"
# name: page, studies, what makes the table
TABLES: dict[str, tuple[str, tuple[str, ...], Callable[..., str]]] = {
    "margins": (RESULTS, ("cifar10-margins",), tables.margins),
    "labels": (RESULTS, ("cifar10-labels",), tables.labels),
    "sizes": (RESULTS, ("cifar10-sizes",), tables.sizes),
    "mollification": (RESULTS, ("cifar10-mollification",), tables.mollification),
    "mollification types": (RESULTS, ("cifar10-mollification",), tables.mollification_types),
    "spatial": (RESULTS, ("cifar10-spatial",), tables.spatial),
    "spatial sizes": (RESULTS, ("cifar10-spatial",), tables.spatial_sizes),
    "combinations": (RESULTS, ("cifar10-combinations",), tables.combinations),
    "combination effects": (RESULTS, ("cifar10-combinations",), tables.combination_effects),
    "methods": (README, ("cifar10-labels", "cifar10-combinations"), tables.methods),
}
FIGURES: dict[str, Callable[[Runs], None]] = {
    "cifar10-labels": figures.labels,
    "cifar10-sizes": figures.sizes,
    "cifar10-mollification": figures.mollification,
    "cifar10-spatial": figures.spatial,
    "cifar10-combinations": figures.combinations,
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
        for study, draw in FIGURES.items():
            draw(load(study))


if __name__ == "__main__":
    main(check="--check" in sys.argv[1:])
