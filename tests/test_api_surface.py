"""The public names are frozen: adding one is a decision, removing one breaks users.

After a deliberate change write the file anew:
python -c "import runpy; runpy.run_path('tests/test_api_surface.py')['write']()"
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

FROZEN = Path(__file__).with_name("api_surface.json")
MODULES = (
    "analysis",
    "augment",
    "corruptions",
    "data",
    "engine",
    "features",
    "functional",
    "inputs",
    "integrations",
    "labels",
    "metrics",
    "models",
    "predictions",
    "report",
    "study",
)


def surface() -> dict[str, list[str]]:
    return {name: sorted(importlib.import_module(f"sfumato.{name}").__all__) for name in MODULES}


def write() -> None:
    FROZEN.write_text(json.dumps(surface(), indent=2) + "\n")


def test_public_names_are_the_frozen_ones() -> None:
    assert surface() == json.loads(FROZEN.read_text())


def test_public_names_exist() -> None:
    for module, names in surface().items():
        content = importlib.import_module(f"sfumato.{module}")
        assert all(hasattr(content, name) for name in names), module


def test_every_public_name_has_one_home() -> None:
    """`functional` aside, which gathers the pure functions of the leaves."""
    homes: dict[str, list[str]] = {}
    for module, names in surface().items():
        for name in names if module != "functional" else ():
            homes.setdefault(name, []).append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
