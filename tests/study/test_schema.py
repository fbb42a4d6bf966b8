"""The schema that editors use says what the checks say."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from sfumato.study.schema import schema_text, study_schema

STUDIES = Path(__file__).parents[2] / "studies"


def test_committed_file_is_up_to_date() -> None:
    """Write it anew with: sfumato schema --out studies/study.schema.json"""
    assert (STUDIES / "study.schema.json").read_text() == schema_text()


@cache
def _validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    return jsonschema.Draft202012Validator(study_schema())


def _errors(content: Any) -> list[str]:
    return [error.message for error in _validator().iter_errors(content)]


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_studies_fit(path: Path) -> None:
    assert _errors(yaml.safe_load(path.read_text())) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"epoch": 3}},
        {"loss": "acsl"},
        {"loss": {"name": "acls", "margn": 6.0}},
        {"data": {"name": "scenes", "train": "many"}},
        {"model": {"name": "resnet", "num_classes": 3}},
        {"evaluate": {"corruptions": 3}},
        {"evaluate": {"corruptions": ["frog"]}},
        {"labels": "objectnes"},
        {"labels": {"name": "objectness", "by": "eye"}},
        {"seed": 1},
        {"loss": "my_losses:"},
        {"model": {"name": "torchvision:resnet18", "deep": True}},
        {"evaluate": {"own": {"tail": "tail"}}},
    ],
)
def test_mistakes_do_not_fit(changes: dict[str, Any]) -> None:
    study = {"name": "s", "recipe": {"data": "scenes", "model": "resnet"}, "methods": {"a": {}}}
    assert _errors(study) == []
    assert _errors({**study, "methods": {"a": changes}}) != []


def test_own_parts_fit_with_any_parameters() -> None:
    recipe = {
        "data": "my_data:Dots",
        "model": {"name": "my.models:Net", "width": 3},
        "evaluate": {"own": {"tail": "my_evaluation:tail", "far": {"name": "a:b", "share": 0.1}}},
    }
    methods = {kind: {kind: "a.b:C"} for kind in ("loss", "augment", "inputs", "labels")}
    assert _errors({"name": "s", "recipe": recipe, "methods": methods}) == []
