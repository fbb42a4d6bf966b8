"""The batch transform: labels against the released code, shares, scales, inspection, messages."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torchvision.transforms import v2

from sfumato.inputs import (
    Mollify,
    blur_label_decay,
    diffuse,
    dissipate,
    information_label_decay,
    noise_label_decay,
)
from sfumato.inputs.mollify import MollifyDetails

Golden = Callable[[str], dict[str, Any]]
CLEAN, NOISE, BLUR = 0, 1, 2


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _batch(count: int = 64, classes: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 16, 16), torch.randint(classes, (count,))


@pytest.mark.parametrize("case", ["labels10", "labels7"])
@pytest.mark.parametrize("k", ["0p5", "1p0", "2p0"])
def test_labels_equal_the_released_code(
    golden: Golden, case: str, k: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = golden("mollify")
    labels, t, mode, mixed = (
        torch.from_numpy(data[f"{case}.{key}"]) for key in ("labels", "t", "role", "mixed")
    )
    slope = float(k.replace("p", "."))
    noise, blur = noise_label_decay(t, slope), blur_label_decay(t, slope)
    decay = torch.where(mode == NOISE, noise, torch.where(mode == BLUR, blur, 0.0))
    np.testing.assert_allclose(decay, data[f"{case}.gamma_k{k}"], rtol=0, atol=1e-15)

    drawn = MollifyDetails(mode, t, decay)
    monkeypatch.setattr(Mollify, "draw", lambda *_, **__: drawn)
    images = torch.zeros(len(t), 1, 4, 4, dtype=torch.float64)
    num_classes = mixed.shape[1]
    expected = {
        ("smooth", "hard"): data[f"{case}.smoothed_k{k}"],
        ("smooth", "soft"): data[f"{case}.mixed_smoothed_k{k}"],
        ("temper", "hard"): data[f"{case}.decayed_k{k}"],
    }
    for (form, kind), values in expected.items():
        mollify = Mollify(num_classes, labels=form)  # type: ignore[arg-type]
        _, soft_target = mollify(images, labels if kind == "hard" else mixed)
        np.testing.assert_allclose(soft_target, values, rtol=0, atol=1e-15)


def test_every_image_is_treated_as_the_details_say() -> None:
    images, target = _batch()
    mollify = Mollify(10, noise_k=0.5, blur_k=2.0)
    out, soft_target, details = mollify(images, target, generator=_seeded(), return_details=True)
    assert set(details.mode.tolist()) == {CLEAN, NOISE, BLUR}
    assert mollify(images, target, generator=_seeded())[0].equal(out)
    for i in range(len(images)):
        mode, t = int(details.mode[i]), float(details.t[i])
        if mode == CLEAN:
            assert t == 0.0
            assert out[i].equal(images[i])
            decay = 0.0
        elif mode == NOISE:
            # What is left after taking the signal off is sin(pi t / 2) times unit noise.
            signal = diffuse(images[i : i + 1], t, noise=torch.zeros(1, 3, 16, 16))[0]
            spread = float((out[i] - signal).std())
            assert spread == pytest.approx(np.sin(np.pi * t / 2), rel=0.15)
            decay = float(noise_label_decay(t, 0.5))
        else:
            torch.testing.assert_close(out[i], dissipate(images[i : i + 1], t)[0])
            decay = float(blur_label_decay(t, 2.0))
        assert float(details.decay[i]) == pytest.approx(decay, abs=1e-6)
        expected = torch.full((10,), decay / 10)
        expected[target[i]] += 1 - decay
        torch.testing.assert_close(soft_target[i], expected)


@pytest.mark.parametrize("soft", [False, True])
def test_label_of_temperature_zero_is_untouched(soft: bool) -> None:
    images, target = _batch()
    labels = torch.rand(64, 10).softmax(1) if soft else target
    one_hot = labels if soft else torch.nn.functional.one_hot(target, 10).float()
    _, soft_target, details = Mollify(10)(images, labels, return_details=True)
    clean = details.mode == CLEAN
    assert clean.any()
    assert soft_target[clean].equal(one_hot[clean])
    torch.testing.assert_close(soft_target.sum(1), torch.ones(64))


def test_kept_and_tempered_labels() -> None:
    images, target = _batch()
    one_hot = torch.nn.functional.one_hot(target, 10).float()
    assert Mollify(10, labels="keep")(images, target)[1].equal(one_hot)
    _, tempered, details = Mollify(10, labels="temper")(images, target, return_details=True)
    torch.testing.assert_close(tempered, (1 - details.decay)[:, None] * one_hot)


def test_shares_and_temperatures_follow_the_parameters() -> None:
    details = Mollify(10, modes=(0.5, 0.2, 0.3), alpha=2.0, beta=6.0).draw(
        20_000, generator=_seeded()
    )
    shares = torch.bincount(details.mode, minlength=3) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.2, 0.3]), rtol=0, atol=0.015)
    t = details.t[details.mode != CLEAN]
    assert float(t.mean()) == pytest.approx(0.25, abs=0.01)
    assert float(t.var()) == pytest.approx(2 * 6 / (8**2 * 9), abs=0.002)
    default = Mollify(10).draw(20_000, generator=_seeded())
    assert float(default.t[default.mode != CLEAN].mean()) == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize(("modes", "only"), [((1, 0, 0), 0), ((0, 1, 0), 1), ((0, 0, 1), 2)])
def test_a_single_mode(modes: tuple[float, float, float], only: int) -> None:
    mode = Mollify(3, modes=modes).draw(1_000).mode
    assert (mode == only).all()


def test_unit_scale_images_get_what_standardised_ones_get() -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    normalise = v2.Normalize(mean, std)
    images, target = torch.rand(32, 3, 16, 16), torch.randint(10, (32,))
    raw, raw_labels = Mollify(10, mean=mean, std=std)(images, target, generator=_seeded())
    ready, labels = Mollify(10)(normalise(images), target, generator=_seeded())
    torch.testing.assert_close(normalise(raw), ready, rtol=0, atol=1e-5)
    assert labels.equal(raw_labels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_precision_and_size_of_the_batch(dtype: torch.dtype, count: int) -> None:
    images = torch.rand(count, 1, 5, 9, dtype=dtype)
    for statistics in ({}, {"mean": (0.5,), "std": (0.2,)}):
        mollify = Mollify(2, **statistics)  # type: ignore[arg-type]
        out, soft_target = mollify(images, torch.zeros(count, dtype=torch.uint8))
        assert out.dtype == dtype
        assert out.shape == images.shape
        assert soft_target.shape == (count, 2)
        assert soft_target.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_input_is_left_alone_and_layout_kept() -> None:
    images, target = _batch()
    images = images.to(memory_format=torch.channels_last)
    before = images.clone()
    out, _ = Mollify(10)(images, target)
    assert images.equal(before)
    assert not out.equal(before)
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_under_autocast() -> None:
    images, target = _batch()
    plain = Mollify(10)(images, target, generator=_seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = Mollify(10)(images, target, generator=_seeded())
    assert inside[0].equal(plain[0])
    assert inside[1].equal(plain[1])


def test_gradients_reach_the_images() -> None:
    images, target = _batch(16)
    images.requires_grad_()
    Mollify(10)(images, target)[0].sum().backward()
    # Blur keeps the mean, clean keeps all, noise scales by cos: every image gets some gradient.
    assert images.grad is not None
    assert (images.grad.flatten(1).abs().sum(1) > 0).all()


def test_after_mixup_in_a_torchvision_pipeline() -> None:
    images, target = _batch()
    out, soft_target = v2.Compose([v2.MixUp(num_classes=10), Mollify(10)])(images, target)
    assert out.shape == images.shape
    torch.testing.assert_close(soft_target.sum(1), torch.ones(64))


def test_in_a_collate_function() -> None:
    images, target = _batch()
    mollify = Mollify(10)
    loader = DataLoader(
        TensorDataset(images, target),
        batch_size=16,
        collate_fn=lambda samples: mollify(*default_collate(samples)),
    )
    shapes = [(tuple(x.shape), tuple(y.shape)) for x, y in loader]
    assert shapes == [((16, 3, 16, 16), (16, 10))] * 4


def test_goes_to_worker_processes_and_prints() -> None:
    mollify = pickle.loads(pickle.dumps(Mollify(10, mean=(0.5,), std=(0.2,))))
    assert repr(mollify) == (
        "Mollify(10, modes=(0.333, 0.333, 0.333), alpha=1, beta=2, noise_k=1, blur_k=1, "
        "labels='smooth')"
    )
    assert not mollify.state_dict()


def test_bad_parameters() -> None:
    with pytest.raises(
        ValueError, match=r"modes must sum to 1, got \(0.5, 0.5, 0.5\) with sum 1.5"
    ):
        Mollify(10, modes=(0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match="modes must be three probabilities"):
        Mollify(10, modes=(0.5, 0.5))
    with pytest.raises(ValueError, match=r"modes must be in \[0, 1\], got -0.5"):
        Mollify(10, modes=(-0.5, 0.5, 1.0))
    with pytest.raises(ValueError, match="labels must be one of"):
        Mollify(10, labels="soft")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        Mollify(1)
    for name in ("alpha", "beta", "noise_k", "blur_k"):
        with pytest.raises(ValueError, match=rf"{name} must be in \(0, inf\), got 0"):
            Mollify(10, **{name: 0.0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mean and std go together"):
        Mollify(10, mean=(0.5,))
    with pytest.raises(ValueError, match="one entry per channel, got 1 and 2"):
        Mollify(10, mean=(0.5,), std=(0.2, 0.2))
    with pytest.raises(ValueError, match="std must be in"):
        Mollify(10, mean=(0.5,), std=(0.0,))


def test_bad_batches() -> None:
    images, target = _batch(4)
    mollify = Mollify(10)
    with pytest.raises(TypeError, match=r"images must be floating point, got torch\.uint8"):
        mollify(images.to(torch.uint8), target)
    with pytest.raises(ValueError, match=r"class indices in \[0, 10\), got 10 at position \(2,\)"):
        mollify(images, torch.tensor([0, 9, 10, 3]))
    with pytest.raises(ValueError, match=r"\(4, 10\), got torch.float32 \(4, 7\)"):
        mollify(images, torch.rand(4, 7))
    with pytest.raises(ValueError, match=r"class indices \(4,\) or soft labels"):
        mollify(images, target[:3])
    with pytest.raises(TypeError, match="target must be a tensor, got list"):
        mollify(images, [1, 2, 3, 4])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="images must have 1 channels, as mean and std have"):
        Mollify(10, mean=(0.5,), std=(0.2,))(images, target)


def test_labels_decay_by_the_bits_that_each_image_loses() -> None:
    """Eq. (13) as printed: whether the images are on the [0, 1] scale or standardised."""
    images, target = torch.rand(12, 3, 16, 16), torch.arange(12) % 4
    images[:6] = images[:6, :, :1, :1]  # flat images lose nothing but what rounding leaves
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3])
    options: dict[str, Any] = {"modes": (0.0, 0.0, 1.0), "blur_decay": "png", "blur_k": 2.0}
    options |= {"mean": mean.tolist(), "std": std.tolist()}
    plain, standardised = Mollify(4, **options), Mollify(4, **options, standardised=True)
    given = (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    found = []
    for mollify, batch in ((plain, images), (standardised, given)):
        _, soft, details = mollify(batch, target, generator=_seeded(), return_details=True)
        torch.testing.assert_close(details.decay, 1 - (soft.max(1).values - soft.min(1).values))
        found.append(details)
    expected = information_label_decay(images, found[0].t, 2.0)
    torch.testing.assert_close(found[0].decay, expected)
    assert (found[1].decay - expected).abs().max() < 0.02  # a grey level here and there
    assert not expected[:6].any()


def test_png_files_need_pixels() -> None:
    for options in ({"blur_decay": "png"}, {"standardised": True}):
        with pytest.raises(ValueError, match="need the mean and std of each channel"):
            Mollify(4, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="blur_decay must be one of"):
        Mollify(4, blur_decay="zip")  # type: ignore[arg-type]
