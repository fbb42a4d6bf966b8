"""Replicates: the same resamples in every run, and differences of runs are paired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.data import load_data
from sfumato.engine import RunConfig, RunDirectory, parse, run
from sfumato.engine.evaluation.splits import Replicates, describe_units, measure_split, posterior_of
from sfumato.engine.runs.directory import Predictions
from sfumato.metrics import compare_predictions, true_calibration_error
from sfumato.metrics.evaluate import centred_interval

# An epoch of two steps teaches next to nothing, and no temperature makes that right.
pytestmark = pytest.mark.filterwarnings("ignore:the temperature ended at its bound")
EVALUATE = {
    "resamples": 40,
    "corruptions": ["fog", "contrast"],
    "severities": [2],
    "corrupted_images": 20,
    "temperature": True,
}


def _run(config: dict[str, Any], root: Path, **changes: Any) -> RunDirectory:
    return run(parse(RunConfig, {**config, **changes}), root, show=False)


def _replicates(done: RunDirectory) -> dict[str, np.ndarray]:
    with np.load(done.path / "replicates.npz", allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, RunDirectory]:
    tiny = {
        "data": {"name": "scenes", "train": 64, "validation": 40, "test": 50, "size": 16},
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "train": {"epochs": 1, "batch_size": 32},
        "evaluate": EVALUATE,
    }
    root = tmp_path_factory.mktemp("runs")
    return _run(tiny, root), _run(tiny, root, seed=1)


def test_every_measured_column_has_replicates(
    two_seeds: tuple[RunDirectory, RunDirectory],
) -> None:
    first, second = (_replicates(done) for done in two_seeds)
    metrics = two_seeds[0].metrics()
    splits = {
        "test": metrics["test"],
        "scaled": metrics["scaled"],
        "corrupted": metrics["corrupted"],
        "scaled.corrupted": metrics["scaled"]["corrupted"],
    }
    for split, values in splits.items():
        assert first[f"{split}.units"] == second[f"{split}.units"]
        intervals = {key for key in values if key.endswith("_interval")}
        names = {key.removesuffix("_interval") for key in intervals}
        assert names == {
            key.removeprefix(f"{split}.")
            for key in first
            if key.rpartition(".")[0] == split and not key.endswith(".units")
        }
        for name in names:
            draws = first[f"{split}.{name}"]
            assert draws.shape == (40,)
            assert draws.dtype == np.float32
            low, high = values[f"{name}_interval"]
            assert low <= values[name] <= high
    assert {"test.nll", "test.true_calibration_error", "scaled.ece", "corrupted.rmsce"} <= {*first}
    assert {"ece_floor"} <= set(metrics["test"]) & set(metrics["corrupted"])
    assert not any(key.endswith("_interval") for key in metrics["validation"])


def test_resamples_are_shared(two_seeds: tuple[RunDirectory, RunDirectory]) -> None:
    """Mean label of each resample, from two networks: it is the same, so the images are."""
    first, second = two_seeds
    draws = [_replicates(done)["test.accuracy"] for done in two_seeds]
    found = [done.read_predictions("test") for done in two_seeds]
    expected = compare_predictions(
        logits=(found[0].logits, found[1].logits),
        target=found[0].labels,
        resamples=4000,
        generator=torch.Generator().manual_seed(0),
    )["accuracy"]
    paired = torch.from_numpy(draws[1] - draws[0])
    low, high = centred_interval(paired, expected.difference, level=0.95)
    assert high - low == pytest.approx(expected.high - expected.low, rel=0.5)
    assert first.metrics()["test"]["accuracy"] != second.metrics()["test"]["accuracy"]


def _weights_of(values: torch.Tensor, replicates: Replicates) -> np.ndarray:
    """Accuracy of resamples in which `values` says which predictions are right."""
    labels = torch.zeros(len(values), dtype=torch.int64)
    logits = torch.stack([values.float(), 1 - values.float()], 1)
    found = Predictions(logits, labels, torch.arange(len(values)))
    measure_split(found, replicates=replicates)
    return replicates.arrays["test.accuracy"]


def test_draws_depend_on_the_numbers_only() -> None:
    """Which image is drawn how often, read off from networks that are right on one image."""
    right = torch.eye(4, dtype=torch.bool)
    counts = [4 * _weights_of(row, Replicates(30)) for row in right]
    assert np.allclose(np.sum(counts, 0), 4)
    again = [4 * _weights_of(row, Replicates(30)) for row in right]
    assert np.array_equal(counts, again)
    other = [4 * _weights_of(row, Replicates(31)) for row in right]
    assert not np.array_equal(counts, np.stack(other)[:, :30])


def test_units_name_number_and_labels() -> None:
    labels = torch.tensor([0, 1, 2])
    assert describe_units(3, labels) == describe_units(3, labels.int())
    assert describe_units(3, labels).startswith("3-")
    assert describe_units(3, labels) != describe_units(3, labels.flip(0))


def test_none_without_resamples(tmp_path: Path, tiny: dict[str, Any]) -> None:
    done = _run(tiny, tmp_path, train={"epochs": 1, "batch_size": 32}, evaluate={"resamples": 0})
    assert not (done.path / "replicates.npz").exists()
    assert not any(key.endswith("_interval") for key in done.metrics()["test"])


def test_truth_of_a_run(two_seeds: tuple[RunDirectory, RunDirectory]) -> None:
    """Predictions are sorted by index, and the posterior of each is the one of its image."""
    done = two_seeds[0]
    data = load_data(done.config()["data"]).test
    found = done.read_predictions("test")
    place = {int(index): position for position, index in enumerate(data.index)}
    order = torch.tensor([place[int(index)] for index in found.index])
    assert data.posterior is not None
    posterior = data.posterior[order]
    assert torch.equal(posterior_of(data), posterior)
    probs, metrics = found.logits.softmax(1), done.metrics()["test"]
    value = float(true_calibration_error(probs, posterior))
    assert metrics["true_calibration_error"] == pytest.approx(value)
    binned = float(true_calibration_error(probs, posterior, num_bins=15))
    assert metrics["true_ece"] == pytest.approx(binned)


def test_truth_follows_shuffled_and_limited_sets() -> None:
    data = load_data({"name": "scenes", "train": 20, "validation": 5, "test": 30, "size": 16}).test
    part = data.subset(torch.tensor([7, 2, 19]))
    found = posterior_of(part)
    assert found is not None
    assert data.posterior is not None
    assert torch.equal(found, data.posterior[torch.tensor([2, 7, 19])])
