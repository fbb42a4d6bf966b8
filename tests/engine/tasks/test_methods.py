"""Every place where a run can smooth works from a configuration, and changes what it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.engine import ConfigError, RunConfig, load_checkpoint, parse, run
from sfumato.engine.config.components import components

RESNET = {"name": "resnet", "depth": 8, "width": 4}


def _run(tmp_path: Path, tiny: dict[str, Any], **changes: Any) -> dict[str, Any]:
    tiny["train"] |= {"epochs": 1}
    done = run(parse(RunConfig, {**tiny, **changes}), tmp_path, show=False)
    assert np.isfinite(done.predictions("test")["logits"]).all()
    return done.metrics()


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": "mollify"},
        {"inputs": {"name": "mollify", "labels": "keep", "beta": 4.0}, "augment": "fcr+cutmix"},
        {"inputs": {"name": "mollify", "labels": "temper", "blur_decay": "png"}},
        {"augment": "fcr+trivaug", "loss": {"name": "cross_entropy", "smoothing": 0.1}},
        {"model": {**RESNET, "smooth": True}},
        {"model": {**RESNET, "dropout": 0.3}, "train": {"batch_size": 32, "passes": 3}},
        {"model": {"name": "vgg", "width": 4, "head": "gap"}},
        {"model": {"name": "torchvision:resnet18", "smooth": True, "dropout": 0.1}},
    ],
    ids=["mollify", "cutmix", "png", "trivaug", "smooth", "passes", "vgg", "torchvision"],
)
def test_configurations_run(tmp_path: Path, tiny: dict[str, Any], changes: dict[str, Any]) -> None:
    if "torchvision" in str(changes) or "vgg" in str(changes):
        tiny["data"] |= {"size": 32}
    assert 0 <= _run(tmp_path, tiny, **changes)["test"]["ece"] <= 1


@pytest.mark.parametrize("loss", components("loss"))
def test_every_loss_trains(tmp_path: Path, tiny: dict[str, Any], loss: str) -> None:
    assert np.isfinite(_run(tmp_path, tiny, loss=loss)["test"]["nll"])


def test_mc_dropout_and_ensemble_sizes(tmp_path: Path, tiny: dict[str, Any]) -> None:
    evaluate = {"resamples": 0, "ensemble_sizes": [1, 4]}
    model = {**RESNET, "dropout": 0.5}
    found = _run(tmp_path, tiny, model=model, predict={"mc_dropout": 4}, evaluate=evaluate)
    assert found["ensemble"]["sizes"] == [1, 4]
    assert found["ensemble"]["nll"][1] != found["ensemble"]["nll"][0]
    assert np.isfinite(found["ensemble"]["nll"]).all()
    assert found["ensemble"]["nll"][1] == pytest.approx(found["test"]["nll"])  # the same passes


def test_corruptions_are_measured(tmp_path: Path, tiny: dict[str, Any]) -> None:
    evaluate = {
        "resamples": 0,
        "corruptions": ["fog", "contrast"],
        "severities": [2, 4],
        "corrupted_images": 20,
    }
    found = _run(tmp_path, tiny, evaluate=evaluate)["corrupted"]
    assert np.array(found["cells"]["nll"]).shape == (2, 2)
    assert found["error"] == pytest.approx(np.mean(found["cells"]["error"]))


@pytest.mark.parametrize(
    ("changes", "section"),
    [
        ({"inputs": "mollify"}, "inputs"),
        ({"augment": "fcr+mixup"}, "augment"),
        ({"augment": {"name": "resized_crop", "mixing": "cutmix"}}, "augment"),
        ({"labels": "objectness", "objects": {"context": 0.1}}, "labels and objects.context"),
    ],
)
def test_soft_labels_need_a_loss_that_takes_them(
    tiny: dict[str, Any], changes: dict[str, Any], section: str
) -> None:
    """Said before anything is computed, for every loss whose class says so."""
    for name, part in components("loss").items():
        if part.takes_soft_targets:
            parse(RunConfig, {**tiny, "loss": name, **changes})
        else:
            with pytest.raises(ConfigError, match=f"{name} is defined .* but {section} makes soft"):
                parse(RunConfig, {**tiny, "loss": name, **changes})
    parse(RunConfig, {**tiny, "loss": "focal", "augment": "fcr+trivaug"})


def test_a_history_of_samples_holds_those_that_are_trained_on(tmp_path: Path) -> None:
    """Positions in a set that was split have gaps, whose counts stay 0 and hide the hardest."""
    for name in ("train", "test"):
        images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(40) % 2)
    files = {name: str(tmp_path / f"{name}.npz") for name in ("train", "test")}
    content = {
        "data": {"name": "npz", **files, "validation": 0.4},
        "model": RESNET,
        "loss": "crl",
        "train": {"epochs": 1, "batch_size": 24, "learning_rate": 1e-6},
    }
    done = run(parse(RunConfig, content), tmp_path, show=False)
    checkpoint = load_checkpoint(done.checkpoint)
    assert checkpoint is not None
    counts = checkpoint.loss["history.counts"]
    assert len(counts) == 24
    accuracy = done.log()[0]["train_accuracy"]
    assert int(counts.sum()) == round(24 * accuracy)
