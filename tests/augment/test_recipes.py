"""The table of recipes: names, order of the stages, and a whole batch through each of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sfumato.augment import RECIPES, Augment, Recipe, ResizedCrop
from sfumato.inputs import Mollify

NAMES = [
    "none",
    "fcr",
    "fcr+randaug",
    "fcr+autoaug",
    "fcr+augmix",
    "fcr+trivaug",
    "fcr+mixup",
    "fcr+cutmix",
    "fcr+ricap",
]


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_names_and_geometry() -> None:
    assert list(RECIPES) == NAMES
    assert RECIPES["none"].geometry == {"flip": False, "crop": 0, "rotation": 0.0}
    for name in NAMES[1:]:
        assert RECIPES[name].geometry == {"flip": True, "crop": 4, "rotation": 15.0}
    assert [name for name in NAMES if RECIPES[name].policy is not None] == NAMES[2:6]
    assert [name for name in NAMES if RECIPES[name].mixing is not None] == NAMES[6:]


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_from_uint8_to_loss(name: str) -> None:
    recipe, target = RECIPES[name], torch.randint(10, (8,))
    images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)

    def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = _seeded(seed)
        moved = Augment(**recipe.geometry)(images, generator)
        pixels = recipe.pixel(moved, generator=generator)
        floats = (pixels / 255 - 0.5) / 0.25
        mixed, labels = recipe.mix(floats, target, num_classes=10, generator=generator)
        return Mollify(10)(mixed, labels, generator=generator)

    first, again, other = batch(0), batch(0), batch(1)
    assert first[0].equal(again[0])
    assert first[1].equal(again[1])
    assert not first[0].equal(other[0])
    torch.testing.assert_close(first[1].sum(1), torch.ones(8))
    assert F.cross_entropy(torch.zeros(8, 10), first[1]).isfinite()


def test_uniforms_decide_the_pixels() -> None:
    images = torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8)
    recipe = RECIPES["fcr+randaug"]
    assert recipe.policy is not None
    uniforms = torch.rand(8, recipe.policy.draws, generator=_seeded(3))
    assert recipe.pixel(images, uniforms).equal(recipe.pixel(images, generator=_seeded(3)))


@pytest.mark.parametrize("name", ["fcr", "fcr+randaug", "fcr+cutmix"])
def test_a_recipe_is_the_augmentation_of_a_loader(name: str) -> None:
    """Geometry takes the first numbers of a row, the policy the rest; mixing takes none."""
    recipe, images = RECIPES[name], torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8)
    uniforms, first = torch.rand(8, recipe.draws, generator=_seeded()), Augment.draws
    moved = Augment(**recipe.geometry).apply({"image": images}, uniforms[:, :first])["image"]
    found = recipe.apply({"image": images}, uniforms)["image"]
    assert found.equal(recipe.pixel(moved, uniforms[:, first:]))
    with pytest.raises(ValueError, match="uniforms must"):
        recipe.apply({"image": images}, uniforms[:, 1:])


def test_a_resized_crop_takes_the_place_of_flip_crop_and_rotation() -> None:
    crop = ResizedCrop(rotation=10.0)
    recipe, uniforms = Recipe(resized_crop=crop), torch.rand(2, crop.draws)
    assert recipe.rotates
    assert recipe.draws == crop.draws
    assert recipe.corners(uniforms, 8, 8).equal(crop.corners(uniforms, 8, 8))
    with pytest.raises(ValueError, match="takes the place of flip, crop and rotation"):
        Recipe(flip=True, resized_crop=crop)


def test_off_stages_give_back_what_they_got() -> None:
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    recipe, target = Recipe(), torch.tensor([0, 1])
    assert recipe.pixel(images) is images
    assert recipe.apply({"image": images}, torch.rand(2, recipe.draws))["image"] is images
    floats = images / 255
    mixed, labels = recipe.mix(floats, target, num_classes=2)
    assert mixed is floats
    assert labels is target


def test_stages_out_of_order() -> None:
    images = torch.rand(2, 3, 8, 8)
    for name in ("none", "fcr+trivaug"):
        with pytest.raises(TypeError, match="uint8, float, normalise, mix, mollify"):
            RECIPES[name].pixel(images)
    pixels = (images * 255).to(torch.uint8)
    with pytest.raises(TypeError, match=r"images must be floating point, got torch\.uint8"):
        RECIPES["fcr+mixup"].mix(pixels, torch.tensor([0, 1]), num_classes=2)
