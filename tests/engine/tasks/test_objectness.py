"""Labels, sets and measures of objectness from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato.augment import Augment, ObjectnessLabels, ResizedCrop, label_samples
from sfumato.augment.recipes import resized_crop
from sfumato.data import TensorLoader, scenes, with_context
from sfumato.engine import ConfigError, RunConfig, fingerprint, parse, run
from sfumato.engine.evaluation.classifier import context_metrics, objectness_metrics
from sfumato.engine.runs.directory import Predictions


def batch_of(labels: ObjectnessLabels | None, augment: Any, *, context: bool = False) -> Any:
    data = scenes.generate(64, size=24)
    data = with_context(data, share=0.2) if context else data
    labelled = label_samples(labels, data, augment)
    return TensorLoader(data, len(data), augment=labelled, seed=1).batch(0), data


@pytest.mark.parametrize(
    "augment", [None, ResizedCrop(), ResizedCrop(rotation=40.0), Augment(crop=4, rotation=20.0)]
)
def test_label_of_the_crop_holds_its_objectness(augment: Any) -> None:
    """By mask and by box the object weighs what is seen of it; a box covers more than its mask."""
    found = {}
    for by in ("box", "mask"):
        batch, _ = batch_of(ObjectnessLabels(by=by), augment)
        rows = torch.arange(64)
        on_label = batch["soft_label"][rows, batch["label"]]
        present = batch["objectness"] > 0
        assert torch.allclose(on_label[present], batch["objectness"][present], atol=1e-6)
        assert torch.allclose(on_label[~present], torch.tensor(0.1))
        assert torch.allclose(batch["soft_label"].sum(1), torch.ones(64))
        found[by] = batch["objectness"]
    assert (found["box"] >= found["mask"] - 2 / 24).all()
    assert (found["box"] > found["mask"]).any()


def test_context_is_uniform_whatever_beta() -> None:
    for labels in (None, ObjectnessLabels(beta=0.25)):
        batch, _ = batch_of(labels, ResizedCrop(), context=True)
        marked = batch["context"]
        assert int(marked.sum()) == 16
        assert torch.allclose(batch["soft_label"][marked], torch.tensor(0.1))
        if labels is None:
            hard = batch["soft_label"][~marked]
            assert torch.equal(hard.argmax(1), batch["label"][~marked])
            assert (hard.amax(1) == 1).all()


def test_hard_labels_see_the_same_crops() -> None:
    hard, _ = batch_of(None, ResizedCrop())
    soft, _ = batch_of(ObjectnessLabels(), ResizedCrop())
    assert torch.equal(hard["image"], soft["image"])
    assert "soft_label" not in hard


def test_beta_0_trains_as_hard_labels_do(tmp_path: Path, tiny: dict[str, Any]) -> None:
    tiny |= {"augment": "resized_crop", "evaluate": {"resamples": 0}}
    plain = run(parse(RunConfig, tiny), tmp_path, show=False)
    labels = {"labels": {"name": "objectness", "beta": 0.0}}
    same = run(parse(RunConfig, {**tiny, **labels}), tmp_path, show=False)
    first, second = (torch.from_numpy(d.predictions("test")["logits"]) for d in (plain, same))
    assert plain.path != same.path
    assert torch.allclose(first, second, atol=1e-4)


@pytest.mark.parametrize("mixing", ["cutmix", "ricap"])
def test_run_with_everything(tmp_path: Path, tiny: dict[str, Any], mixing: str) -> None:
    tiny |= {
        "augment": {"name": "resized_crop", "mixing": mixing, "rotation": 10.0},
        "labels": {"name": "objectness", "beta": 0.75},
        "objects": {"single": True, "context": 0.15},
        "evaluate": {"resamples": 0, "context": True},
    }
    tiny["train"] |= {"epochs": 1}
    metrics = run(parse(RunConfig, tiny), tmp_path, show=False).metrics()
    assert metrics["context"]["samples"] == 50
    assert metrics["context"]["average_confidence"] >= 0.1
    assert metrics["objectness"]["ece_15"] == pytest.approx(metrics["test"]["ece"])
    assert sum(metrics["objectness"]["curve"]["counts"]) == 50


def test_unused_sections_leave_names_of_runs_alone(tiny: dict[str, Any]) -> None:
    config = parse(RunConfig, tiny)
    dumped = config.model_dump(mode="json")
    assert not {"labels", "objects"} & set(dumped)
    assert "context" not in dumped["evaluate"]
    explicit = {**tiny, "labels": None, "objects": None}
    explicit["evaluate"] = {**tiny["evaluate"], "context": False}
    assert fingerprint(parse(RunConfig, explicit)) == fingerprint(config)
    used = parse(RunConfig, {**tiny, "labels": "objectness"})
    assert fingerprint(used) != fingerprint(config)
    assert used.model_dump(mode="json")["labels"]["beta"] == 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"labels": {"name": "objectness", "gamma": 1}}, "no parameter 'gamma'"),
        ({"labels": {"name": "objectness", "by": "eye"}}, "by of labels"),
        ({"objects": {"context": 1.0}}, "objects.context"),
        ({"augment": {"name": "resized_crop", "mixing": "puzzle"}}, "mixing"),
    ],
)
def test_strict(tiny: dict[str, Any], wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {**tiny, **wrong})


def test_data_without_boxes_is_named() -> None:
    import dataclasses

    data = dataclasses.replace(scenes.generate(8, size=16), boxes=None)
    with pytest.raises(ValueError, match="needs data with boxes"):
        label_samples(ObjectnessLabels(), data, None)


def test_mixing_by_name_keeps_the_crop() -> None:
    mixed, plain = resized_crop(mixing="cutmix"), resized_crop()
    sample = scenes.generate(4, size=16).batch(torch.arange(4))
    numbers = torch.rand(4, plain.draws)
    assert torch.equal(mixed.apply(sample, numbers)["image"], plain.apply(sample, numbers)["image"])


def test_measures_by_hand() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2]])
    found = Predictions(probs.log(), torch.tensor([0, 0, 0]), torch.arange(3))
    context = context_metrics(found)
    assert context["accuracy"] == pytest.approx(2 / 3)
    assert context["average_confidence"] == pytest.approx(2.3 / 3)
    assert context["overconfidence"] == pytest.approx(0.6)
    assert context["underconfidence"] == pytest.approx(0.15)
    curve = objectness_metrics(found, torch.tensor([0.05, 0.95, 1.0]))
    assert curve["mean_objectness_deviation"] == pytest.approx((0.85 + 0.35 + 0.2) / 3)
    assert curve["curve"]["counts"] == [1, *[0] * 8, 2]
    assert curve["curve"]["confidence"][9] == pytest.approx(0.7)
    assert curve["curve"]["accuracy"][9] == pytest.approx(0.5)
