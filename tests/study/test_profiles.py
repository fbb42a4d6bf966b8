"""A study folder keeps how its losses smooth the label."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sfumato.engine.config.components import components
from sfumato.study import StudyConfig, plan
from sfumato.study.run import write_profiles

RECIPE = {"data": "scenes", "model": "resnet"}


def test_every_loss_of_single_entries_has_a_profile(tmp_path: Path) -> None:
    methods = {name: {"loss": name} for name in components("loss")}
    study = StudyConfig(name="s", recipe=RECIPE, methods=methods, seeds=[0])
    write_profiles(plan(study), tmp_path)
    found = json.loads((tmp_path / "profiles.json").read_text())
    assert list(found) == [n for n, part in components("loss").items() if part.is_of_single_entries]
    assert {"normalised_cross_entropy", "acls"} < set(found)
    for name, profile in found.items():
        assert torch.tensor([profile["predicted"], profile["others"]]).isfinite().all(), name


def test_each_different_loss_has_one_profile(tmp_path: Path) -> None:
    methods = {
        "plain": {},
        "mollified": {"inputs": "mollify"},
        "smooth": {"loss": {"name": "cross_entropy", "smoothing": 0.1}},
        "history": {"loss": "crl"},
        "ranking": {"loss": {"name": "acls", "condition": "ranking"}},
    }
    study = StudyConfig(name="s", recipe=RECIPE, methods=methods, seeds=[0, 1])
    write_profiles(plan(study), tmp_path)
    found = json.loads((tmp_path / "profiles.json").read_text())
    assert list(found) == ["plain and 1 more", "smooth"]
    # Label smoothing takes 0.1 (1 - 1 / 10) and gives 0.1 / 10 to each other class, everywhere.
    assert found["smooth"]["predicted"] == pytest.approx([0.09] * 60)
    assert found["smooth"]["others"] == pytest.approx([0.01] * 60)
    assert found["smooth"]["loss"].startswith("cross_entropy: smoothing 0.1")
    assert found["plain and 1 more"]["predicted"] == pytest.approx([0.0] * 60)
