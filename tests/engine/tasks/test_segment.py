"""The task `segment`: training, prediction over time, metrics on disk, exact resume, the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from sfumato.data import load_data
from sfumato.engine import ConfigError, RunConfig, fingerprint, load_network, parse, run
from sfumato.engine.training.loop import Trainer
from sfumato.predictions.temporal import temporal_weights

UNET = {"name": "unet", "width": 2, "depth": 2}
Content = dict[str, Any]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Content:
    """A segmentation run of a second; a picture of its pixels would take another one each."""
    monkeypatch.setattr("sfumato.engine.evaluation.pixels.MAPS", 0)
    return {
        "task": "segment",
        "data": {
            "name": "scene_streams",
            "train": 24,
            "validation": 4,
            "test": 3,
            "test_frames": 4,
            "size": 16,
            "figures": 1,
        },
        "model": UNET,
        "augment": {"name": "window", "scale": [0.8, 1.25]},
        "train": {"epochs": 2, "batch_size": 8, "optimizer": "adam", "learning_rate": 0.01},
        "evaluate": {"resamples": 20},
    }


def _run(tmp_path: Path, content: Content, **changes: Any) -> Any:
    return run(parse(RunConfig, {**content, **changes}), tmp_path, show=False)


def _by_hand(done: Any, content: Content, length: int) -> tuple[float, float, float]:
    """Accuracy, NLL and consistency of the run's network, from the formulas."""
    data, network = load_data(content["data"]).test, load_network(done)
    with torch.no_grad():
        probs = network(data.images).softmax(1).double().numpy().reshape(3, 4, 11, 16, 16)
    smoothed = np.zeros_like(probs)
    weights = temporal_weights(length, 0.8).double().numpy()
    for t in range(4):
        past = range(min(length, t) + 1)
        smoothed[:, t] = sum(weights[k] * probs[:, t - k] for k in past)
        smoothed[:, t] /= sum(weights[k] for k in past)
    labels = data.labels.numpy().reshape(3, 4, 16, 16)
    predicted = smoothed.argmax(2)
    own = np.take_along_axis(smoothed, labels[:, :, None], 2)
    kept = (predicted[:, 1:] == predicted[:, :-1]).mean()
    return float((predicted == labels).mean()), float(-np.log(own).mean()), float(kept)


def test_metrics_are_those_of_the_network_over_time(
    tmp_path: Path, small: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as pictures:
        pictures.setattr("sfumato.engine.evaluation.pixels.MAPS", 3)
        plain = _run(tmp_path, small)
    over_time = _run(tmp_path, small, predict={"temporal": {"length": 2}})
    for done, length in ((plain, 0), (over_time, 2)):
        found = done.metrics()["test"]
        accuracy, nll, kept = _by_hand(done, small, length)
        assert found["accuracy"] == pytest.approx(accuracy, abs=1e-3)
        assert found["nll"] == pytest.approx(nll, rel=1e-4)
        assert found["consistency"] == pytest.approx(kept, abs=1e-3)
        assert found["units"] == 12  # three streams are too few to draw from
        low, high = found["mean_iou_interval"]
        assert 0 <= low <= found["mean_iou"] <= high <= 1
    record = plain.log()[-1]
    assert 0 <= record["train_accuracy"] <= 1
    assert 0 <= record["validation_mean_iou"] <= 1
    maps = sorted((plain.path / "maps").glob("test-*.png"))
    assert len(maps) == 3
    with Image.open(maps[0]) as picture:
        assert picture.width > 300


def test_many_streams_are_drawn_whole(tmp_path: Path, small: Content) -> None:
    small["data"] |= {"test": 10, "test_frames": 2}
    small["train"] |= {"epochs": 1}
    assert _run(tmp_path, small).metrics()["test"]["units"] == 10


def test_prediction_variants_share_one_training(
    tmp_path: Path, small: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as pictures:
        pictures.setattr("sfumato.engine.evaluation.pixels.MAPS", 1)
        first = _run(tmp_path / "together", small)
    alone = _run(tmp_path / "alone", small, predict={"temporal": {}})

    def refuse(*args: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "_epoch", refuse)
    shared = _run(tmp_path / "together", small, predict={"temporal": {}})
    assert shared.metrics() == alone.metrics()
    assert shared.training == first.training
    assert shared.metrics()["test"]["nll"] != first.metrics()["test"]["nll"]
    fewer = _run(tmp_path / "together", small, evaluate={"resamples": 0})
    assert fewer.metrics()["test"]["nll"] == first.metrics()["test"]["nll"]
    assert len(list((fewer.path / "maps").glob("*.png"))) == 1
    assert len(shared.log()) == 2
    assert first.path != shared.path
    with pytest.raises(AssertionError, match="trained again"):
        _run(tmp_path / "together", small, seed=1)


def test_stopped_run_ends_bit_identical(
    tmp_path: Path, small: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {**UNET, "dropout": 0.3, "smooth": True}
    changes = {"model": model, "predict": {"mc_dropout": 2}, "class_weight": "median_frequency"}
    whole = _run(tmp_path / "whole", small, **changes)
    epoch = Trainer._epoch

    def stop(self: Trainer, number: int, bar: Any) -> dict[str, float]:
        if number == 1:
            raise KeyboardInterrupt
        return epoch(self, number, bar)

    monkeypatch.setattr(Trainer, "_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "stopped", small, **changes)
    monkeypatch.setattr(Trainer, "_epoch", epoch)
    resumed = _run(tmp_path / "stopped", small, **changes)
    weights = [(d.checkpoint / "model.safetensors").read_bytes() for d in (whole, resumed)]
    assert weights[0] == weights[1]
    assert whole.metrics() == resumed.metrics()


def test_learns_to_tell_figures_from_background(tmp_path: Path, small: Content) -> None:
    """Colour alone decides here, so a few steps are enough; the majority class is not."""
    small["data"] |= {"train": 64, "noise": 0.0}
    small["train"] |= {"epochs": 8, "learning_rate": 0.02}
    before = _run(tmp_path, small, train={**small["train"], "epochs": 1, "learning_rate": 1e-6})
    after = _run(tmp_path, small)
    assert after.metrics()["test"]["nll"] < 0.7 * before.metrics()["test"]["nll"]


def test_torchvision_network_segments(tmp_path: Path, small: Content) -> None:
    small["data"] |= {"size": 32, "train": 8}
    model = {"name": "torchvision:lraspp_mobilenet_v3_large"}
    train = {"epochs": 1, "batch_size": 4, "optimizer": "adam", "learning_rate": 0.001}
    done = _run(tmp_path, small, model=model, train=train, loss={"name": "mbls"})
    assert np.isfinite(done.metrics()["test"]["nll"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "resnet"}, "one output a pixel"),
        ({"data": "scenes"}, "task: segment needs segmentation masks"),
        ({"augment": "fcr+cutmix"}, "augment may be basic or window"),
        ({"inputs": "mollify"}, "mollification is for task: classify"),
        ({"loss": "crl"}, "crl keeps a history of whole images"),
        ({"loss": "cape"}, "cape keeps a history of whole images"),
        ({"evaluate": {"corruptions": "all"}}, "corruptions is for task: classify"),
        ({"class_weight": "median_frequency", "loss": "mmce"}, "needs one of the losses"),
        ({"task": "classify"}, "say task: segment"),
        ({"predict": {"temporal": {"lenght": 2}}}, "did you mean 'length'"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_runs(
    small: Content, changes: Content, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {**small, **changes})


def test_classification_has_no_time(tiny: Content) -> None:
    with pytest.raises(ConfigError, match=r"predict\.temporal is for task: segment"):
        parse(RunConfig, {**tiny, "predict": {"temporal": {}}})


def test_new_keys_leave_the_names_of_other_runs_alone(tiny: Content) -> None:
    content = parse(RunConfig, tiny).model_dump(mode="json")
    assert "class_weight" not in content
    assert content["predict"] == {"mc_dropout": None}
    assert fingerprint(parse(RunConfig, content)) == fingerprint(parse(RunConfig, tiny))


def test_single_images_have_no_past(tmp_path: Path, small: Content) -> None:
    from sfumato.engine.config.sections import TemporalConfig
    from sfumato.engine.evaluation.pixels import smooth_streams

    data = load_data(small["data"]).test
    single = type(data)(data.images, data.labels, data.classes)
    with pytest.raises(ValueError, match="needs frames of a video in order"):
        smooth_streams(TemporalConfig(), single)


def test_loss_must_ignore_void(tmp_path: Path, small: Content) -> None:
    loss = {"name": "cross_entropy", "ignore_index": 255}
    with pytest.raises(ConfigError, match="leave ignore_index out"):
        _run(tmp_path, small, loss=loss)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nacl", "adafocal", "cals", "online_label_smoothing"])
def test_losses_that_learn_on_the_way_segment(tmp_path: Path, small: Content, name: str) -> None:
    """Two of them are handed the validation frames, batch after batch, void pixels left out."""
    done = _run(tmp_path, small, loss={"name": name})
    assert np.isfinite(done.log()[-1]["train_loss"])


@pytest.mark.slow  # a worker and a report; quicker tests see both with other tasks
def test_study_and_report(tmp_path: Path, small: Content, sfumato: Callable[..., Any]) -> None:
    small["train"] |= {"epochs": 1}
    study = {"name": "pixels", "recipe": small, "methods": {"plain": {}, "time": {}}}
    study["methods"]["time"] = {"predict": {"temporal": {}}}  # type: ignore[index]
    (tmp_path / "pixels.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    outcome = sfumato("run", "pixels.yaml", "--quiet", "--verbose", "--workers", "1")
    assert outcome.status == 0, outcome.stderr
    page = (tmp_path / "runs" / "pixels" / "report" / "index.html").read_text()
    for heading in ("mIoU", "ECE foreground", "consistency", "NLL"):
        assert heading in page
        assert heading.split()[0] in outcome.stdout
