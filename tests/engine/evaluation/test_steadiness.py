"""Perturbation sequences and temperature scaling as parts of a run's evaluation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato._core.seeds import fold_seed
from sfumato.corruptions import corrupt, corruption_generator, perturb
from sfumato.corruptions.sequences import frame_count
from sfumato.data import load_data
from sfumato.engine import ConfigError, RunConfig, load_network, parse, run
from sfumato.metrics import evaluate_predictions

DATA = {"name": "scenes", "size": 16, "train": 40, "validation": 30, "test": 20}


class Divide(nn.Module):
    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits / self.divisor


def _config(**evaluate: Any) -> RunConfig:
    content = {
        "data": DATA,
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "train": {"epochs": 1, "batch_size": 20},
        "evaluate": {"resamples": 0, **evaluate},
    }
    return parse(RunConfig, content, "test")


def test_steadiness_is_that_of_the_network_on_the_frames(tmp_path: Path) -> None:
    wanted = _config(perturbations=["translate", "gaussian_noise"], corrupted_images=18)
    directory = run(wanted, tmp_path, show=False)
    found = directory.metrics()["perturbed"]
    network = load_network(directory)
    images = load_data(DATA).test.images[:18]
    for name in ("translate", "gaussian_noise"):
        generator = torch.Generator().manual_seed(fold_seed(0, "perturbation", name))
        same = []
        for part in (images[:16], images[16:]):
            frames = perturb(part, name, generator=generator)
            with torch.no_grad():
                classes = network(frames.flatten(0, 1)).argmax(1).view(len(part), frame_count(name))
            before = classes[:, :1] if name == "gaussian_noise" else classes[:, :-1]
            same.append((classes[:, 1:] == before).double().mean(1))
        assert found["cells"][name]["consistency"] == pytest.approx(float(torch.cat(same).mean()))
        _check_both_forms(found["cells"][name], network, images, name)
    values = [cell["consistency"] for cell in found["cells"].values()]
    assert found["consistency"] == pytest.approx(sum(values) / 2)
    assert found["flip_rate"] == pytest.approx(1 - found["consistency"])


def _check_both_forms(
    cell: dict[str, float], network: Any, images: torch.Tensor, name: str
) -> None:
    """Eq. (38) and (39), and the released form of (39), pair of frames by pair of frames."""
    generator = torch.Generator().manual_seed(fold_seed(0, "perturbation", name))
    same, paper, released = [], [], []
    for part in (images[:16], images[16:]):
        frames = perturb(part, name, generator=generator)
        with torch.no_grad():
            probs = network(frames.flatten(0, 1)).double().softmax(1).numpy()
        for row in probs.reshape(len(part), frame_count(name), -1):
            for before, after in itertools.pairwise(row):
                same.append(before.argmax() == after.argmax())
                paper.append(-np.sum(before * np.log(after)))
                released.append(-np.mean(after * np.log(before)))
    assert cell["consistency_to_previous"] == pytest.approx(np.mean(same))
    assert cell["cec"] == pytest.approx(np.mean(paper), rel=1e-4)
    assert cell["cec_released"] == pytest.approx(np.mean(released), rel=1e-4)


def test_temperature_is_fitted_on_validation_predictions(tmp_path: Path) -> None:
    directory = run(_config(temperature=True), tmp_path, show=False)
    found = directory.metrics()["scaled"]
    held_out, test = (directory.predictions(name) for name in ("validation", "test"))
    logits, labels = (torch.from_numpy(held_out[key]) for key in ("logits", "labels"))
    at = [found["temperature"] * factor for factor in (0.9, 1.0, 1.1)]
    losses = [float(F.cross_entropy(logits.double() / t, labels)) for t in at]
    assert losses[1] == min(losses)
    scaled = torch.from_numpy(test["logits"]) / found["temperature"]
    expected = evaluate_predictions(logits=scaled, target=torch.from_numpy(test["labels"]))
    for name in ("nll", "ece", "aece", "aurc", "accuracy_at_80"):
        assert found[name] == pytest.approx(expected[name], abs=1e-5)
    assert np.array_equal(test["logits"].argmax(1), scaled.numpy().argmax(1))


def test_temperature_also_on_corrupted_images(tmp_path: Path) -> None:
    wanted = _config(temperature=True, corruptions=["gaussian_noise"], severities=[3])
    directory = run(wanted, tmp_path, show=False)
    plain, scaled = (directory.metrics()[key] for key in ("corrupted", "scaled"))
    model = nn.Sequential(load_network(directory), Divide(scaled["temperature"]))
    test = load_data(DATA).test
    generator = corruption_generator(0, "gaussian_noise", 3)
    images = corrupt(test.images, "gaussian_noise", 3, generator=generator)
    with torch.no_grad():
        expected = evaluate_predictions(logits=model.eval()(images), target=test.labels)
    assert scaled["corrupted"]["error"] == pytest.approx(1 - expected["accuracy"], abs=1e-5)
    for name in ("nll", "ece"):
        assert scaled["corrupted"][name] == pytest.approx(expected[name], abs=1e-5)
    assert scaled["corrupted"]["error"] == plain["error"]
    assert scaled["corrupted"]["nll"] != plain["nll"]


def test_names_of_older_runs_stay() -> None:
    assert not {"perturbations", "temperature"} & set(_config().model_dump()["evaluate"])


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="unknown perturbation 'blur'; choose from"):
        _config(perturbations=["blur"])
    content = {"task": "segment", "data": "scene_streams", "model": "unet"}
    with pytest.raises(ConfigError, match=r"evaluate\.temperature is for task: classify"):
        parse(RunConfig, {**content, "evaluate": {"temperature": True}}, "test")
