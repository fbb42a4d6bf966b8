"""What is measured can change after training: only the new part is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato._core.spec import content_hash
from sfumato.engine import (
    RunConfig,
    RunDirectory,
    Trainer,
    parse,
    run,
    training_content,
)
from sfumato.engine.evaluation import altered, classifier

EVALUATE = {"resamples": 20, "corruptions": ["fog"], "severities": [2], "corrupted_images": 20}
MORE = {
    **EVALUATE,
    "corruptions": ["contrast", "fog"],
    "severities": [2, 4],
    "ensemble_sizes": [1, 2],
}


@pytest.fixture
def dropout(tiny: dict[str, Any]) -> dict[str, Any]:
    """A run whose predictions are random, so that a shared random stream would show."""
    model = {"name": "resnet", "depth": 8, "width": 4, "dropout": 0.3}
    train = {"epochs": 1, "batch_size": 32}
    return {**tiny, "model": model, "train": train, "predict": {"mc_dropout": 3}}


def _run(config: dict[str, Any], root: Path, **changes: Any) -> RunDirectory:
    return run(parse(RunConfig, {**config, **changes}), root, show=False)


def test_more_evaluations_cost_only_themselves(
    tmp_path: Path, dropout: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _run(dropout, tmp_path / "at once", evaluate=MORE)
    first = _run(dropout, tmp_path / "in steps", evaluate=EVALUATE)
    measured: list[tuple[str, int]] = []
    corrupted_batches = altered.corrupted_batches

    def watched(*arguments: Any, **options: Any) -> Any:
        measured.append(arguments[1:3])
        return corrupted_batches(*arguments, **options)

    def forbidden(*_: Any) -> Any:
        raise AssertionError("trained or predicted again")

    monkeypatch.setattr(Trainer, "_epoch", forbidden)
    monkeypatch.setattr(classifier, "predict", forbidden)
    monkeypatch.setattr(altered, "corrupted_batches", watched)
    second = _run(dropout, tmp_path / "in steps", evaluate=MORE)
    assert measured == [("contrast", 2), ("contrast", 4), ("fog", 4)]
    assert second.path != first.path
    assert second.training == first.training
    assert second.metrics() == whole.metrics()
    assert second.metrics()["test"] == first.metrics()["test"]
    assert np.array_equal(second.predictions("test")["logits"], first.predictions("test")["logits"])
    assert second.log() == first.log()
    assert (second.path / "log.jsonl").read_text() == (first.path / "log.jsonl").read_text()


def test_the_curve_ends_at_the_prediction(tmp_path: Path, dropout: dict[str, Any]) -> None:
    """Also where another run of the same training has a curve, from other passes."""
    evaluate = {"resamples": 0, "ensemble_sizes": [1, 4]}
    _run(dropout, tmp_path, predict={"mc_dropout": 8}, evaluate=evaluate)
    metrics = _run(dropout, tmp_path, predict={"mc_dropout": 4}, evaluate=evaluate).metrics()
    for name in ("nll", "accuracy", "ece"):
        assert metrics["ensemble"][name][-1] == pytest.approx(metrics["test"][name])


def test_a_curve_made_later_has_the_passes_of_the_prediction(
    tmp_path: Path, dropout: dict[str, Any]
) -> None:
    _run(dropout, tmp_path, evaluate={"resamples": 0})
    later = _run(dropout, tmp_path, evaluate={"resamples": 0, "ensemble_sizes": [1, 3]}).metrics()
    assert later["ensemble"]["nll"][-1] == pytest.approx(later["test"]["nll"])


def test_another_way_to_predict_keeps_the_weights(
    tmp_path: Path, dropout: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = _run(dropout, tmp_path)
    monkeypatch.setattr(Trainer, "_epoch", lambda *_: pytest.fail("trained again"))
    plain = _run(dropout, tmp_path, predict={})
    assert plain.checkpoint == sampled.checkpoint
    assert plain.metrics()["test"]["nll"] != sampled.metrics()["test"]["nll"]
    assert plain.metrics()["test"]["samples"] == 50


def test_every_other_section_names_the_training(tiny: dict[str, Any]) -> None:
    def name(**changes: Any) -> str:
        return content_hash(training_content(parse(RunConfig, {**tiny, **changes})))

    assert name() == name(evaluate={"resamples": 3}) == name(predict={"mc_dropout": 2})
    changed = [
        name(seed=1),
        name(loss="acls"),
        name(inputs="mollify"),
        name(augment=None),
        name(model={"name": "vgg"}),
        name(train={"epochs": 4, "batch_size": 32}),
        name(data={**tiny["data"], "train": 97}),
    ]
    assert len({name(), *changed}) == len(changed) + 1


def test_cost_and_environment_are_recorded(tmp_path: Path, dropout: dict[str, Any]) -> None:
    from sfumato._core.files import read_json

    done = _run(dropout, tmp_path)
    cost = read_json(done.path / "cost.json")
    assert cost["epochs"] == 1
    assert cost["training_seconds"] > 0
    assert 0 < cost["inference_seconds_per_image"] < 1
    facts = read_json(done.path / "environment.json")
    assert facts["cores"] >= 1
    assert facts["versions"]["torch"].startswith("2.")
    assert read_json(done.training / "environment.json")["processor"] == facts["processor"]
