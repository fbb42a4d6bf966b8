"""Folded passes against passes one by one, exactly: the same masks must give the same logits."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from sfumato.predictions import MCDropout, sampling
from sfumato.predictions.sampling import FoldedSampling, FoldingError, _folded_logits

SAMPLES = 3


class Net(nn.Module):
    """A hidden layer as wide as the batch, and a body that a test gives."""

    def __init__(self, body: Callable[[Net, Tensor], Tensor], width: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 3)
        self.register_buffer("table", torch.randn(width, width))
        self.token = nn.Parameter(torch.randn(1, width))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self, self.first(x)))


def _drop(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, training=False)


def _residual(net: Net, x: Tensor) -> Tensor:
    return x + net.second(_drop(x))


def _nested_residual(net: Net, x: Tensor) -> Tensor:
    inner = x + _drop(net.second(_drop(x)).relu())
    return torch.cat([x, inner, torch.zeros_like(x)], 1).unflatten(1, (3, -1)).sum(1)


def _keyword_arguments(net: Net, x: Tensor) -> Tensor:
    return torch.add(input=_drop(x), other=x) + torch.cat(tensors=[x, _drop(x)], dim=1)[:, -4:]


def _in_place_module(net: Net, x: Tensor) -> Tensor:
    nn.Dropout(0.5, inplace=True)(x)
    return net.second(x)


def _in_place_alias(net: Net, x: Tensor) -> Tensor:
    dropped = nn.Dropout(0.5, inplace=True)(x)
    return x + dropped


def _in_place_add(net: Net, x: Tensor) -> Tensor:
    x.add_(_drop(net.second(x)))
    return x.relu_()


def _in_place_operator(net: Net, x: Tensor) -> Tensor:
    kept = x
    x += _drop(net.second(x))
    return kept


def _assignment(net: Net, x: Tensor) -> Tensor:
    x[:, :2] = _drop(net.second(x))[:, :2]
    return x


def _part_of_a_tensor(net: Net, x: Tensor) -> Tensor:
    x[:, :2].add_(_drop(net.second(x))[:, :2])
    return x


def _part_operator(net: Net, x: Tensor) -> Tensor:
    x[:, :2] += _drop(net.second(x))[:, :2]
    return x


def _weights_by_hand(net: Net, x: Tensor) -> Tensor:
    return _drop(x) @ net.second.weight.t() + torch.cdist(_drop(x), net.table * 2.0)


def _token_for_each_image(net: Net, x: Tensor) -> Tensor:
    token = net.token.expand(len(x), -1)
    return torch.stack([token, _drop(x)], 1).mean(1)


def _broadcast_token(net: Net, x: Tensor) -> Tensor:
    return _drop(x) + net.token


def _weight_dropout(net: Net, x: Tensor) -> Tensor:
    return F.linear(x, _drop(net.second.weight)) + _drop(x)


def _batch_second(net: Net, x: Tensor) -> Tensor:
    sequence = _drop(torch.stack([x, x * 2, x * 3]))  # (L, B, D)
    return sequence.sum(0) + _drop(x)


def _old_batch_size(net: Net, x: Tensor) -> Tensor:
    rows = len(x)
    return _drop(x.view(rows, 2, 2)).reshape(rows, -1)[:, :4]


def _other_dropouts(net: Net, x: Tensor) -> Tensor:
    maps = x.view(len(x), 2, 2)
    x = F.dropout1d(maps, 0.5, training=False).flatten(1) + torch.dropout(x, 0.5, train=False)
    x = x + F.dropout2d(x[:, :, None, None], 0.5, False)[..., 0, 0]
    x = x + F.dropout3d(x[:, :, None, None, None], 0.5, False)[..., 0, 0, 0]
    return F.alpha_dropout(x, 0.5) + F.feature_alpha_dropout(x, 0.5, False)


FOLDABLE = [
    _residual,
    _nested_residual,
    _keyword_arguments,
    _in_place_module,
    _in_place_alias,
    _in_place_add,
    _in_place_operator,
    _assignment,
    _weights_by_hand,
    _token_for_each_image,
    _broadcast_token,
    _other_dropouts,
]
ONE_BY_ONE = [_part_of_a_tensor, _part_operator, _weight_dropout, _batch_second, _old_batch_size]


class _Half:
    """In place of randomness: row r of sample s loses its units where (r + s + unit) is odd."""

    def __init__(self, batch: int) -> None:
        self.batch, self.sample = batch, 0

    def __call__(self, x: Tensor, p: float, training: bool, inplace: bool = False) -> Tensor:
        rows = torch.arange(len(x))
        sample = rows // self.batch if len(x) > self.batch else torch.tensor(self.sample)
        start = (rows % self.batch + sample).view(-1, *[1] * (x.ndim - 1))
        units = torch.arange(x[0].numel()).view(x.shape[1:])
        mask = 2.0 * ((start + units) % 2 == 0)
        return x.mul_(mask) if inplace else x * mask


def _assert_folds(model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded logits equal those of separate passes, given masks known for each row and sample."""
    half = _Half(len(x))
    known = dict.fromkeys(sampling.DROPOUTS, half)
    monkeypatch.setattr(sampling, "DROPOUTS", known)
    with torch.no_grad():
        folded = _folded_logits(model, x.clone(), SAMPLES)
        for half.sample in range(SAMPLES):
            with FoldedSampling(len(x), 1):
                alone = model(x.clone())
            rows = folded[half.sample * len(x) : (half.sample + 1) * len(x)]
            assert float((rows - alone).abs().max()) < 1e-5 * float(folded.abs().max())
    change = (folded[: len(x)] - folded[len(x) : 2 * len(x)]).abs().max()
    assert float(change) > 1e-3 * float(folded.abs().max())


@pytest.mark.parametrize("batch", [1, 2, 4, 5])
@pytest.mark.parametrize("body", FOLDABLE, ids=lambda body: body.__name__)
def test_folded_equals_one_by_one(
    body: Callable[[Net, Tensor], Tensor], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the batch is as long as the weights (4)."""
    _assert_folds(Net(body).eval(), torch.randn(batch, 4), monkeypatch)


@pytest.mark.parametrize("batch", [2, 4])
@pytest.mark.parametrize("body", ONE_BY_ONE, ids=lambda body: body.__name__)
def test_what_cannot_be_folded_is_sampled_one_by_one(
    body: Callable[[Net, Tensor], Tensor], batch: int
) -> None:
    model, x = Net(body).eval(), torch.randn(batch, 4)
    with torch.no_grad():
        with pytest.raises(FoldingError):
            _folded_logits(model, x, SAMPLES)
        mc = MCDropout(model, SAMPLES)
        first, again = (mc(x, generator=torch.Generator().manual_seed(1)) for _ in range(2))
        found = MCDropout(model, 30).predict(x)
    assert torch.equal(first, again)
    assert torch.allclose(found.probs.sum(1), torch.ones(batch))
    assert bool((found.variance.sum(1) > 0).all())


def test_errors_of_the_model_itself_are_its_own() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        MCDropout(Net(_residual), 3)(torch.randn(2, 5))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vgg11": lambda: torchvision.models.vgg11(num_classes=5),
    "googlenet": lambda: torchvision.models.googlenet(
        num_classes=5, aux_logits=False, init_weights=False
    ),
    "mobilenet_v3_small": lambda: torchvision.models.mobilenet_v3_small(num_classes=5),
    "efficientnet_b0": lambda: torchvision.models.efficientnet_b0(num_classes=5),
}


def _use_batch_statistics(model: nn.Module) -> None:
    """Untrained batch norm lets the signal fade until dropout makes no difference."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.randn(8, 3, 32, 32))
    model.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_torchvision_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = NETWORKS[name]().eval()
    if name == "vgg11":  # its classifier has 120 million weights; the structure is what counts
        model.classifier[0] = nn.Linear(512 * 49, 64)
        model.classifier[3], model.classifier[6] = nn.Linear(64, 64), nn.Linear(64, 5)
    _use_batch_statistics(model)
    calls: list[int] = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0])))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        probs = MCDropout(model, SAMPLES)(x)
    assert calls == [2], "the convolutions before the first dropout run once"
    assert torch.allclose(probs.sum(1), torch.ones(2))
    _assert_folds(model, x, monkeypatch)


def test_every_dropout_of_a_transformer_layer_but_attention() -> None:
    """`nn.MultiheadAttention` keeps its own dropout off; the other three are on."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)).eval()
    with torch.no_grad(), FoldedSampling(2, 1) as mode:
        model(torch.randn(2, 3, 8))
    assert mode.found == 3
    with torch.no_grad():
        probs = MCDropout(model, 4)(torch.randn(2, 3, 8))
    assert probs.shape == (2, 3)
    attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).eval()
    with torch.no_grad(), FoldedSampling(2, 1) as mode:
        attention(*[torch.randn(2, 3, 8)] * 3)
    assert mode.found == 0


def test_recurrent_state_made_in_the_pass() -> None:
    def body(net: Net, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 4)
        dropped = _drop(x)
        return torch.where(dropped > 0, dropped, state) + net.second(state)

    x = torch.randn(4, 4)
    with torch.no_grad():
        assert _folded_logits(Net(body).eval(), x, SAMPLES).shape == (12, 3)


def test_channels_last_stays() -> None:
    seen: list[bool] = []
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(0.5), nn.Conv2d(8, 2, 1), nn.Flatten())
    net.to(memory_format=torch.channels_last)
    net[2].register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        MCDropout(net, 4)(x)
    assert seen == [True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_accumulates_in_single_precision(dtype: torch.dtype) -> None:
    net = Net(_residual).eval()
    x = torch.randn(3, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        half = MCDropout(net, 2000)(x, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        full = MCDropout(net, 2000)(x, generator=torch.Generator().manual_seed(0))
    assert half.dtype == torch.float32
    assert torch.allclose(half, full, atol=0.02)
    assert torch.allclose(half.sum(1), torch.ones(3), atol=1e-5)


def test_half_precision_model() -> None:
    net = copy.deepcopy(Net(_residual)).to(torch.bfloat16).eval()
    with torch.no_grad():
        found = MCDropout(net, 50).predict(torch.randn(3, 4, dtype=torch.bfloat16))
    assert found.probs.dtype == torch.float32
    assert torch.allclose(found.probs.sum(1), torch.ones(3), atol=1e-5)


def test_empty_batch_and_no_sizes() -> None:
    mc = MCDropout(Net(_residual), 3)
    assert mc(torch.zeros(0, 4)).shape == (0, 3)
    assert mc.predict(torch.zeros(0, 4)).entropy.shape == (0,)
    with pytest.raises(ValueError, match="at least one ensemble size"):
        mc.curve(torch.zeros(1, 4), [])


def test_model_that_gives_more_than_logits() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return F.dropout(x), x

    with pytest.raises(ValueError, match=r"logits \(B, C, \.\.\.\) alone.*tuple.*picks the logits"):
        MCDropout(Pair(), 3)(torch.ones(2, 4))
    with pytest.raises(ValueError, match="whose batch axis follows its input"):
        MCDropout(nn.Sequential(nn.Dropout(), nn.Flatten(0), nn.Unflatten(0, (1, -1))), 3)(
            torch.ones(2, 4)
        )
