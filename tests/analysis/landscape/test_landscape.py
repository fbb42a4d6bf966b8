"""Loss landscapes: laws of filter normalisation, batch norm, resuming, sequences, figures."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.analysis import LossLandscape, loss_landscape, plot_loss_landscapes
from sfumato.analysis.landscape import filter_direction
from sfumato.models import resnet


@pytest.fixture
def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
    )


@pytest.fixture
def data() -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(6, 2, 6, 6), torch.randint(3, (6,))) for _ in range(2)]


def losses(network: nn.Module, data: list, **options: object) -> Tensor:
    return loss_landscape(network, data, points=5, **options).losses


def test_filters_of_a_direction_are_as_long_as_the_weights(network: nn.Module) -> None:
    direction = filter_direction(network)
    assert set(direction) == {"0.weight", "2.weight", "5.weight"}  # no biases
    for name, step in direction.items():
        weight = network.get_parameter(name).detach().numpy()
        for filter_step, filter_weight in zip(step.numpy(), weight, strict=True):
            assert np.linalg.norm(filter_step) == pytest.approx(np.linalg.norm(filter_weight))


def test_released_axis(network: nn.Module) -> None:
    step = filter_direction(network, normalisation="released")["0.weight"]
    weight = network[0].weight.detach()
    torch.testing.assert_close(step.norm(dim=0), weight.norm(dim=0))
    assert not torch.allclose(step.flatten(1).norm(dim=1), weight.flatten(1).norm(dim=1))


def test_a_dead_filter_does_not_move(network: nn.Module) -> None:
    with torch.no_grad():
        network[0].weight[1] = 0
    assert (filter_direction(network)["0.weight"][1] == 0).all()


def test_directions_are_shared_by_name_and_shape(network: nn.Module) -> None:
    other = copy.deepcopy(network)
    other[5] = nn.Linear(20, 7)
    mine, theirs = filter_direction(network), filter_direction(other)
    torch.testing.assert_close(mine["2.weight"], theirs["2.weight"])
    assert not torch.equal(mine["2.weight"], filter_direction(network, number=1)["2.weight"])
    assert not torch.equal(mine["2.weight"], filter_direction(network, seed=1)["2.weight"])


def test_rescaling_layers_of_a_relu_network_changes_nothing(network: nn.Module, data: list) -> None:
    scaled = copy.deepcopy(network)
    with torch.no_grad():
        scaled[0].weight *= 10
        scaled[0].bias *= 10
        scaled[2].weight /= 10
    torch.testing.assert_close(losses(scaled, data), losses(network, data), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        losses(scaled, data, normalisation="released"),
        losses(network, data, normalisation="released"),
        rtol=1e-4,
        atol=1e-5,
    )


def test_rescaling_single_filters_changes_the_released_form_only(
    network: nn.Module, data: list
) -> None:
    scaled = copy.deepcopy(network)
    factors = torch.tensor([0.1, 1.0, 4.0, 10.0])
    with torch.no_grad():
        scaled[0].weight *= factors[:, None, None, None]
        scaled[0].bias *= factors
        scaled[2].weight /= factors[:, None, None]
    first = filter_direction(network)["0.weight"]
    torch.testing.assert_close(
        filter_direction(scaled)["0.weight"], first * factors[:, None, None, None]
    )
    options = {"normalisation": "released"}
    assert not torch.allclose(losses(scaled, data, **options), losses(network, data, **options))


def test_values_by_hand(network: nn.Module, data: list) -> None:
    found = loss_landscape(network, data, points=3, extent=0.5, weight_decay=0.1)
    assert found.losses.shape == (1, 3, 3)
    assert found.coordinates.tolist() == [-0.5, 0.0, 0.5]
    moved = copy.deepcopy(network)
    first, second = (filter_direction(network, number=number) for number in (0, 1))
    with torch.no_grad():
        for name, weight in moved.named_parameters():
            if name in first:
                weight += 0.5 * first[name] - 0.5 * second[name]
        nll = torch.stack([F.cross_entropy(moved(x), y) for x, y in data]).mean()
        square = sum(weight.square().sum() for weight in moved.parameters())
    torch.testing.assert_close(found.losses[0, 2, 0].float(), nll + 0.05 * square)


def test_batches_are_weighted_by_size_and_sub_sampled(network: nn.Module) -> None:
    x, y = torch.randn(7, 2, 6, 6), torch.randint(3, (7,))
    whole = losses(network, [(x, y)], dimensions=1)
    parts = [(x[:5], y[:5]), (x[5:], y[5:])]
    torch.testing.assert_close(losses(network, parts, dimensions=1), whole)
    first = losses(network, parts, dimensions=1, batches=1)
    torch.testing.assert_close(first, losses(network, parts[:1], dimensions=1))
    dicts = [{"image": x, "label": y}]
    torch.testing.assert_close(losses(network, dicts, dimensions=1), whole)


def test_batch_norm_statistics_kept_or_estimated() -> None:
    network = resnet(8, num_classes=3, width=4)
    data = [(3 * torch.randn(16, 3, 8, 8) + 5, torch.randint(3, (16,)))]
    state = {name: value.clone() for name, value in network.state_dict().items()}
    kept = losses(network, data, dimensions=1)
    estimated = losses(network, data, dimensions=1, batch_norm="estimate")
    for name, value in network.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert network.training
    assert not torch.allclose(kept, estimated)
    with torch.no_grad():  # at the weights, a batch with its own statistics
        value = F.cross_entropy(network(data[0][0]), data[0][1])
    # running variances are unbiased, those inside a training pass are not
    assert float(estimated[0, 2]) == pytest.approx(float(value), abs=0.05)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {module.momentum for module in norms} == {0.1}


def test_sequences_share_directions_and_fluctuate(data: list) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(72, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    random = losses(network, data, dimensions=1, samples=3)
    assert random.shape == (3, 5)
    assert not torch.allclose(random[0], random[1])
    assert torch.equal(random, losses(network, data, dimensions=1, samples=3))
    fixed = losses(network, data, dimensions=1, samples=2, mode="eval")
    assert torch.equal(fixed[0], fixed[1])


def test_goes_on_where_it_stopped_to_the_same_numbers(data: list, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(72, 3))
    path = tmp_path / "deep" / "landscape.npz"
    whole = losses(network, data)

    def stop(done: int, total: int) -> None:
        assert total == 25
        if done == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        losses(network, data, path=path, progress=stop)
    with np.load(path, allow_pickle=False) as arrays:
        assert int(np.isfinite(arrays["losses"]).sum()) == 9
    seen: list[int] = []
    found = losses(network, data, path=path, progress=lambda done, total: seen.append(done))
    assert seen == list(range(10, 26))
    assert torch.equal(found, whole)
    assert [file.name for file in path.parent.iterdir()] == ["landscape.npz"]
    with pytest.raises(ValueError, match="other weights or settings"):
        losses(network, data, path=path, extent=2.0)
    with torch.no_grad():
        network[2].weight += 0.1
    with pytest.raises(ValueError, match="other weights or settings"):
        losses(network, data, path=path)


def test_figures() -> None:
    coordinates = torch.linspace(-1, 1, 7).double()
    bowl = coordinates[:, None].square() * 4 + coordinates.square()
    bowl[0, 0] = torch.nan
    plane = LossLandscape(coordinates, bowl[None])
    figure = plot_loss_landscapes({"a": plane, "b": plane})
    figure.canvas.draw()
    assert [axis.get_title() for axis in figure.axes][:3:2] == ["a", "b"]
    line = LossLandscape(coordinates, torch.stack([bowl[3], bowl[3] + 0.1]))
    figure = plot_loss_landscapes({"line": line}, ceiling=2.0)
    figure.canvas.draw()
    assert figure.axes[0].get_ylim()[1] == 2.0
    with pytest.raises(ValueError, match="landscapes must hold at least one"):
        plot_loss_landscapes({})
    with pytest.raises(ValueError, match="all two dimensions"):
        plot_loss_landscapes({"a": plane, "b": line})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimensions": 3}, "dimensions must be one of"),
        ({"points": 1}, "points must be at least 2"),
        ({"extent": 0.0}, "extent must be in"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"weight_decay": -1.0}, "weight_decay must be in"),
        ({"batch_norm": "drop"}, "batch_norm must be one of"),
        ({"normalisation": "layer"}, "normalisation must be one of"),
        ({"mode": "off"}, "mode must be one of"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"batches": 0}, "batches must be at least 1"),
    ],
)
def test_bad_input(network: nn.Module, data: list, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss_landscape(network, data, **change)
