"""Labelled sets of scenes: what they promise about labels, masks, backgrounds and bytes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.data import ArrayDataset
from sfumato.data.scenes import CLASSES, generate, load, render as rendering
from sfumato.data.scenes.render import draw_scenes, hsv_to_rgb, morph_probability, sensor_noise
from sfumato.data.scenes.sets import bounding_boxes


@pytest.fixture(scope="module")
def samples() -> ArrayDataset:
    return generate(2000, seed=7)


def test_shapes_and_types(samples: ArrayDataset) -> None:
    assert samples.images.shape == (2000, 3, 32, 32)
    assert samples.labels.dtype == samples.index.dtype == torch.int64
    assert samples.classes == CLASSES
    assert samples.boxes is not None
    assert samples.masks is not None
    assert samples.objectness is not None
    assert samples.posterior is not None
    assert (samples.boxes.shape, samples.boxes.dtype) == ((2000, 1, 4), torch.float32)
    assert (samples.masks.shape, samples.masks.dtype) == ((2000, 32, 32), torch.bool)
    assert (samples.objectness.shape, samples.objectness.dtype) == ((2000,), torch.float32)
    assert (samples.posterior.shape, samples.posterior.dtype) == ((2000, 10), torch.float32)


@pytest.mark.parametrize("size", [16, 33, 160])
def test_any_size(size: int) -> None:
    samples = generate(30, size=size)
    assert samples.images.shape == (30, 3, size, size)
    assert samples.objectness is not None
    assert 0.01 < float(samples.objectness.min()) <= float(samples.objectness.max()) < 0.62


def test_size_changes_the_resolution_and_not_the_scene() -> None:
    small, large = (generate(40, size=size, noise=0.0) for size in (32, 96))
    assert torch.equal(small.labels, large.labels)
    shrunk = torch.nn.functional.avg_pool2d(large.images.float(), 3)
    assert float((shrunk - small.images.float()).abs().mean()) < 2.5


def test_one_sample() -> None:
    assert generate(1).images.shape == (1, 3, 32, 32)


# ---- labels


def test_classes_are_balanced(samples: ArrayDataset) -> None:
    # ten samples hold every class once, up to the morphs that took their second class
    counts = samples.labels.bincount(minlength=10)
    assert int(counts.min()) > 185
    assert int(counts.max()) < 215
    plain = generate(50, ambiguity=0.0).labels.view(5, 10).sort(dim=1).values
    assert torch.equal(plain, torch.arange(10).expand(5, 10))


def test_posterior_is_one_hot_but_for_the_share_of_morphs(samples: ArrayDataset) -> None:
    assert samples.posterior is not None
    torch.testing.assert_close(samples.posterior.sum(1), torch.ones(2000))
    top = samples.posterior.max(1).values
    share = float((top < 1).float().mean())
    assert share == pytest.approx(0.1, abs=4 * np.sqrt(0.1 * 0.9 / 2000))
    one_hot = top == 1
    assert torch.equal(samples.posterior.argmax(1)[one_hot], samples.labels[one_hot])


def test_labels_of_morphs_follow_the_posterior() -> None:
    _, truth = draw_scenes(40_000, 3, context=0.9, ambiguity=1.0)
    confidence, likely = truth.posterior.max(1)
    correct = (truth.label == likely).double()
    squares = 0.0
    edges = torch.linspace(0.5, 0.844, 9)
    for low, high in itertools.pairwise(edges):
        chosen = (confidence > low) & (confidence <= high)
        expected = confidence[chosen].double()
        variance = (expected * (1 - expected)).sum()
        squares += float((correct[chosen] - expected).sum() ** 2 / variance)
    assert squares < 26.1  # chi-square with 8 degrees of freedom, 0.1 % tail


def test_background_of_a_morph_tells_nothing_more_about_its_label() -> None:
    scene, truth = draw_scenes(40_000, 4, context=1.0, ambiguity=1.0)
    texture = scene.background.texture
    probability = truth.posterior.gather(1, texture.unsqueeze(1)).squeeze(1).double()
    agrees = (truth.label == texture).double()
    deviation = (agrees - probability).sum() / (probability * (1 - probability)).sum().sqrt()
    assert abs(float(deviation)) < 3.5


def test_morph_probability_by_hand() -> None:
    weight = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    assert morph_probability(weight).tolist() == [0.0, 0.15625, 0.5, 0.84375, 1.0]


@pytest.mark.parametrize("context", [0.0, 0.35, 0.9, 1.0])
def test_context_is_the_frequency_of_habitual_backgrounds(context: float) -> None:
    scene, truth = draw_scenes(10_000, 5, context=context, ambiguity=0.0)
    texture = scene.background.texture
    matches = texture == truth.label
    tolerance = 4 * np.sqrt(context * (1 - context) / 10_000)
    assert float(matches.float().mean()) == pytest.approx(context, abs=tolerance + 1e-7)
    step = (texture - truth.label)[~matches] % 10
    if len(step):
        share = step.bincount(minlength=10)[1:] / len(step)
        assert float((share - 1 / 9).abs().max()) < 4 * np.sqrt(1 / 9 / len(step))


# ---- geometry


def test_box_is_tight_around_the_mask(samples: ArrayDataset) -> None:
    assert samples.boxes is not None
    assert samples.masks is not None
    for mask, box in zip(samples.masks[:300].numpy(), samples.boxes[:300, 0].tolist(), strict=True):
        rows, columns = np.nonzero(mask)
        assert box == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def test_box_of_a_mask_by_hand() -> None:
    masks = torch.zeros(1, 5, 6, dtype=torch.bool)
    masks[0, 1, 4] = masks[0, 3, 2] = True
    assert bounding_boxes(masks).tolist() == [[2.0, 1.0, 5.0, 4.0]]


def test_objectness_is_the_mean_of_the_mask(samples: ArrayDataset) -> None:
    assert samples.masks is not None
    assert samples.objectness is not None
    expected = samples.masks.numpy().mean(axis=(1, 2)).astype(np.float32)
    np.testing.assert_array_equal(samples.objectness.numpy(), expected)


def test_areas_span_what_is_promised(samples: ArrayDataset) -> None:
    scene, _ = draw_scenes(2000, 7, context=0.9, ambiguity=0.1)
    area = scene.figures[0].scale.square()
    assert 0.03 <= float(area.min()) < 0.032
    assert 0.58 < float(area.max()) <= 0.60
    assert samples.objectness is not None
    assert 0.01 < float(samples.objectness.min()) < 0.05 < 0.5 < float(samples.objectness.max())


def test_no_mask_is_empty_at_the_smallest_size() -> None:
    masks = generate(5000, size=16, ambiguity=0.5).masks
    assert masks is not None
    assert int(masks.sum(dim=(1, 2)).min()) >= 1


def test_a_figure_between_pixel_centres_keeps_its_innermost_pixel() -> None:
    distance = torch.tensor([[[0.3, 0.2], [0.9, 0.4]], [[-0.1, 0.2], [0.0, 0.4]]])
    inside = rendering._inside(distance)
    assert inside.tolist() == [[[False, True], [False, False]], [[True, False], [True, False]]]


def test_the_figure_is_brighter_than_what_surrounds_it() -> None:
    samples = generate(500, noise=0.0)
    assert samples.masks is not None
    value = samples.images.amax(dim=1).double()
    figure = (value * samples.masks).sum((1, 2)) / samples.masks.sum((1, 2))
    around = (value * ~samples.masks).sum((1, 2)) / (~samples.masks).sum((1, 2))
    assert float((figure > around).double().mean()) > 0.97


# ---- noise and colour


def test_noise_has_the_given_deviation() -> None:
    clean, noisy = (generate(300, noise=noise).images.double() / 255 for noise in (0.0, 0.05))
    middle = (clean > 0.25) & (clean < 0.75)
    difference = (noisy - clean)[middle]
    assert float(difference.mean()) == pytest.approx(0.0, abs=2e-4)
    assert float(difference.std()) == pytest.approx(0.05, rel=0.02)


def test_sensor_noise_is_nearly_normal() -> None:
    numbers = sensor_noise(torch.Size([400_000]), torch.Generator().manual_seed(0)).double()
    assert float(numbers.mean()) == pytest.approx(0.0, abs=0.006)
    assert float(numbers.var()) == pytest.approx(1.0, abs=0.01)
    assert float((numbers.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.02)
    assert float(numbers.abs().max()) <= 3.0


def test_colours_by_hand() -> None:
    hue = torch.tensor([0.0, 1 / 3, 2 / 3, 0.5, 1.5])
    colours = hsv_to_rgb(hue, torch.ones(5), torch.ones(5))
    expected = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [0, 1, 1]])
    torch.testing.assert_close(colours, expected, atol=1e-6, rtol=0)


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1, got 0"),
        ({"num_samples": 2.5}, TypeError, "num_samples must be an integer, got float 2.5"),
        ({"size": 15}, ValueError, "size must be at least 16 and at most 512, got 15"),
        ({"size": 513}, ValueError, "size must be at least 16 and at most 512, got 513"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"context": 1.1}, ValueError, r"context must be in \[0, 1\], got 1.1"),
        ({"context": "0.9"}, TypeError, "context must be a number, got str '0.9'"),
        ({"ambiguity": -0.1}, ValueError, r"ambiguity must be in \[0, 1\], got -0.1"),
        ({"noise": -0.01}, ValueError, r"noise must be in \[0, inf\), got -0.01"),
        ({"noise": float("nan")}, ValueError, r"noise must be in \[0, inf\), got nan"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        generate(**{"num_samples": 5, **arguments})


def test_bad_split_is_named() -> None:
    with pytest.raises(ValueError, match="validation must be at least 1, got 0"):
        load(train=5, validation=0, test=5)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        load(seed=-3)


def test_silhouettes_that_are_left_out_never_occur() -> None:
    known = ("disc", "heart", "arrow")
    some = generate(300, seed=2, classes=known, ambiguity=0.5)
    assert (some.classes, some.posterior.shape) == (known, (300, 3))
    scene, truth = draw_scenes(300, 2, context=0.9, ambiguity=0.5, silhouettes=[0, 4, 8])
    (figure,) = scene.figures
    assert set(figure.first.tolist()) | set(figure.second.tolist()) == {0, 4, 8}
    assert torch.equal(truth.label, some.labels)


def test_all_silhouettes_are_the_default() -> None:
    assert torch.equal(generate(40, classes=CLASSES).images, generate(40).images)


def test_without_a_figure_the_background_stays() -> None:
    with_figure, without = generate(60, seed=4), generate(60, seed=4, figure=False)
    outside = ~with_figure.masks[:, None].expand_as(with_figure.images)
    assert without.masks is without.boxes is without.objectness is without.posterior is None
    same = (with_figure.images == without.images)[outside].double().mean()
    assert same > 0.9  # edges are soft
    assert not torch.equal(with_figure.images, without.images)


@pytest.mark.parametrize("classes", [["disc"], ["disc", "disc"], ["disc", "cube"]])
def test_classes_that_can_not_be(classes: list[str]) -> None:
    with pytest.raises(ValueError, match="classes must be two or more different silhouettes"):
        generate(10, classes=classes)
