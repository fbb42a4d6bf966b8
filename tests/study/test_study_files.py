"""The study files of this repository: they point nowhere outside, and fit their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfumato._core.yaml_files import read_yaml
from sfumato.study.config import read_extended

STUDIES = Path(__file__).resolve().parents[2] / "studies"
FILES = sorted(STUDIES.rglob("*.yaml"))
RESULTS = sorted(
    path
    for path in (STUDIES / "results").glob("*.json")
    if (STUDIES / path.with_suffix(".yaml").name).exists()
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_study_file_points_outside(path: Path) -> None:
    """A user has neither our disks nor what lies beside our copy of the repository."""
    content: Any = read_yaml(path)
    if "extends" in content:
        other = path.parent / content.pop("extends")
        assert other.resolve().is_relative_to(STUDIES)
    outside = [text for text in _texts(content) if _is_outside(text)]
    assert not outside, f"{path.name}: {outside}; paths begin where --data says"


@pytest.mark.parametrize("text", ["../shared/x.npz", "/data/x", "~/x", "a/../b", "C:\\x", "..\\x"])
def test_what_points_outside(text: str) -> None:
    assert _is_outside(text)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_published_results_are_those_of_their_file(path: Path) -> None:
    """All but `data`, whose paths may differ, and options whose defaults changed since."""
    ran = json.loads(path.read_text(encoding="utf-8"))["study"]
    now: Any = read_extended(STUDIES / path.with_suffix(".yaml").name)
    assert list(ran["methods"]) == list(now["methods"])
    assert ran["seeds"] == now.get("seeds", [0])
    assert _compared(ran["recipe"]) == _compared(now["recipe"])


def _compared(recipe: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in recipe.items() if key != "data"}
    classifier = recipe.get("classifier", {})
    kept["classifier"] = {**classifier, "train": {}}
    trains = (_unclipped(recipe), _unclipped(classifier))
    return {**kept, "train": trains, "limit": recipe["data"].get("limit_train")}


def _unclipped(recipe: dict[str, Any]) -> dict[str, Any]:
    """Gradients were clipped at 2 where nothing was said; now a file has to say it."""
    return {key: value for key, value in recipe.get("train", {}).items() if key != "clip_norm"}


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from _texts(value)
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value)


def _is_outside(text: str) -> bool:
    parts = text.replace("\\", "/").split("/")
    return ".." in parts or (parts[0] in ("", "~") and len(parts) > 1) or parts[0].endswith(":")
