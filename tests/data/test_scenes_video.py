"""Video: frames, labels and motion belong together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfumato.data.scenes import CLASSES, SceneStream, render as rendering, stream
from sfumato.data.scenes.video import _draw_streams

BACKGROUND = 10


@pytest.fixture(scope="module")
def video() -> SceneStream:
    return stream(40, streams=3, seed=1, noise=0.0)


def test_shapes_and_names(video: SceneStream) -> None:
    assert (video.frames.shape, video.frames.dtype) == ((3, 40, 3, 64, 64), torch.uint8)
    assert (video.labels.shape, video.labels.dtype) == ((3, 40, 64, 64), torch.int64)
    assert video.classes == (*CLASSES, "background")


@pytest.mark.parametrize("figures", [1, 10])
def test_as_many_classes_as_figures(figures: int) -> None:
    labels = stream(60, streams=2, figures=figures, size=32).labels
    for one in labels:
        assert len(one.unique()) == figures + 1
        assert bool((one == BACKGROUND).any())


def test_labels_move_by_little(video: SceneStream) -> None:
    changed = (video.labels[:, 1:] != video.labels[:, :-1]).float().mean(dim=(2, 3))
    assert 0.0 < float(changed.mean()) < float(changed.max()) < 0.2
    far = (video.labels[:, 20:] != video.labels[:, :-20]).float().mean()
    assert float(far) > 3 * float(changed.mean())


def test_motion_is_smooth(video: SceneStream) -> None:
    """The front figure's middle moves at most a twentieth of the image per frame."""
    line = torch.arange(64.0)
    for labels in stream(80, streams=4, figures=1, noise=0.0).labels:
        mask = (labels != BACKGROUND).float()
        total = mask.sum(dim=(1, 2))
        x = (mask.sum(dim=1) * line).sum(1) / total
        y = (mask.sum(dim=2) * line).sum(1) / total
        steps = ((x[1:] - x[:-1]).square() + (y[1:] - y[:-1]).square()).sqrt()
        assert float(steps.max()) < 64 / 20
        assert float(steps.sum()) > 10.0


def test_a_label_is_one_colour_in_the_frames(video: SceneStream) -> None:
    """Inside a figure the hue stays; light changes all channels by one factor."""
    for frames, labels in zip(video.frames.double(), video.labels, strict=True):
        share = frames / frames.sum(dim=1, keepdim=True)
        for kind in labels.unique().tolist():
            deviation = share.movedim(1, 0)[:, labels == kind].std(dim=1).max()
            if kind != BACKGROUND:
                assert float(deviation) < 0.05


def test_background_is_the_habit_of_the_first_figure() -> None:
    times = torch.zeros(1, dtype=torch.float64)
    scenes = _draw_streams(4000, times, 0, figures=2, context=0.7)
    habitual = [bool(s.background.texture[0] == s.figures[0].first[0]) for s in scenes]
    assert sum(habitual) / 4000 == pytest.approx(0.7, abs=0.03)


def test_speed_zero_is_a_still() -> None:
    video = stream(3, speed=0.0, noise=0.0)
    assert torch.equal(video.frames[0, 0], video.frames[0, 2])


def test_speed_two_skips_every_other_frame() -> None:
    slow, fast = stream(7, noise=0.0, size=32), stream(4, speed=2.0, noise=0.0, size=32)
    assert torch.equal(slow.frames[:, ::2], fast.frames)


def test_noise_is_new_in_every_frame() -> None:
    video = stream(2, speed=0.0, noise=0.05)
    difference = (video.frames[0, 0].double() - video.frames[0, 1].double()) / 255
    assert float(difference.std()) == pytest.approx(0.05 * 2**0.5, rel=0.1)


def test_frames_do_not_depend_on_length_number_or_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    long = stream(9, streams=3, size=24, seed=5)
    short = stream(4, streams=2, size=24, seed=5)
    assert torch.equal(long.frames[:2, :4], short.frames)
    assert torch.equal(long.labels[:2, :4], short.labels)
    monkeypatch.setattr(rendering, "_PIXELS_PER_CHUNK", 1)
    again = stream(9, streams=3, size=24, seed=5)
    assert torch.equal(long.frames, again.frames)
    assert torch.equal(long.labels, again.labels)


def test_seed_changes_the_video() -> None:
    assert not torch.equal(stream(1, seed=1).labels, stream(1, seed=2).labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_frames": 0}, "num_frames must be at least 1, got 0"),
        ({"streams": 0}, "streams must be at least 1, got 0"),
        ({"figures": 11}, "figures must be at least 1 and at most 10, got 11"),
        ({"speed": -1.0}, r"speed must be in \[0, inf\), got -1.0"),
        ({"size": 8}, "size must be at least 16 and at most 512, got 8"),
        ({"context": 2.0}, r"context must be in \[0, 1\], got 2.0"),
        ({"noise": -1.0}, r"noise must be in \[0, inf\), got -1.0"),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stream(**{"num_frames": 2, **arguments})
