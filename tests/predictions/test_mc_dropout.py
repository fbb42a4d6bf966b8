"""MC dropout: laws, reproducibility, functional dropout, one run of the deterministic part."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.predictions import DeepEnsemble, MCDropout


class Functional(nn.Module):
    """Dropout as functions, a residual connection across it, batch norm, a counted prefix."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate
        self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(8)
        self.rows_in_prefix = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows_in_prefix += len(x)
        hidden = self.norm(self.first(x)).relu()
        dropped = F.dropout(hidden, self.rate, training=self.training)
        hidden = hidden + self.second(dropped)
        hidden += dropped
        return self.last(torch.cat([hidden, dropped], 1))


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_mean_converges_to_the_known_mean() -> None:
    """One hidden unit, kept with probability 1/2: the output is one of two known values."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[1.0], [0.0]]))
    kept = torch.tensor([2.0, 0.0]).softmax(0)  # the kept input is scaled by 2
    expected = (kept + 0.5) / 2
    with torch.no_grad():
        found = MCDropout(net, 20_000)(torch.ones(1, 1), generator=_generator())
    assert torch.allclose(found[0], expected, atol=0.01)


def test_equals_the_plain_loop_in_distribution() -> None:
    """Folded passes against separate ones with train-mode dropout: same mean and variance."""
    net = Functional().eval()
    x = torch.randn(5, 4)
    with torch.no_grad():
        found = MCDropout(net, 4000).predict(x, generator=_generator())
        plain = []
        for _ in range(4000):
            net.train()
            net.norm.eval()
            plain.append(net(x).softmax(1))
        stacked = torch.stack(plain)
    assert torch.allclose(found.probs, stacked.mean(0), atol=0.02)
    assert torch.allclose(found.variance, stacked.var(0), atol=0.01)


def test_uncertainties_by_hand() -> None:
    net = Functional().eval()
    with torch.no_grad():
        found = MCDropout(net, 50).predict(torch.randn(6, 4), generator=_generator())
    expected = -(found.probs * found.probs.log()).sum(1)
    assert torch.allclose(found.entropy, expected, atol=1e-5)
    assert bool((found.mutual_information > 0).all())
    assert bool((found.mutual_information < found.entropy).all())


def test_deterministic_part_runs_once() -> None:
    net = Functional().eval()
    with torch.no_grad():
        MCDropout(net, 30)(torch.randn(7, 4))
    assert net.rows_in_prefix == 7


@pytest.mark.parametrize("max_batch", [1, 3, 16, 1000])
def test_curve_comes_from_one_set_of_passes(max_batch: int) -> None:
    net = Functional().eval()
    mc = MCDropout(net, 10, max_batch=max_batch)
    x = torch.randn(3, 4)
    with torch.no_grad():
        curve = mc.curve(x, [1, 4, 10], generator=_generator(1))
        whole = mc(x, generator=_generator(1))
    assert list(curve) == [1, 4, 10]
    assert torch.equal(curve[10], whole)
    assert all(torch.allclose(p.sum(1), torch.ones(3)) for p in curve.values())
    assert not torch.allclose(curve[1], curve[10])


def test_reproducible_and_leaves_no_trace() -> None:
    net = Functional().train()
    net.norm.eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    mc, x = MCDropout(net, 5), torch.randn(4, 4)
    state = torch.get_rng_state()
    first, second = (mc(x, generator=_generator(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, mc(x, generator=_generator(4)))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert net.training
    assert not net.norm.training


def test_dense_logits_and_gradients() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Dropout2d(0.5), nn.Conv2d(4, 2, 1))
    x = torch.randn(2, 3, 5, 6, requires_grad=True)
    found = MCDropout(net, 4).predict(x)
    assert found.probs.shape == (2, 2, 5, 6)
    assert found.entropy.shape == (2, 5, 6)
    found.probs[:, 0].sum().backward()
    assert x.grad is not None
    assert float(x.grad.abs().sum()) > 0


def test_no_dropout_is_said() -> None:
    with pytest.raises(ValueError, match=r"no active dropout.*add_dropout"):
        MCDropout(nn.Linear(2, 2))(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="no active dropout"):
        MCDropout(Functional(rate=0.0))(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="samples must be at least 1"):
        MCDropout(nn.Linear(2, 2), 0)


def test_deep_ensemble_averages_probabilities() -> None:
    members = [nn.Linear(4, 3), nn.Linear(4, 3), MCDropout(Functional(), 3)]
    x = torch.randn(5, 4)
    with torch.no_grad():
        probs = [members[0](x).softmax(1), members[1](x).softmax(1)]
        assert torch.allclose(DeepEnsemble(members[:2])(x), (probs[0] + probs[1]) / 2)
        assert torch.allclose(DeepEnsemble(members)(x).sum(1), torch.ones(5))
        curve = DeepEnsemble(members[:2]).curve(x)
    assert torch.allclose(curve[1], probs[0])
    assert torch.allclose(curve[2], (probs[0] + probs[1]) / 2)
    with pytest.raises(ValueError, match="at least one network"):
        DeepEnsemble([])
