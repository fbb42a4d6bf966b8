"""Further test sets of a study: their numbers, with labels and without, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato.data import ArrayDataset, load_data
from sfumato.engine import ConfigError, RunConfig, Trainer, parse, run
from sfumato.engine.evaluation import classifier
from sfumato.engine.evaluation.other_sets import load_other
from sfumato.engine.preflight import check_runs
from sfumato.metrics import evaluate_predictions
from sfumato.report.columns import columns_of

Content = dict[str, Any]


@pytest.fixture
def scenes(tiny: Content) -> ArrayDataset:
    return load_data({**tiny["data"], "seed": 5}).test


def _save(path: Path, data: ArrayDataset, **arrays: Any) -> Content:
    images = data.images.permute(0, 2, 3, 1).numpy()
    np.savez(path, images=images, **arrays)
    return {"name": "npz", "test": str(path)}


def _named(path: Path, data: ArrayDataset, classes: tuple[str, ...]) -> Content:
    return _save(path, data, labels=data.labels.numpy(), classes=np.array(classes))


@pytest.mark.filterwarnings("ignore:the temperature ended")
def test_a_run_measures_further_sets(
    tiny: Content, scenes: ArrayDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    also = {
        "camera": _named(tmp_path / "camera.npz", scenes, scenes.classes),
        "unknown": _save(tmp_path / "unknown.npz", scenes),
    }
    plain = {
        **tiny,
        "train": {"epochs": 2, "batch_size": 16},
        "evaluate": {"resamples": 20, "temperature": True},
    }
    several = {**plain, "evaluate": {**plain["evaluate"], "also": also}}
    before = run(parse(RunConfig, plain), tmp_path, show=False).metrics()
    monkeypatch.setattr(Trainer, "_epoch", None)  # the training is shared
    directory = run(parse(RunConfig, several), tmp_path, show=False)
    metrics = directory.metrics()
    assert metrics["test"] == before["test"]

    found = directory.read_predictions("camera")
    assert found.labels.tolist() == scenes.labels.tolist()
    expected = evaluate_predictions(logits=found.logits, target=found.labels)
    assert metrics["camera"]["nll"] == pytest.approx(expected["nll"])
    low, high = metrics["camera"]["ece_interval"]
    assert low <= metrics["camera"]["ece"] <= high
    scaled = found.logits / metrics["scaled"]["temperature"]
    expected = evaluate_predictions(logits=scaled, target=found.labels)
    assert metrics["scaled"]["camera"]["ece"] == pytest.approx(expected["ece"], abs=1e-5)

    blind = metrics["unknown"]
    probs = found.logits.double().softmax(1)  # the same images
    assert blind["average_confidence"] == pytest.approx(float(probs.amax(1).mean()), abs=1e-5)
    entropy = float(-(probs * probs.log()).sum(1).mean())
    assert blind["entropy"] == pytest.approx(entropy, abs=1e-5)
    assert blind["entropy_interval"][1] > entropy > 1  # in nats, above 1
    confidence = scaled.double().softmax(1).amax(1).mean()
    assert blind["expected_accuracy"] == pytest.approx(float(confidence), abs=1e-5)
    assert "accuracy" not in blind
    assert "unknown" not in metrics["scaled"]
    with np.load(directory.path / "replicates.npz") as kept:
        assert {"camera.ece", "scaled.camera.ece", "unknown.entropy"} <= set(kept.files)

    monkeypatch.setattr(classifier, "predict", None)  # and so are predictions, by their data
    renamed = {**several, "evaluate": {**several["evaluate"], "resamples": 10}}
    again = run(parse(RunConfig, renamed), tmp_path, show=False).metrics()
    assert again["camera"]["ece"] == metrics["camera"]["ece"]


def test_columns_carry_the_name_of_the_set() -> None:
    metrics = {
        "test": {"ece": 0.1},
        "v2": {"ece": 0.2, "aurc": 0.1},
        "scaled": {"v2": {"ece": 0.3}},
        "unknown": {"expected_accuracy": 0.5},
    }
    columns = {each.id: each for each in columns_of([metrics])}
    assert columns["v2.ece"].heading == "v2 ECE % ↓"
    assert columns["scaled.v2.ece"].heading == "scaled v2 ECE % ↓"
    assert columns["unknown.expected_accuracy"].heading == "unknown expected accuracy %"
    assert [each.id for each in columns.values() if not each.is_main] == ["v2.aurc"]
    assert not columns["test.ece"].is_of_other_set


def test_classes_are_numbers_or_the_same_names(scenes: ArrayDataset, tmp_path: Path) -> None:
    some = scenes.subset((scenes.labels < 8).nonzero().squeeze(1))
    spec = _save(tmp_path / "numbers.npz", some, labels=some.labels.numpy())
    found = load_other(spec, scenes)
    assert found.classes == scenes.classes
    assert found.labels.tolist() == some.labels.tolist()
    for name in range(10):  # sorted as text: 0, 1, 10 would come before 2
        folder = tmp_path / "v2" / str(name + 2)
        folder.mkdir(parents=True)
        Image.new("RGB", (16, 16), (name, 0, 0)).save(folder / "a.png")
    spec = {"name": "folder", "root": str(tmp_path / "v2"), "test": "all"}
    with pytest.raises(ValueError, match=r"the number 11, .* 10 classes are 0 to 9"):
        load_other(spec, scenes)
    more = ArrayDataset(scenes.images, scenes.labels, (*scenes.classes, "x", "y"))
    found = load_other(spec, more)
    assert (found.images[:, 0, 0, 0] + 2).tolist() == found.labels.tolist()
    counted = ArrayDataset(scenes.images, scenes.labels, tuple(sorted(map(str, range(12)))))
    with pytest.raises(ValueError, match="10 classes, the training set has 12; it lacks 0, 1"):
        load_other(spec, counted)  # a number may be a name here, or a place: nobody knows


def test_images_without_labels(scenes: ArrayDataset, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (20, 30)).save(folder / "a.jpg")
    spec = {"name": "folder", "root": str(folder), "test": "all", "size": 16}
    found = load_other(spec, scenes)
    assert not found.is_labelled
    assert len(found) == 1
    with pytest.raises(ValueError, match="no images for train and validation"):
        check_runs([RunConfig(data=spec, model={"name": "resnet", "depth": 8})])
    for options in ({"validation": 0.1}, {"limit_train": 5}):
        with pytest.raises(ValueError, match=f"test set only.* remove {next(iter(options))}"):
            load_data({**spec, **options})
    npz = _save(tmp_path / "unknown.npz", scenes)
    assert len(load_data({**npz, "limit_test": 7}).test) == 7
    with pytest.raises(ValueError, match=r"test set only.* remove limit_train=5"):
        load_data({**npz, "limit_train": 5})


def _refused(tiny: Content, also: Content, message: str, **more: Any) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        check_runs([parse(RunConfig, {**tiny, "evaluate": {"also": also, **more}})])
    assert "\n" not in str(raised.value)


def test_other_sets_that_do_not_fit_are_refused(
    tiny: Content, scenes: ArrayDataset, tmp_path: Path
) -> None:
    first, second, *rest = scenes.classes
    order = _named(tmp_path / "order.npz", scenes, (second, first, *rest))
    _refused(tiny, {"v2": order}, f"evaluate.also.v2: .*another order: class 0 is '{second}'")
    fewer = scenes.subset((scenes.labels < 9).nonzero().squeeze(1))
    spec = _named(tmp_path / "fewer.npz", fewer, scenes.classes[:9])
    _refused(tiny, {"v2": spec}, f"9 classes, the training set has 10; it lacks {rest[-1]}")
    larger = {**tiny["data"], "size": 24}
    _refused(tiny, {"v2": larger}, r"\(3, 24, 24\).* trained on \(3, 16, 16\); .*size: 16")
    missing = {"name": "npz", "test": str(tmp_path / "absent.npz")}
    _refused(tiny, {"v2": missing}, "evaluate.also.v2: .*absent.npz: no such file")


@pytest.mark.parametrize(
    ("also", "message"),
    [
        ({"test": "scenes"}, "'test' is the name of a part of every run's metrics"),
        ({"Corrupted": "scenes"}, "'Corrupted' is the name of a part"),
        ({"../v2": "scenes"}, "must begin with a letter"),
        ({"v.2": "scenes"}, "must begin with a letter"),
        ({"v2": "scenes", "V2": "scenes"}, "differ in more than their case"),
        ({"v2": {"name": "scnes"}}, "did you mean 'scenes'"),
        ({"v2": "scene_streams"}, "evaluate.also.v2: .*no images with one label each"),
        ({"v2": {"name": "newsgroups", "root": "x"}}, "no images with one label each"),
    ],
)
def test_names_and_sources_are_checked(tiny: Content, also: Content, message: str) -> None:
    _refused(tiny, also, message)


def test_without_other_sets_a_run_keeps_its_name(tiny: Content) -> None:
    assert "also" not in parse(RunConfig, tiny).model_dump(mode="json")["evaluate"]


def test_a_tokens_set_is_refused(tiny: Content) -> None:
    content = {
        "data": {"name": "newsgroups", "root": "x"},
        "model": "gpcn",
        "evaluate": {"also": {"v2": "scenes"}},
    }
    with pytest.raises(ConfigError, match=r"evaluate.also .*has texts: leave it out"):
        parse(RunConfig, content)
