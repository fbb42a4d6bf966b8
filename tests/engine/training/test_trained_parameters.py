"""Which parameters are trained: frozen ones stay, the final layer has a rate of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato._core.seeds import fold_seed
from sfumato.engine import ConfigError, RunConfig, TrainConfig, load_network, parse, run
from sfumato.engine.preflight import check_runs
from sfumato.engine.training.loop import frozen_parameters, parameter_groups
from sfumato.models import resnet


def test_frozen_modules_keep_weights_and_statistics(tmp_path: Path, tiny: dict[str, Any]) -> None:
    freeze = ["stem", "stages.[01]", "*.bias"]
    train = {"epochs": 1, "batch_size": 32, "freeze": freeze}
    done = run(parse(RunConfig, {**tiny, "train": train}), tmp_path, show=False)
    torch.manual_seed(fold_seed(0, "initial weights"))
    before = resnet(8, num_classes=10, width=4).state_dict()
    after = load_network(done).network.state_dict()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert not any(key.startswith(("stem", "stages.0", "stages.1")) for key in changed)
    assert not any(key.endswith("bias") for key in changed)
    assert {"head.linear.weight", "stages.2.0.branch.norm1.running_mean"} <= changed


def test_the_final_layer_has_its_own_rate(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """With a rate of next to nothing elsewhere, only the final layer moves, by its own schedule."""
    train = {"epochs": 1, "batch_size": 32, "learning_rate": 1e-12, "head_learning_rate": 0.1}
    done = run(parse(RunConfig, {**tiny, "train": train}), tmp_path, show=False)
    torch.manual_seed(fold_seed(0, "initial weights"))
    before = dict(resnet(8, num_classes=10, width=4).named_parameters())
    after = dict(load_network(done).network.named_parameters())
    moved = {key for key in before if (before[key] - after[key]).abs().max() > 1e-6}
    assert moved == {"head.linear.weight", "head.linear.bias"}


def test_groups_of_one_rate_are_what_they_were() -> None:
    network = resnet(8, num_classes=10, width=4)
    every = list(network.parameters())
    assert all(a is b for a, b in zip(parameter_groups(network, TrainConfig()), every, strict=True))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"freeze": ["steam"]}, "train.freeze: 'steam' matches no parameter .* modules are stem"),
        ({"freeze": ["*"]}, r"freezes all \d+ parameters, .* leave the head out, which is head"),
        (
            {"freeze": ["head"], "head_learning_rate": 0.1},
            "head.linear.bias, head.linear.weight, which train.freeze freezes",
        ),
    ],
)
def test_impossible_wishes_are_found_before_training(
    train: dict[str, Any], message: str, tiny: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_runs([parse(RunConfig, {**tiny, "train": train})])


def test_patterns_name_parameters_or_modules() -> None:
    network = resnet(8, num_classes=10, width=4)
    assert frozen_parameters(network, ["head.linear"]) == {"head.linear.weight", "head.linear.bias"}
    assert frozen_parameters(network, ["head.linear.bias"]) == {"head.linear.bias"}
    assert frozen_parameters(network, []) == set()
