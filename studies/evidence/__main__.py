"""Tables and figures of the CIFAR-10 studies, from `studies/results/cifar10-*.json`.

Run: python studies/evidence
Writes the figures to docs/figures and, between the marks `<!-- NAME -->` and `<!-- end -->`, the
tables of docs/results.md. Intervals are 95 % t intervals over seeds; verdicts are those of
`sfumato report`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import figures
import tables
from readings import ROOT, Runs, load

TABLES: dict[str, tuple[str, Callable[[Runs], str]]] = {
    "margins": ("cifar10-margins", tables.margins),
    "labels": ("cifar10-labels", tables.labels),
    "sizes": ("cifar10-sizes", tables.sizes),
    "mollification": ("cifar10-mollification", tables.mollification),
    "mollification types": ("cifar10-mollification", tables.mollification_types),
    "spatial": ("cifar10-spatial", tables.spatial),
    "spatial sizes": ("cifar10-spatial", tables.spatial_sizes),
    "combinations": ("cifar10-combinations", tables.combinations),
    "combination effects": ("cifar10-combinations", tables.combination_effects),
}
FIGURES: dict[str, Callable[[Runs], None]] = {
    "cifar10-labels": figures.labels,
    "cifar10-sizes": figures.sizes,
    "cifar10-mollification": figures.mollification,
    "cifar10-spatial": figures.spatial,
    "cifar10-combinations": figures.combinations,
}


def replaced(text: str, name: str, made: str) -> str:
    """The page with what stands between the marks of `name` replaced."""
    start, end = f"<!-- {name} -->", "<!-- end -->"
    pattern = re.compile(f"{start}.*?{end}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"docs/results.md has no marks {start} ... {end}")
    return pattern.sub(lambda _: f"{start}\n{made}\n{end}", text)


def main() -> None:
    page = ROOT / "docs/results.md"
    text = page.read_text()
    for name, (study, make) in TABLES.items():
        text = replaced(text, name, make(load(study)))
    page.write_text(text)
    for study, draw in FIGURES.items():
        draw(load(study))


if __name__ == "__main__":
    main()
