"""Test-time augmentation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfumato.inputs import AveragedCopies, heat_blur


class _Counter(nn.Module):
    """A network that counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.passes = nn.Linear(3 * 6 * 5, 4), 0

    def forward(self, images: Tensor) -> Tensor:
        self.passes += 1
        logits: Tensor = self.linear(images.flatten(1))
        return logits


def test_mean_over_the_copies_in_as_many_passes() -> None:
    network, images = _Counter(), torch.randn(2, 3, 6, 5)
    predictor = AveragedCopies(network, flip=True, crop=2, blur=[0.7, 1.5])
    found = predictor(images)
    assert predictor.count == network.passes == 8
    rows = torch.arange(6)
    columns = torch.arange(5)
    copies = [images, images.flip(-1)]
    for down in (-2, 2):
        for right in (-2, 2):
            moved = images[:, :, (rows + down).clamp(0, 5)]
            copies.append(moved[..., (columns + right).clamp(0, 4)])
    copies += [heat_blur(images, 0.7), heat_blur(images, 1.5)]
    expected = torch.stack([network(copy).softmax(1) for copy in copies]).mean(0)
    torch.testing.assert_close(found, expected)


def test_weights_are_those_of_the_largest_likelihood() -> None:
    predictor = AveragedCopies(nn.Identity(), flip=True, blur=[1.0], weights="likelihood")
    with pytest.raises(ValueError, match="not known yet: call fit"):
        predictor(torch.zeros(1, 3))
    probs = torch.randn(400, 3, 4).mul(2).softmax(2)
    target = torch.multinomial(probs[:, 0] * 0.7 + probs[:, 1] * 0.3, 1).squeeze(1)
    predictor.fit(probs, target)
    likelihood = probs.double()[torch.arange(400), :, target]

    def mean_log(shares: Tensor) -> float:
        return float((likelihood @ shares.double()).log().mean())

    assert float(predictor.shares.sum()) == pytest.approx(1.0, abs=1e-6)
    best = mean_log(predictor.shares)
    for _ in range(50):
        other = torch.rand(3).double()
        assert mean_log(other / other.sum()) <= best + 1e-4
    assert predictor.shares[2] < 0.2


def test_fitted_weights_are_in_the_state() -> None:
    predictor, loaded = (
        AveragedCopies(nn.Flatten(), flip=True, blur=[1.0], weights="likelihood") for _ in range(2)
    )
    loaded.load_state_dict(predictor.state_dict())
    with pytest.raises(ValueError, match="not known yet"):
        loaded(torch.zeros(1, 1, 2, 2))
    predictor.fit(torch.randn(40, 3, 4).softmax(2), torch.randint(0, 4, (40,)))
    loaded.load_state_dict(predictor.state_dict())
    images = torch.randn(2, 1, 2, 2)
    assert torch.equal(loaded(images), predictor(images))


def test_equal_without_a_fit_and_in_half_precision() -> None:
    predictor = AveragedCopies(nn.Flatten(), flip=True)
    found = predictor(torch.randn(2, 1, 1, 3, dtype=torch.bfloat16))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flip": False}, "nothing to average"),
        ({"crop": -1}, "crop must be at least 0"),
        ({"blur": [0.0]}, "blur must be in"),
        ({"weights": "best"}, "weights must be one of"),
    ],
)
def test_bad_parameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AveragedCopies(nn.Identity(), **options)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="crop must be below the size"):
        AveragedCopies(nn.Flatten(), crop=3)(torch.zeros(1, 1, 3, 4))
    predictor = AveragedCopies(nn.Flatten())
    with pytest.raises(ValueError, match=r"probs must be \(N, 2, C\)"):
        predictor.fit(torch.rand(4, 3, 2), torch.zeros(4).long())
    with pytest.raises(ValueError, match="nothing to fit on"):
        predictor.fit(torch.rand(0, 2, 2), torch.zeros(0).long())
