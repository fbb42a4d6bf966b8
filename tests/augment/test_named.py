"""Recipes by the names of study files: what is left open is as in the table, the rest is set."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from sfumato.augment import RECIPES, AugMix, ColourJitter, RandAugment, Recipe
from sfumato.augment.recipes import AUGMENTATIONS


@pytest.mark.parametrize("name", RECIPES)
def test_without_options_it_is_the_recipe_of_the_table(name: str) -> None:
    built, table = AUGMENTATIONS[name](), RECIPES[name]
    assert isinstance(built, Recipe)
    assert (built.geometry, built.policy) == (table.geometry, table.policy)
    mixing = getattr(built.mixing, "func", built.mixing)
    assert mixing is table.mixing


@pytest.mark.parametrize(
    ("name", "options", "policy"),
    [
        ("fcr+randaug", {"num_ops": 3, "magnitude": 14}, RandAugment(3, 14)),
        ("fcr+augmix", {"severity": 5, "width": 2}, AugMix(5, 2)),
        ("fcr", {"jitter": 0.4}, ColourJitter(0.4)),
        ("fcr+cutmix", {"jitter": 0.2}, ColourJitter(0.2)),
    ],
)
def test_strengths(name: str, options: dict[str, Any], policy: object) -> None:
    built = AUGMENTATIONS[name](**options, rotation=0.0, crop=2)
    assert isinstance(built, Recipe)
    assert built.policy == policy
    assert built.geometry == {"flip": True, "crop": 2, "rotation": 0.0}


def test_the_beta_distribution_of_a_mixing() -> None:
    for name, option in (("mixup", "alpha"), ("cutmix", "alpha"), ("ricap", "beta")):
        for built in (
            AUGMENTATIONS[f"fcr+{name}"](alpha=0.2),
            AUGMENTATIONS["resized_crop"](mixing=name, alpha=0.2, jitter=0.4),
        ):
            assert isinstance(built, Recipe)
            assert isinstance(built.mixing, partial)
            assert built.mixing.keywords == {option: 0.2}
            _, labels = built.mix(torch.rand(4, 3, 8, 8), torch.arange(4), num_classes=4)
            torch.testing.assert_close(labels.sum(1), torch.ones(4))


def test_what_can_not_be() -> None:
    with pytest.raises(ValueError, match="alpha must be"):
        AUGMENTATIONS["fcr+mixup"](alpha=0.0)
    with pytest.raises(ValueError, match=r"alpha \(0.2\) is of the mixing"):
        AUGMENTATIONS["resized_crop"](alpha=0.2)
    with pytest.raises(ValueError, match="magnitude must be"):
        AUGMENTATIONS["fcr+randaug"](magnitude=31)
