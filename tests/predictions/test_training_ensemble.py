"""Training-phase ensembles."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.predictions import mean_log_probability


class Scripted(nn.Module):
    """Answers with prepared logits, in the order of the folded batch."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.flatten(0, 1)


def test_hand_worked() -> None:
    probs = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]])  # two passes, one image
    result = mean_log_probability(Scripted(probs.log()), torch.zeros(1, 3), samples=2)
    torch.testing.assert_close(result.exp(), torch.tensor([[0.6, 0.4]]))


def test_is_the_log_of_the_mean_in_every_place() -> None:
    logits = 4 * torch.randn(5, 3, 6, 2, 2, dtype=torch.float64)  # passes, images, classes, ...
    result = mean_log_probability(Scripted(logits), torch.zeros(3, 1), samples=5)
    torch.testing.assert_close(result, logits.softmax(2).mean(0).log())
    torch.testing.assert_close(result.log_softmax(1), result)


def test_one_sample_is_the_plain_loss() -> None:
    model = nn.Linear(4, 3)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    ours = F.cross_entropy(mean_log_probability(model, x, samples=1), y)
    torch.testing.assert_close(ours, F.cross_entropy(model(x), y))


def test_huge_logits_stay_finite() -> None:
    logits = torch.tensor([[[1e4, -1e4]], [[-1e4, 1e4]]])
    result = mean_log_probability(Scripted(logits), torch.zeros(1, 1), samples=2)
    torch.testing.assert_close(result.exp(), torch.tensor([[0.5, 0.5]]))


def test_variance_of_the_loss_falls_with_the_samples() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 2))
    x, y = torch.randn(8, 16), torch.randint(2, (8,))

    def spread(samples: int) -> float:
        with torch.no_grad():
            losses = [
                F.cross_entropy(mean_log_probability(model, x, samples=samples), y)
                for _ in range(200)
            ]
        return torch.stack(losses).var().item()

    assert spread(16) < spread(4) / 2 < spread(1) / 4  # about 1/N, Eq. (28)


def test_passes_differ_and_gradients_flow() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 5))
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    seen = []
    model[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    mean_log_probability(model, x, samples=3).sum().backward()
    assert seen[0].shape == (6, 3, 6, 6)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert model[0].weight.grad is not None


def test_empty_batch() -> None:
    assert mean_log_probability(nn.Linear(4, 3), torch.zeros(0, 4), samples=2).shape == (0, 3)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        mean_log_probability(nn.Linear(4, 3), torch.zeros(1, 4), samples=0)
