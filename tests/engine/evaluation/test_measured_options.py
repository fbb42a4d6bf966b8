"""Options of `evaluate`: number of bins, kinds of temperature, AlexNet's table, training set."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato.corruptions import perturb
from sfumato.corruptions.sequences import frame_count
from sfumato.data import load_data
from sfumato.engine import ConfigError, RunConfig, load_network, parse, run
from sfumato.engine.runs.directory import RunDirectory
from sfumato.metrics import alexnet_scores, calibration_error, relative_confidence
from sfumato.predictions import TemperatureScaler

DATA = {"name": "scenes", "size": 16, "train": 64, "validation": 30, "test": 24}
WANTED = {
    "resamples": 4,
    "bins": [10, 25],
    "temperature": "both",
    "corruptions": ["fog", "brightness"],
    "severities": [1, 5],
    "perturbations": ["translate"],
    "alexnet": "cifar10",
    "train": True,
}


def _config(**changes: Any) -> RunConfig:
    content = {
        "data": DATA,
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "train": {"epochs": 1, "batch_size": 16},
        "evaluate": {"resamples": 0},
        **changes,
    }
    return parse(RunConfig, content, "test")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    config = _config(evaluate=WANTED, augment={"name": "basic", "crop": 2})
    with warnings.catch_warnings():
        # Of a network that has learned next to nothing the temperature ends at its bound.
        warnings.filterwarnings("ignore", message="the temperature ended")
        return run(config, tmp_path_factory.mktemp("run"), show=False)


def _arrays(directory: RunDirectory, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    found = directory.read_predictions(name)
    return found.logits, found.labels


def test_bins(measured: RunDirectory) -> None:
    logits, labels = _arrays(measured, "test")
    test, probs = measured.metrics()["test"], logits.softmax(1)
    for key, bins, norm in (("ece", 10, "l1"), ("ece_25", 25, "l1"), ("mce_25", 25, "max")):
        expected = calibration_error(probs, labels, num_bins=bins, norm=norm)
        assert test[key] == pytest.approx(float(expected), abs=1e-6)
        assert f"{key}_interval" in test
    assert "ece_10" not in test
    assert len(test["reliability"]["counts"]) == 10


@pytest.mark.filterwarnings("ignore:the temperature ended")
def test_temperature_by_both(measured: RunDirectory) -> None:
    found, held_out = measured.metrics(), _arrays(measured, "validation")
    logits, labels = _arrays(measured, "test")
    for split, method in (("scaled", "nll"), ("scaled_by_ece", "ece")):
        scaler = TemperatureScaler(method, num_bins=10)
        scaler.fit(logits=held_out[0], target=held_out[1])
        assert found[split]["temperature"] == pytest.approx(scaler.temperature)
        expected = calibration_error(scaler(logits).softmax(1), labels, num_bins=10)
        assert found[split]["ece"] == pytest.approx(float(expected), abs=1e-6)
        assert found[split]["corrupted"]["error"] == found["corrupted"]["error"]


def test_relative_to_alexnet(measured: RunDirectory) -> None:
    """Eq. (35): sums over severities, ratio, mean over types."""
    found = measured.metrics()["corrupted"]
    expected = 0.0
    for name, row in zip(found["names"], found["cells"]["error"], strict=True):
        base = alexnet_scores("cifar10", "error", names=[name])[0, [0, 4]]
        expected += sum(row) / float(base.sum()) / 2
    assert found["relative_to_alexnet"]["mean_ce"] == pytest.approx(expected)


def test_relative_confidence(measured: RunDirectory) -> None:
    logits, labels = _arrays(measured, "test")
    expected = float(relative_confidence(logits.softmax(1), labels).double().mean())
    assert measured.metrics()["test"]["relative_confidence"] == pytest.approx(expected)
    found = measured.metrics()["perturbed"]["cells"]["translate"]
    assert 0 < found["relative_confidence"] <= 1
    test = load_data(DATA).test
    frames = perturb(test.images[:3], "translate")
    with torch.no_grad():
        probs = load_network(measured).eval()(frames.flatten(0, 1) / 255).softmax(1)
    expected = relative_confidence(probs.unflatten(0, (3, -1)), test.labels[:3])
    torch.testing.assert_close(torch.tensor(found["along"]), expected, rtol=1e-3, atol=1e-5)
    assert [len(row) for row in found["along"]] == [frame_count("translate")] * 3


def test_training_set_is_augmented(measured: RunDirectory) -> None:
    found, train = measured.metrics()["train"], load_data(measured.config()["data"]).train
    assert found["samples"] == len(train)
    with torch.no_grad():
        plain = load_network(measured).eval()(train.images / 255)
    loss = float(torch.nn.functional.cross_entropy(plain, train.labels))
    assert found["nll"] == pytest.approx(loss, rel=0.3)
    assert found["nll"] != pytest.approx(loss, rel=1e-5)


def test_without_augmentation_it_is_the_plain_set(tmp_path: Path) -> None:
    directory = run(_config(evaluate={"resamples": 0, "train": True}), tmp_path, show=False)
    train = load_data(DATA).train
    with torch.no_grad():
        logits = load_network(directory).eval()(train.images / 255)
    loss = float(torch.nn.functional.cross_entropy(logits, train.labels))
    assert directory.metrics()["train"]["nll"] == pytest.approx(loss, rel=1e-4)


def test_names_of_older_runs_stay() -> None:
    usual = _config(evaluate={"resamples": 0, "bins": [15], "temperature": True})
    assert not {"bins", "train", "alexnet"} & set(usual.model_dump()["evaluate"])
    assert usual.model_dump()["evaluate"]["temperature"] is True


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"bins": 0}, "bins must be different numbers of 1 or more"),
        ({"bins": [10, 10]}, "bins must be different"),
        ({"alexnet": "cifar10"}, "give corruptions"),
        (
            {"alexnet": "cifar10", "corruptions": ["speckle_noise"]},
            "no AlexNet error of 'speckle_noise' is known",
        ),
        ({"temperature": "mse"}, "temperature"),
    ],
)
def test_bad_input(evaluate: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _config(evaluate=evaluate)


def test_label_maps_have_one_number_of_bins() -> None:
    content = {"task": "segment", "data": "scene_streams", "model": "unet"}
    with pytest.raises(ConfigError, match="one number of bins"):
        parse(RunConfig, {**content, "evaluate": {"bins": [10, 15]}})
