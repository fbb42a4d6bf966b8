"""A fidelity and penalties by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfumato import functional as SF
from sfumato.engine import RunConfig, fingerprint, parse
from sfumato.engine.config.build import build_loss

SIZES: dict[str, Any] = {"num_samples": 8, "num_classes": 4, "epochs": 1}


def test_focal_with_two_penalties() -> None:
    penalties = {"mdca": {"weight": 0.5}, "margin": {"margin": 1.0}}
    spec = {"name": "combined", "fidelity": {"name": "focal", "gamma": 2.0}, "penalties": penalties}
    logits, target = torch.randn(8, 4), torch.randint(0, 4, (8,))
    expected = (
        SF.focal_loss(logits, target, gamma=2.0)
        + 0.5 * SF.mdca_penalty(logits, target)
        + SF.margin_penalty(logits, margin=1.0)
    )
    torch.testing.assert_close(build_loss(spec, **SIZES)(logits, target), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalties": {"mdcaa": {}}}, "unknown penalty 'mdcaa' .did you mean 'mdca'"),
        ({"penalties": {"margin": {"margn": 1.0}}}, "no parameter 'margn'"),
        ({"penalties": {"mdca": {"weight": -1.0}}}, "weight of penalty 'mdca' must be"),
        ({"fidelity": "crl"}, "which remembers each sample"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_loss({"name": "combined", **options}, **SIZES)


def test_penalties_are_part_of_the_name(tiny: dict[str, Any]) -> None:
    names = [
        fingerprint(parse(RunConfig, {**tiny, "loss": {"name": "combined", **options}}))
        for options in ({}, {"penalties": {"mdca": {}}}, {"penalties": {"mdca": {"weight": 2.0}}})
    ]
    assert len(set(names)) == 3
