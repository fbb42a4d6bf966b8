"""Tables and figures of the CIFAR-10 studies, from `studies/results/cifar10-*.json`.

Run: python studies/evidence
Writes the figures to docs/figures and, between the marks `<!-- NAME -->` and `<!-- end -->`, the
tables of docs/results.md and README.md. Intervals are 95 % t intervals over seeds; verdicts are
those of `sfumato report`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

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


def write_table(page: Path, name: str, made: str) -> None:
    """Replace what stands between the marks of `name`."""
    start, end = f"<!-- {name} -->", "<!-- end -->"
    pattern = re.compile(f"{start}.*?{end}", re.DOTALL)
    text = page.read_text()
    if not pattern.search(text):
        raise SystemExit(f"{page.name} has no marks {start} ... {end}")
    page.write_text(pattern.sub(lambda _: f"{start}\n{made}\n{end}", text))


def has_results(study: str) -> bool:
    return (ROOT / f"studies/results/{study}.json").exists()


def main() -> None:
    for name, (page, studies, make) in TABLES.items():
        if all(map(has_results, studies)):
            write_table(ROOT / page, name, make(*map(load, studies)))
    for study, draw in FIGURES.items():
        if has_results(study):
            draw(load(study))
        else:
            print(f"{study}: no results in studies/results yet")


if __name__ == "__main__":
    main()
