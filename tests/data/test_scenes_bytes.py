"""The same bytes on every run, in every chunk, on every thread; independent splits."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.data import ArrayDataset
from sfumato.data.scenes import generate, generate_objects, load, render as rendering, stream
from sfumato.data.scenes.render import Dice, generator_for, length, sensor_noise

CONTENT = ("images", "labels", "index", "boxes", "masks", "objectness", "posterior")
PINNED = "2149562fb530dd43ae58b61c20ed4a0c8649bc5602eb0e1a3f5ee38f570353a7"
PINNED_VIDEO = "889898aa9b4c0bf4f935a556929c190f7a672707ceed1bd94a214583d41a3669"
PINNED_OBJECTS = "c8bf3c6576c1406e590d1a006b3f90fce23dba6d80f235bb73aeb1903f38d2f3"


def _digest_of(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def _digest(samples: ArrayDataset) -> str:
    return _digest_of(*(getattr(samples, name) for name in CONTENT))


def test_same_seed_same_bytes_other_seed_other_bytes() -> None:
    assert _digest(generate(50, seed=3)) == _digest(generate(50, seed=3))
    assert _digest(generate(50, seed=3)) != _digest(generate(50, seed=4))


def test_sample_does_not_depend_on_how_many_follow() -> None:
    few, many = generate(37, size=24, seed=2), generate(200, size=24, seed=2)
    assert _digest(few) == _digest(many.subset(torch.arange(37)))


def test_bytes_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for pixels in (1, 7 * 21**2, 10**6):
        monkeypatch.setattr(rendering, "_PIXELS_PER_CHUNK", pixels)
        digests.add(_digest(generate(60, size=21, ambiguity=0.4)))
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("threads", "capability"),
    [(1, "default"), pytest.param(3, "avx2", marks=pytest.mark.slow), (2, None)],
    ids=str,
)
def test_bytes_are_pinned_in_a_fresh_process(threads: int, capability: str | None) -> None:
    """Every operation on pixels is exactly rounded: threads, vectors, processors can't show."""
    code = (
        "import hashlib, torch; from sfumato.data import scenes; "
        f"torch.set_num_threads({threads}); samples = scenes.generate(96, seed=11, size=40); "
        f"content = b''.join(getattr(samples, n).numpy().tobytes() for n in {CONTENT}); "
        "print(hashlib.sha256(content).hexdigest())"
    )
    environment = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"}
    if capability is not None:
        environment["ATEN_CPU_CAPABILITY"] = capability
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.strip() == _digest(generate(96, seed=11, size=40)) == PINNED


def test_bytes_of_video_and_of_several_objects_are_pinned() -> None:
    video = stream(12, streams=3, seed=11, size=40)
    several = generate_objects(40, seed=11, size=40)
    described = [t for each in several.objects for t in (each.boxes, each.labels, each.areas)]
    assert _digest_of(video.frames, video.labels) == PINNED_VIDEO
    assert _digest_of(several.images, *described) == PINNED_OBJECTS


def test_roots_are_correctly_rounded() -> None:
    """Against the processor's own instruction, which IEEE 754 binds (NumPy uses it)."""
    x, y = torch.rand(2, 100_003, generator=torch.Generator().manual_seed(0)) * 4 - 2
    assert torch.equal(length(x, y), torch.from_numpy(np.sqrt((x * x + y * y).numpy())))


def test_statistics_are_pinned() -> None:
    images = generate(1000, seed=1).images.double() / 255
    mean, deviation = images.mean(dim=(0, 2, 3)), images.std(dim=(0, 2, 3))
    assert mean.tolist() == pytest.approx([0.426, 0.428, 0.427], abs=0.005)
    assert deviation.tolist() == pytest.approx([0.183, 0.184, 0.182], abs=0.005)


def test_bytes_do_not_depend_on_the_default_type() -> None:
    expected = _digest(generate(20))
    torch.set_default_dtype(torch.float64)
    try:
        assert _digest(generate(20)) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_noise_stream_can_be_cut_anywhere() -> None:
    whole = sensor_noise(torch.Size([101]), generator_for(0, "noise"))
    generator = generator_for(0, "noise")
    parts = [sensor_noise(torch.Size([count]), generator) for count in (3, 70, 28)]
    assert torch.equal(whole, torch.cat(parts))


def test_dice_never_draws_the_class_itself() -> None:
    classes = torch.arange(10).repeat(2000)
    other = Dice(20_000, 0).another(classes, 10)
    step = (other - classes) % 10
    assert step.bincount(minlength=10)[0] == 0
    assert float((step.bincount(minlength=10)[1:] / 20_000 - 1 / 9).abs().max()) < 0.01


def test_splits_are_disjoint_and_independent_of_each_others_size() -> None:
    splits = load(train=40, validation=20, test=30, seed=5, size=16)
    rows = torch.cat([splits.train.images, splits.validation.images, splits.test.images])
    assert len(rows.flatten(1).unique(dim=0)) == 90
    again = load(train=8, validation=20, test=1, seed=5, size=16)
    assert _digest(again.validation) == _digest(splits.validation)
    assert torch.equal(again.train.images, splits.train.images[:8])
    assert _digest(load(train=8, validation=20, test=1, seed=6, size=16).train) != _digest(
        again.train
    )


def test_splits_pass_their_parameters_on() -> None:
    splits = load(train=30, validation=10, test=10, size=20, ambiguity=1.0, noise=0.0)
    assert splits.test.images.shape == (10, 3, 20, 20)
    assert splits.train.posterior is not None
    assert float(splits.train.posterior.max()) < 0.9
