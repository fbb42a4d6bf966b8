"""Networks and ensembles back from run directories: the run's own predictions, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.data import load_data
from sfumato.engine import (
    RunConfig,
    RunDirectory,
    load_ensemble,
    load_network,
    load_predictor,
    parse,
    run,
)
from sfumato.predictions import MCDropout

RESNET = {"name": "resnet", "depth": 8, "width": 4}
Train = Callable[..., RunDirectory]


@pytest.fixture
def trained(tmp_path: Path, tiny: dict[str, Any]) -> Train:
    def train(**changes: Any) -> RunDirectory:
        tiny["train"] |= {"epochs": 1}
        return run(parse(RunConfig, {**tiny, **changes}), tmp_path, show=False)

    return train


@pytest.fixture
def images(tiny: dict[str, Any]) -> torch.Tensor:
    return load_data(tiny["data"]).test.images


def test_logits_are_those_of_the_run(trained: Train, images: torch.Tensor) -> None:
    done = trained()
    network = load_network(done.path)
    assert not network.training
    with torch.no_grad():
        # The run's batches are of 32; other batches may sum in another order.
        logits = torch.cat([network(part) for part in images.split(32)])
        floats = network(images.double().div(255).float())
    expected = torch.from_numpy(done.predictions("test")["logits"])
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)
    torch.testing.assert_close(floats, expected, rtol=1e-3, atol=1e-4)
    assert network.classes[0] == "disc"
    assert network.facts.image_size == (16, 16)


def test_torchvision_network_with_smoothing_and_dropout(
    trained: Train, tiny: dict[str, Any]
) -> None:
    tiny["data"] |= {"size": 32}
    done = trained(model={"name": "torchvision:resnet18", "smooth": True, "dropout": 0.1})
    with torch.no_grad():
        logits = load_network(done)(load_data(tiny["data"]).test.images[:32])
    expected = done.predictions("test")["logits"][:32]
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_ensemble_is_the_mean_of_its_members(trained: Train, images: torch.Tensor) -> None:
    runs = [trained(seed=seed) for seed in (0, 1)]
    with torch.no_grad():
        found = load_ensemble([done.path for done in runs])(images)
    logits = [done.predictions("test")["logits"].astype(np.float64) for done in runs]
    powers = [np.exp(each - each.max(1, keepdims=True)) for each in logits]
    expected = np.mean([each / each.sum(1, keepdims=True) for each in powers], axis=0)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_ensemble_of_dropout_networks_samples_masks(trained: Train, images: torch.Tensor) -> None:
    model, predict = {**RESNET, "dropout": 0.5}, {"mc_dropout": 3}
    runs = [trained(seed=seed, model=model, predict=predict) for seed in (0, 1)]
    predictor = load_predictor(runs[0])
    assert isinstance(predictor, MCDropout)
    assert predictor.samples == 3
    ensemble = load_ensemble(runs)
    with torch.no_grad():
        first, second = ensemble(images[:8]), ensemble(images[:8])
    assert not torch.equal(first, second)
    torch.testing.assert_close(first.sum(1), torch.ones(8))


def test_what_can_not_be_loaded_says_why(
    trained: Train, tiny: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match="pass the directory of one run"):
        load_network(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="at least one run directory"):
        load_ensemble([])
    done = trained()
    with pytest.raises(ValueError, match=r"images must be \(N, 3, H, W\), got \(1, 1, 16, 16\)"):
        load_network(done)(torch.zeros(1, 1, 16, 16))
    with pytest.raises(TypeError, match="uint8 or floating point"):
        load_network(done)(torch.zeros(1, 3, 16, 16, dtype=torch.int64))
    (done.checkpoint / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has the run been trained"):
        load_network(done)
