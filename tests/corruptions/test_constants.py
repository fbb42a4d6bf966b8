"""The severity tables against the published numbers, where they are at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfumato.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES
from sfumato.corruptions.catalogue import (
    NOMINAL_SIZE,
    Constants,
    constants_for_size,
    severity_parameters,
)
from sfumato.corruptions.filters import zoom_geometry

# Fields that the published functions name otherwise, or that follow from others.
RENAMED = {
    ("elastic_transform", "alpha"): "alpha_relative",
    ("elastic_transform", "sigma"): "sigma_relative",
    ("elastic_transform", "affine"): "affine_relative",
    ("fog", "decay"): "wibble_decay",
}
OURS_ONLY = {("frost", "detail"), ("elastic_transform", "unit")}


@pytest.fixture(scope="module")
def published(real_data: Callable[[str], Path]) -> dict[str, Any]:
    path = real_data("../reference/corruption-severities.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize("constants", NOMINAL_SIZE)
def test_every_field_is_the_published_one(published: dict[str, Any], constants: Constants) -> None:
    table = published[str(NOMINAL_SIZE[constants])]
    assert set(table) == {*CORRUPTIONS, *EXTRA_CORRUPTIONS}
    for name in table:
        for severity in SEVERITIES:
            for field, value in severity_parameters(constants, name, severity).items():
                if (name, field) in OURS_ONLY:
                    continue
                expected = table[name][RENAMED.get((name, field), field)]
                expected = expected[severity - 1] if isinstance(expected, list) else expected
                assert value == expected, (name, field, severity)


@pytest.mark.parametrize("constants", NOMINAL_SIZE)
def test_zoom_factors_give_the_published_geometry(
    published: dict[str, Any], constants: Constants
) -> None:
    size = NOMINAL_SIZE[constants]
    table = published[str(size)]
    for severity in SEVERITIES:
        fields = severity_parameters(constants, "zoom_blur", severity)
        increment = (1.0 + fields["step"]) - 1.0
        factors = [1.0 + i * increment for i in range(fields["count"])]
        assert factors == pytest.approx(table["zoom_blur"]["factors"][severity - 1], abs=1e-12)
        expected = table["zoom_blur"]["geometry"][severity - 1]
        assert [list(zoom_geometry(size, factor)) for factor in factors] == expected
        snow = severity_parameters(constants, "snow", severity)["zoom"]
        assert list(zoom_geometry(size, snow)) == table["snow"]["geometry"][severity - 1]


def test_constants_follow_the_shorter_side() -> None:
    assert constants_for_size(32, 500) == "cifar"
    assert constants_for_size(180, 240) == "imagenet"
    assert constants_for_size(96, 96) == "tiny-imagenet"
    assert constants_for_size(16, 16) == "cifar"


def test_elastic_lengths_are_the_published_pixels() -> None:
    fields = severity_parameters("imagenet", "elastic_transform", 1)
    assert fields["alpha"] * fields["unit"] * 224 == pytest.approx(488.0)
