"""Strange inputs of a study: scores from the same passes, for one network and for averages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.data import load_data
from sfumato.engine import ConfigError, RunConfig, Trainer, load_network, parse, run
from sfumato.engine.evaluation import classifier
from sfumato.engine.preflight import check_runs
from sfumato.metrics import mutual_information, ood_metrics
from sfumato.models import HeadFeatures
from sfumato.predictions import NeighbourDistance, energy_score
from sfumato.report.columns import columns_of

Content = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:the temperature ended")


@pytest.fixture
def ood(tiny: Content) -> Content:
    size = load_data(tiny["data"]).test.images.shape[-1]
    return {
        "near": {
            "name": "scenes",
            "size": size,
            "train": 1,
            "validation": 1,
            "test": 15,
            "seed": 9,
        },
        "noise": {"name": "noise", "size": size, "test": 12},
    }


def _content(tiny: Content, ood: Content, **evaluate: Any) -> Content:
    return {
        **tiny,
        "train": {"epochs": 1, "batch_size": 16},
        "evaluate": {"resamples": 20, "ood": ood, **evaluate},
    }


def _scores(directory: Any, name: str) -> np.ndarray:
    (path,) = (directory.training / "parts").glob(f"ood-{name}-*.npz")
    with np.load(path) as kept:
        return kept["scores"]


def test_scores_are_those_of_the_network_and_cost_no_pass(
    tiny: Content, ood: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[str] = []
    original = classifier.predict

    def counting(model: nn.Module, loader: Any, *rest: Any) -> Any:
        passes.append(f"{len(loader.dataset)}")
        return original(model, loader, *rest)

    monkeypatch.setattr(classifier, "predict", counting)
    directory = run(parse(RunConfig, _content(tiny, ood, temperature=True)), tmp_path, show=False)
    data = load_data(tiny["data"])
    parts = [data.validation, data.train, data.test]  # and the training images, once
    assert passes == [str(len(each)) for each in parts] + ["15", "12"]

    metrics = directory.metrics()
    names = list(metrics["ood"]["near"])
    assert names == [
        *("max_probability", "entropy", "generalised_entropy", "max_logit", "energy"),
        *("nearest_neighbours", "mahalanobis", "samples"),
    ]
    network = load_network(directory)
    with torch.no_grad(), HeadFeatures(network) as head:
        for images in (data.train.images, data.test.images):
            network(images)
        noise = network(load_data(ood["noise"]).test.images)
    known, test, strange = head.taken
    expected = {
        "energy": energy_score(noise),
        "nearest_neighbours": NeighbourDistance(min(50, len(known))).fit(known).score(strange),
    }
    for name, values in expected.items():
        found = _scores(directory, "noise")[:, names.index(name)]
        np.testing.assert_allclose(found, values.numpy(), rtol=1e-3, atol=1e-4)
    fitted = NeighbourDistance(min(50, len(known))).fit(known)
    auroc = ood_metrics(fitted.score(test), fitted.score(strange))["auroc"]
    assert metrics["ood"]["noise"]["nearest_neighbours"]["auroc"] == pytest.approx(auroc, abs=0.02)
    assert set(metrics["scaled"]["ood"]["near"]) == set(names[:3])
    with np.load(directory.path / "replicates.npz") as kept:
        assert {"ood.near.energy.auroc", "scaled.ood.near.entropy.fpr95"} <= set(kept.files)
    shown = [each.id for each in columns_of([metrics]) if each.is_main]
    assert "ood.near.energy.auroc" in shown
    assert "ood.near.entropy.auroc" not in shown


def test_metrics_of_the_test_set_stay(tiny: Content, ood: Content, tmp_path: Path) -> None:
    plain = _content(tiny, ood)
    del plain["evaluate"]["ood"]
    before = run(parse(RunConfig, plain), tmp_path, show=False).metrics()
    after = run(parse(RunConfig, _content(tiny, ood)), tmp_path / "other", show=False).metrics()
    assert after["test"] == before["test"]


def test_a_second_evaluation_makes_no_pass(
    tiny: Content, ood: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(parse(RunConfig, _content(tiny, ood)), tmp_path, show=False).metrics()
    monkeypatch.setattr(Trainer, "_epoch", None)
    monkeypatch.setattr(classifier, "predict", None)
    again = _content(tiny, ood, bins=10)
    second = run(parse(RunConfig, again), tmp_path, show=False).metrics()
    assert second["ood"] == first["ood"]


def test_averages_have_means_over_their_passes(tiny: Content, ood: Content, tmp_path: Path) -> None:
    content = _content(tiny, ood, ensemble_sizes=[1, 3])
    content["model"] = {**tiny["model"], "dropout": 0.3}
    content["predict"] = {"mc_dropout": 3}
    directory = run(parse(RunConfig, content), tmp_path, show=False)
    near = directory.metrics()["ood"]["near"]
    assert "mutual_information" in near
    scores = dict(zip(near, _scores(directory, "near").T, strict=False))
    assert (scores["mutual_information"] > 0).any()
    assert (scores["mutual_information"] <= scores["entropy"] + 1e-6).all()
    assert scores["energy"].std() > 0  # of the mean probabilities it would be 0


def test_means_over_folded_passes() -> None:
    from sfumato.engine.evaluation.other_sets import _mean_passes

    logits = torch.randn(3, 4, 5, dtype=torch.float64)  # passes, images, classes
    features = torch.randn(3, 4, 2, dtype=torch.float64)
    folded = [
        (4, logits[:2].flatten(0, 1), features[:2].flatten(0, 1)),
        (4, logits[2], features[2]),
    ]
    found = _mean_passes(folded, 3, 4)
    torch.testing.assert_close(found[:, 1], energy_score(logits.flatten(0, 1)).view(3, 4).mean(0))
    torch.testing.assert_close(found[:, 3:], features.mean(0))
    probs = logits.softmax(2)
    entropy = torch.special.entr(probs.mean(0)).sum(1)
    torch.testing.assert_close(entropy - found[:, 2], mutual_information(probs))
    with pytest.raises(ValueError, match="need 5 passes for each of 4 images"):
        _mean_passes(folded, 5, 4)


def test_without_distances_the_training_images_are_left_alone(
    tiny: Content, ood: Content, tmp_path: Path
) -> None:
    config = parse(RunConfig, _content(tiny, ood, ood_features=False))
    metrics = run(config, tmp_path, show=False).metrics()
    assert "mahalanobis" not in metrics["ood"]["near"]
    assert "shrinkage" not in metrics["ood"]


@pytest.mark.parametrize(
    ("evaluate", "predict", "message"),
    [
        ({"ood": {"test": {"name": "noise"}}}, {}, "'test' is the name of a part"),
        ({"ood_features": "head"}, {}, "ood_features is of strange inputs: give ood"),
        (
            {"ood": {"a": {"name": "noise"}}, "also": {"a": {"name": "scenes"}}},
            {},
            "different names, both have a",
        ),
        ({"ood": {"a": {"name": "camvid", "root": "x"}}}, {}, "evaluate.ood.a: data camvid has no"),
        ({"ood": {"a": {"name": "noise"}}}, {"tta": {}}, "predict.tta makes of changed copies"),
    ],
)
def test_impossible_sections(
    tiny: Content, evaluate: Content, predict: Content, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {**tiny, "evaluate": evaluate, "predict": predict})


def test_images_of_another_size_fail_before_the_training(tiny: Content) -> None:
    config = parse(RunConfig, _content(tiny, {"far": {"name": "noise", "size": 40}}))
    with pytest.raises(ValueError, match=r"evaluate.ood.far.*has images of \(3, 40, 40\)"):
        check_runs([config])


def test_an_unknown_layer(tiny: Content, ood: Content, tmp_path: Path) -> None:
    config = parse(RunConfig, _content(tiny, ood, ood_features="trunk"))
    with pytest.raises(ValueError, match="no modules 'trunk' to take features before; its last"):
        run(config, tmp_path, show=False)


def test_few_training_images_are_said(tiny: Content, ood: Content, tmp_path: Path) -> None:
    metrics = run(parse(RunConfig, _content(tiny, ood)), tmp_path, show=False).metrics()
    assert 0 < metrics["ood"]["shrinkage"] <= 1
