"""Attacks, and changes in one band of frequencies, as parts of a run's evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato.corruptions import fgsm, frequency_mask, frequency_noise, pgd
from sfumato.corruptions.random_numbers import seeded_generator
from sfumato.data import load_data
from sfumato.engine import ConfigError, RunConfig, load_network, parse, run
from sfumato.engine.preflight import check_runs
from sfumato.report.columns import columns_of

DATA = {"name": "scenes", "size": 16, "train": 64, "validation": 20, "test": 24}
ATTACKS = {
    "fgsm": {"name": "fgsm", "epsilon": 0.01},
    "pgd l2": {"name": "pgd", "epsilon": 0.2, "norm": "l2", "steps": 2},
}
BANDS = {"frequencies": [0.1, 1.0], "noise": 0.3, "attack": {"name": "fgsm", "epsilon": 0.1}}


def _config(**evaluate: Any) -> RunConfig:
    content = {
        "data": DATA,
        "model": {"name": "resnet", "depth": 8, "width": 4, "dropout": 0.1},
        "train": {"epochs": 1, "batch_size": 16},
        "evaluate": {"resamples": 0, **evaluate},
    }
    return parse(RunConfig, content, "test")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    wanted = _config(attacks=ATTACKS, frequency=BANDS, corrupted_images=20, resamples=5)
    return run(wanted, tmp_path_factory.mktemp("run"), show=False)


def _clean(directory: Any) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The network in evaluation mode, which takes images in [0, 1], and what it is shown."""
    test = load_data(DATA).test
    return load_network(directory).eval(), test.images[:20] / 255, test.labels[:20]


def _error(network: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float((network(images).argmax(1) != labels).double().mean())


def test_attacks_are_those_of_the_functions(measured: Any) -> None:
    network, images, labels = _clean(measured)
    found = measured.metrics()["attacked"]
    with torch.no_grad():
        right = network(images).argmax(1) == labels
    attacked = {
        "fgsm": fgsm(network, images, labels, epsilon=0.01),
        "pgd l2": pgd(
            network,
            images,
            labels,
            epsilon=0.2,
            norm="l2",
            steps=2,
            generator=seeded_generator(0, "attack", "pgd"),
        ),
    }
    for title, changed in attacked.items():
        assert found[title]["error"] == pytest.approx(_error(network, changed, labels))
        with torch.no_grad():
            wrong = network(changed).argmax(1) != labels
        expected = float((right & wrong).sum() / right.sum())
        assert found[title]["success_rate"] == pytest.approx(expected)
        low, high = found[title]["success_rate_interval"]
        assert 0 <= low <= high <= 1
    assert found["pgd l2"]["nll"] > measured.metrics()["test"]["nll"]


def test_bands_are_those_of_the_functions(measured: Any) -> None:
    network, images, labels = _clean(measured)
    found = measured.metrics()["frequency"]
    noise, attack = [], []
    for frequency in (0.1 * math.pi, 1.0 * math.pi):
        generator = seeded_generator(0, "frequency", frequency)
        noisy = frequency_noise(images, frequency=frequency, std=0.3, generator=generator)
        noise.append(_error(network, noisy, labels))
        mask = frequency_mask(16, 16, frequency=frequency)
        attack.append(
            _error(network, fgsm(network, images, labels, epsilon=0.1, mask=mask), labels)
        )
    assert found["noise"]["cells"]["error"] == pytest.approx(noise)
    assert found["attack"]["cells"]["error"] == pytest.approx(attack)
    assert found["noise"]["error"] == pytest.approx(sum(noise) / 2)


def test_they_are_columns_of_every_table(measured: Any) -> None:
    found = {each.id: each for each in columns_of([measured.metrics()])}
    assert found["attacked.pgd l2.success_rate"].heading == "attacked pgd l2 success rate % ↓"
    assert found["frequency.noise.error"].is_main
    assert not found["frequency.noise.nll"].is_main


def test_stochastic_predictors_are_attacked_whole(tmp_path: Path) -> None:
    """The gradient goes through the mean over the masks, which one more pass changes little."""
    content = _config(attacks={"fgsm": ATTACKS["fgsm"]}).model_dump(mode="json")
    sampled = parse(RunConfig, {**content, "predict": {"mc_dropout": 2}})
    found = run(sampled, tmp_path, show=False).metrics()
    assert found["attacked"]["fgsm"]["nll"] > found["test"]["nll"]


def test_names_of_older_runs_stay() -> None:
    assert not {"attacks", "frequency"} & set(_config().model_dump()["evaluate"])


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"attacks": {"a": {"name": "fgsm", "epsilon": 0.1, "steps": 3}}}, "is for name: pgd"),
        ({"attacks": {"a.b": {"name": "fgsm", "epsilon": 0.1}}}, "text without dots"),
        ({"attacks": {"a": {"name": "fgsm"}}}, "epsilon: this key is required"),
        ({"frequency": {"frequencies": [2.0]}}, "numbers from 0 to 1"),
        ({"frequency": {"noise": None}}, "nothing to do in the bands"),
    ],
)
def test_bad_input(evaluate: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _config(**evaluate)


def test_what_has_no_pixels_or_gradients_is_refused() -> None:
    segment = {"task": "segment", "data": "scene_streams", "model": "unet"}
    with pytest.raises(ConfigError, match=r"evaluate\.attacks is for task: classify"):
        parse(RunConfig, {**segment, "evaluate": {"attacks": ATTACKS}})
    text = {"data": {"name": "newsgroups", "root": "none"}, "model": "gpcn"}
    with pytest.raises(ConfigError, match=r"evaluate\.frequency changes pixels"):
        parse(RunConfig, {**text, "evaluate": {"frequency": {}}})
    with pytest.raises(ConfigError, match=r"0\.2 pi, 0\.01 pi wide, holds no"):
        check_runs([_config(frequency={"frequencies": [0.2], "width": 0.01})])
