"""Averages of weights and the best epoch: what they are, that they predict, that they resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from sfumato._core.files import read_json
from sfumato.engine import (
    ConfigError,
    RunConfig,
    RunDirectory,
    TrainConfig,
    load_network,
    parse,
    run,
)
from sfumato.engine.training.averages import AveragedWeights, renewing_statistics

STEPS = 3  # 96 images in batches of 32


def _run(tiny: dict[str, Any], root: Path, epochs: int = 3, **train: Any) -> RunDirectory:
    train = {"epochs": epochs, "batch_size": 32, **train}
    return run(parse(RunConfig, {**tiny, "train": train}), root, show=False)


def _recorded(tiny: dict[str, Any], root: Path, **train: Any) -> tuple[RunDirectory, list[Any]]:
    """A run, and its parameters after each step."""
    found: list[list[Tensor]] = []

    def record(optimizer: Any, *_: Any) -> None:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        found.append([p.detach().double().clone() for p in weights])

    hook = register_optimizer_step_post_hook(record)
    try:
        return _run(tiny, root, **train), found
    finally:
        hook.remove()


def _parameters(done: RunDirectory) -> list[Tensor]:
    return [p.detach().double() for p in load_network(done).network.parameters()]


def test_an_exponential_average_predicts(tmp_path: Path, tiny: dict[str, Any]) -> None:
    done, steps = _recorded(tiny, tmp_path, ema=0.7)
    expected = steps[0]
    for count, weights in enumerate(steps[1:], 1):
        decay = min(0.7, (1 + count) / (10 + count))
        expected = [decay * e + (1 - decay) * w for e, w in zip(expected, weights, strict=True)]
    torch.testing.assert_close(_parameters(done), expected, rtol=1e-5, atol=1e-6)
    assert read_json(done.path / "kept.json") == {"epoch": 2, "ema": 0.7}
    # What the log validated is what the run has measured.
    measured, logged = done.metrics()["validation"]["nll"], done.log()[-1]["validation_nll"]
    assert measured == pytest.approx(logged, rel=1e-6)


def test_statistics_are_averaged_with_the_weights() -> None:
    """By hand, for one layer of batch normalisation: floats move, counters are copied."""
    layer = nn.BatchNorm1d(1)
    beside = AveragedWeights(TrainConfig(ema=0.9))
    for mean in (1.0, 3.0):
        layer.running_mean = torch.tensor([mean])
        layer.num_batches_tracked = torch.tensor(int(mean))
        beside.after_step(layer)
    assert beside.average is not None
    decay = 2 / 11  # min(0.9, (1 + 1) / (10 + 1))
    torch.testing.assert_close(
        beside.average["running_mean"], torch.tensor([decay * 1 + (1 - decay) * 3])
    )
    assert int(beside.average["num_batches_tracked"]) == 3
    with beside.predicting(layer):
        assert float(layer.running_mean) < 3
    assert float(layer.running_mean) == 3


def test_halves_are_averaged_in_single_precision() -> None:
    beside = AveragedWeights(TrainConfig(ema=0.999))
    beside.after_step(nn.Linear(2, 2, dtype=torch.bfloat16))
    assert beside.average is not None
    assert beside.average["weight"].dtype == torch.float32


@pytest.mark.parametrize("by", ["accuracy", "scaled_nll"])
def test_the_best_epoch_predicts(by: str, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """At a rate that makes later epochs worse by luck: whichever it is, it is the log's."""
    done = _run(tiny, tmp_path, epochs=4, best=by, schedule="constant", learning_rate=0.3)
    values = [record[f"validation_{by}"] for record in done.log()]
    wanted = max(values) if by == "accuracy" else min(values)
    kept = read_json(done.path / "kept.json")
    assert kept == {"epoch": values.index(wanted), "by": by, "value": wanted}
    for name in ("accuracy", "nll"):
        logged = done.log()[kept["epoch"]][f"validation_{name}"]
        assert done.metrics()["validation"][name] == pytest.approx(logged, rel=1e-6)
    if by == "scaled_nll":
        assert all(r["validation_scaled_nll"] <= r["validation_nll"] + 1e-6 for r in done.log())


def test_a_mean_over_epochs_predicts_with_new_statistics(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    done, steps = _recorded(tiny, tmp_path, epochs=4, swa=2, schedule="constant")
    ends = steps[STEPS - 1 :: STEPS]
    expected = [(a + b) / 2 for a, b in zip(ends[2], ends[3], strict=True)]
    torch.testing.assert_close(_parameters(done), expected, rtol=1e-5, atol=1e-6)
    norm = load_network(done).network.get_submodule("stem.1")
    assert isinstance(norm, nn.BatchNorm2d)
    assert int(norm.num_batches_tracked or 0) == STEPS
    assert norm.momentum == 0.1
    assert read_json(done.path / "kept.json") == {"epoch": 3, "swa": 2}


def test_new_statistics_are_means_over_batches() -> None:
    layer = nn.BatchNorm1d(1)
    batches = torch.randn(3, 8, 1, generator=torch.Generator().manual_seed(0))
    with renewing_statistics(layer):
        for batch in batches:
            layer(batch)
    torch.testing.assert_close(layer.running_mean, batches.mean(1).mean(0))
    torch.testing.assert_close(layer.running_var, batches.var(1).mean(0))


def test_frozen_statistics_are_not_made_anew() -> None:
    frozen, trained = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    network = nn.Sequential(frozen, trained)
    network(torch.randn(8, 1) + 3)
    known = frozen.running_mean.clone()
    frozen.eval()
    with renewing_statistics(network):
        network(torch.randn(8, 1))
    assert torch.equal(frozen.running_mean, known)
    assert int(frozen.num_batches_tracked) == int(trained.num_batches_tracked) == 1


RESUMED = (
    {"ema": 0.9, "best": "nll", "sam": 0.05, "freeze": ["stem"], "head_learning_rate": 0.2},
    {"swa": 3},
)


@pytest.mark.parametrize("train", RESUMED, ids=["ema-best-sam-freeze-head", "swa"])
def test_a_run_that_was_stopped_ends_as_if_nothing_had_been(
    train: dict[str, Any], tmp_path: Path, tiny: dict[str, Any]
) -> None:
    tiny["model"] |= {"dropout": 0.2}
    tiny["augment"] = "fcr+mixup"
    whole = _run(tiny, tmp_path / "whole", epochs=4, **train)
    steps = 0

    def interrupt(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 2 * STEPS + 2:
            raise KeyboardInterrupt

    hook = register_optimizer_step_post_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        _run(tiny, tmp_path / "broken", epochs=4, **train)
    hook.remove()
    broken = _run(tiny, tmp_path / "broken", epochs=4, **train)
    files = [(d.checkpoint / "model.safetensors").read_bytes() for d in (whole, broken)]
    assert files[0] == files[1]
    assert (whole.path / "kept.json").read_bytes() == (broken.path / "kept.json").read_bytes()
    assert whole.metrics() == broken.metrics()


def test_keys_that_are_not_set_leave_names_alone(tiny: dict[str, Any]) -> None:
    later = {"freeze", "head_learning_rate", "ema", "swa", "best", "sam"}
    assert not later & parse(RunConfig, tiny).model_dump(mode="json")["train"].keys()
    train = {"ema": 0.9, "best": None, "freeze": []}
    assert later & TrainConfig(**train).model_dump().keys() == {"ema"}


@pytest.mark.parametrize(
    ("task", "train", "message"),
    [
        ("segment", {"best": "scaled_nll"}, "scaled_nll is for task: classify; segmentation"),
        ("detect", {"best": "nll"}, "a detector is not validated after each epoch; train.ema and"),
        ("detect", {"head_learning_rate": 0.1}, "a detector has several heads; leave it out"),
    ],
)
def test_what_a_task_does_not_have(
    task: str, train: dict[str, Any], message: str, tiny: dict[str, Any]
) -> None:
    others: dict[str, Any] = {
        "segment": {"data": "scene_streams", "model": "unet"},
        "detect": {"data": "scene_objects", "model": "faster_rcnn", "classifier": tiny},
    }
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {"task": task, **others[task], "train": train})


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"swa": 9, "epochs": 5}, r"swa \(9\) must be at most epochs \(5\)"),
        ({"swa": 2, "ema": 0.9}, "swa is a mean over the last 2 epochs, ema keeps other weights"),
        ({"swa": 2, "best": "nll"}, "swa is a mean over the last 2 epochs, best keeps other"),
        ({"ema": 1.0}, "train.ema: must be less than 1"),
        ({"best": "ece"}, "train.best: must be 'accuracy', 'nll' or 'scaled_nll'"),
        ({"sam": 0.0}, "train.sam: must be greater than 0"),
    ],
)
def test_what_does_not_go_together(
    train: dict[str, Any], message: str, tiny: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {**tiny, "train": train})
