"""`sfumato.audit`: arrays of every kind in, one verdict out, in every form it is shown in."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sfumato
from sfumato.auditing.files import PredictionFile, predictions_of_arrays
from sfumato.metrics import detection_calibration_error
from sfumato.predictions import risk_threshold

PROBS = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
LABELS = np.array([0, 0, 1, 1])
WRONG = "<img src=x>"


def _many(count: int = 400, **more: Any) -> sfumato.auditing.Audit:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, 3, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return sfumato.audit(logits=3 * logits, target=labels, resamples=20, **more)


@pytest.mark.parametrize(
    "given",
    [
        {"probs": PROBS},
        {"probs": torch.from_numpy(PROBS)},
        {"probs": PROBS.tolist()},
        {"probs": torch.tensor(PROBS, dtype=torch.float32, requires_grad=True)},
        {"logits": np.log(PROBS)},
        {"probs": PROBS[:, 1]},
        {"confidence": PROBS.max(1), "predicted": PROBS.argmax(1)},
        {"confidence": torch.from_numpy(PROBS).amax(1), "correct": [True, True, False, True]},
    ],
)
def test_every_way_to_say_the_same(given: dict[str, Any]) -> None:
    found = sfumato.audit(resamples=0, **given, target=LABELS)
    assert found.metrics["accuracy"] == pytest.approx(0.75)
    assert found.metrics["ece"] == pytest.approx(0.35, abs=1e-6)
    assert found.metrics["aurc"] == pytest.approx(0.1458333, abs=1e-6)
    assert ("nll" in found.metrics) == ("confidence" not in given)
    if "nll" in found.metrics:
        own = PROBS[np.arange(4), LABELS]
        assert found.metrics["nll"] == pytest.approx(-np.log(own).mean(), abs=1e-6)


def test_names_of_classes_and_groups_are_shown() -> None:
    found = sfumato.audit(
        probs=PROBS,
        target=["cat", "cat", "dog", "dog"],
        classes=["cat", "dog"],
        groups=list("abab"),
    )
    model = found.to_dict()["models"][0]
    assert {row["name"] for row in model["by_class"]} == {"cat", "dog"}
    assert [row["count"] for row in model["by_group"]] == [2, 2]
    assert model["mistakes"][0] == {
        "confidence": pytest.approx(0.7),
        "file": "model",
        "row": 2,
        "label": "dog",
        "predicted": "cat",
    }


def test_series_and_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "label": ["cat", "cat", "dog", "dog"],
            "group": list("abab"),
            "time": pandas.date_range("2026-01-01", periods=4, tz="Europe/Paris"),
        }
    )
    settings: dict[str, Any] = {"probs": pandas.DataFrame(PROBS), "resamples": 0}
    for kind in ("str", "object", "category"):
        found = sfumato.audit(
            classes=["cat", "dog"],
            groups=frame.group.astype(kind),
            time=frame.time,
            **settings,
            target=frame.label.astype(kind),
        )
        model = found.to_dict()["models"][0]
        assert found.metrics["accuracy"] == pytest.approx(0.75)
        assert {row["name"] for row in model["by_group"]} == {"a", "b"}
        assert model["is_dated"]
    missing = pandas.Series(["cat", None, "dog", "dog"])
    with pytest.raises(TypeError, match="target must be an array of one type"):
        sfumato.audit(classes=["cat", "dog"], **settings, target=missing)


def test_memory_that_must_not_be_written_is_copied() -> None:
    """A frame of pandas hands out its columns as one array, transposed and read-only."""
    columns = np.ascontiguousarray(PROBS.T)
    columns.flags.writeable = False
    file = predictions_of_arrays("model", {"target": LABELS, "probs": columns.T})
    assert isinstance(file, PredictionFile)
    assert file.predictions.data_ptr() != columns.ctypes.data


@pytest.mark.parametrize("zone", [None, timezone.utc, timezone(timedelta(hours=2))])
def test_dates_are_times(zone: timezone | None) -> None:
    times = [datetime(2026, 1, day, tzinfo=zone) for day in (1, 2, 3, 4)]
    shift = 0.0 if zone is None else zone.utcoffset(None).total_seconds()
    given = [times] if zone else [times, [each.date() for each in times]]
    for each in given:
        file = predictions_of_arrays("model", {"target": LABELS, "probs": PROBS, "time": each})
        assert file.is_dated
        assert file.times is not None
        assert file.times[0] == 1767225600 - shift


def test_numbers_that_pandas_keeps_as_objects() -> None:
    labels = np.array([0, 0, 1, 1], dtype=object)
    assert sfumato.audit(probs=PROBS, target=labels, resamples=0).metrics["accuracy"] == 0.75


@pytest.mark.parametrize("labels", [LABELS, np.array([10, 10, 20, 20])])
def test_names_of_classes_may_be_numbers(labels: np.ndarray) -> None:
    found = sfumato.audit(probs=PROBS, target=labels, classes=[10, 20], resamples=0)  # type: ignore[list-item]
    assert found.metrics["accuracy"] == 0.75
    assert {row["name"] for row in found.to_dict()["models"][0]["by_class"]} == {"10", "20"}


def test_true_and_false_are_two_classes() -> None:
    assert sfumato.audit(probs=PROBS[:, 1], target=LABELS == 1).metrics["accuracy"] == 0.75


def test_class_names_of_confidences() -> None:
    given: dict[str, Any] = {"confidence": PROBS.max(1), "predicted": PROBS.argmax(1)}
    found = sfumato.audit(classes=["cat", "dog"], **given, target=LABELS)
    model = found.to_dict()["models"][0]
    assert {row["name"] for row in model["by_class"]} == {"cat", "dog"}
    assert model["mistakes"][0]["label"] == "dog"


def test_bfloat16_may_be_rounded() -> None:
    probs = torch.rand(500, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    rounded = sfumato.audit(probs=probs.bfloat16(), target=probs.argmax(1), resamples=0)
    exact = sfumato.audit(probs=probs, target=probs.argmax(1), resamples=0)
    assert rounded.metrics["nll"] == pytest.approx(exact.metrics["nll"], abs=1e-3)


def test_every_form_of_the_result(tmp_path: Path) -> None:
    found = _many(name=WRONG)
    assert found.verdict == "overconfident"
    assert f"{WRONG} is overconfident" in found.summary()
    assert "overconfident" in repr(found)
    low, high = found.intervals["ece"]
    assert low < found.metrics["ece"] < high
    page = found.to_html(tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    markdown = found.to_markdown()
    assert "| ECE % |" in markdown
    for text in (page, markdown, found._repr_html_()):
        assert WRONG not in text
    assert json.loads(json.dumps(found.to_dict()))["models"][0]["samples"] == 400


def test_figure_shows_both_halves() -> None:
    pytest.importorskip("matplotlib")
    left, right = _many().figure().axes
    assert left.get_xlabel() == "confidence"
    assert "kept" in right.get_xlabel()
    assert len(right.lines[0].get_xdata()) > 100


def test_a_figure_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"matplotlib: python3 -m pip install 'sfumato\[study\]'"):
        _many().figure()


def test_label_maps() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, 4, 4, generator=generator)
    labels = torch.randint(0, 3, (5, 4, 4), generator=generator)
    found = sfumato.audit(logits=logits, target=labels, resamples=0)
    expected = (logits.argmax(1) == labels).double().mean()
    assert found.metrics["accuracy"] == pytest.approx(float(expected))
    assert found.to_dict()["models"][0]["samples"] == 80


def _over_time(
    gap: float, later: float, count: int = 4000, seed: int = 0
) -> sfumato.auditing.Audit:
    """Predictions of 30 days, too sure by `gap`, from the middle on by `later`."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 0.95, count)
    gaps = np.where(np.arange(count) < count / 2, gap, later)
    times = np.datetime64("2026-01-31T11:00") + np.linspace(0, 30 * 24 * 60, count).astype(int)
    correct = rng.random(count) < confidence - gaps
    return sfumato.audit(confidence=confidence, correct=correct, time=times, resamples=0)


def test_times_become_periods_with_dates_for_names() -> None:
    found = _over_time(0.0, 0.0)
    model = found.to_dict()["models"][0]
    assert model["period"] == "day"
    assert [row["name"] for row in model["by_time"]][:2] == ["2026-01-31", "2026-02-01"]
    assert model["by_time"][0]["start"] == "2026-01-31T11:00:00Z"  # where the data begin
    assert model["by_time"][1]["start"] == "2026-02-01T00:00:00Z"
    assert sum(row["count"] for row in model["by_time"]) == 4000
    assert "No alarm over time" in found.summary()
    numbers = sfumato.audit(
        confidence=[0.5] * 400, correct=[0, 1] * 200, time=np.arange(400) + 1.76e9
    )
    names = [row["name"] for row in numbers.to_dict()["models"][0]["by_time"]]
    assert names[0] == "1760000000"
    assert len(set(names)) == len(names)


def test_a_model_that_is_off_from_the_start_does_not_change() -> None:
    found = _over_time(0.15, 0.15)
    drift = found.to_dict()["models"][0]["drift"]
    assert drift["alarm"] is None
    assert drift["from_start"]
    assert "No change over time shows: model is off from the start" in found.summary()
    assert "2026-01-31 to 2026-02-06" in found.summary()


@pytest.mark.parametrize("gap", [0.0, 0.15])
def test_a_change_is_found_beside_the_start(gap: float) -> None:
    found = _over_time(gap, gap + 0.2)
    drift = found.to_dict()["models"][0]["drift"]
    assert "2026-02-15T" < drift["alarm"] < "2026-02-25T"  # the change is of the 15th
    assert 2000 < drift["after"] < 3200
    assert drift["from_start"] == (gap > 0)
    assert "model changes over time" in found.summary()
    assert f"The alarm goes off at {drift['alarm'][:10]}" in found.summary()


@pytest.mark.parametrize(
    ("labels", "given", "message"),
    [
        (LABELS, {}, "exactly one of probs, logits and confidence, got none"),
        (LABELS, {"probs": PROBS, "logits": PROBS}, "got probs, logits"),
        (LABELS, {"confidence": PROBS[:, 0]}, "one of correct and predicted, got none"),
        (LABELS, {"probs": PROBS, "correct": LABELS}, "correct follows from probs"),
        (None, {"probs": PROBS}, "target must be given with probs"),
        (None, {"confidence": PROBS[:, 0], "predicted": LABELS}, "target must be given with pred"),
        (LABELS[:3], {"probs": PROBS}, "target must have one entry for each of 4"),
        (LABELS + 1, {"probs": PROBS}, r"row 2: label 2 is outside \[0, 2\)"),
        (LABELS, {"probs": PROBS - 0.3}, "row 0: 'probs' is negative"),
        (LABELS, {"probs": 2 * PROBS}, "row 0: 'probs' sums to 2"),
        (LABELS, {"probs": PROBS * np.nan}, "row 0: 'probs' holds NaN"),
        (LABELS, {"probs": PROBS[:, :1]}, r"with C >= 2, got float64 \(4, 1\)"),
        (LABELS, {"confidence": 100 * PROBS[:, 0], "correct": LABELS}, "outside .0, 1.; .*100"),
        (["cat"] * 4, {"probs": PROBS}, "'cat' is neither a class name"),
        (LABELS[:0], {"probs": PROBS[:0]}, "at least one prediction"),
        (LABELS, {"probs": PROBS, "classes": ["a", "a"]}, "'a' names several classes"),
        (LABELS, {"probs": PROBS, "time": [1, 2, np.nan, 4]}, "row 2: 'time' must be a number"),
        (LABELS, {"probs": PROBS, "delta": 7}, "delta must be"),
    ],
)
def test_what_cannot_be_audited(labels: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        sfumato.audit(**given, target=labels)
    assert "--" not in str(refused.value)  # options are for the command line


def test_parts_of_an_infinite_likelihood_are_no_numbers(tmp_path: Path) -> None:
    probs = np.array([[1.0, 0.0], [0.4, 0.6]] * 10)
    page = (
        sfumato.audit(probs=probs, target=np.ones(20, int))
        .to_html(tmp_path / "page.html")
        .read_text()
    )
    assert "What one temperature would correct" in page
    assert ">–<" in page
    assert ">nan" not in page


def test_detections_and_a_threshold() -> None:
    rng = np.random.default_rng(0)
    image = np.arange(600).repeat(4)
    confidence = rng.uniform(0.3, 1, 2400)
    correct = rng.random(2400) < confidence
    corner = rng.uniform(0, 0.5, (2400, 2))
    names = [f"{number}.jpg" for number in image]
    found = sfumato.audit(
        confidence=confidence,
        correct=correct,
        images=names,
        boxes=np.hstack([corner, corner + 0.3]),
        target_risk=0.2,
        resamples=20,
    )
    exact = risk_threshold(confidence, correct, target_risk=0.2, images=names)
    assert exact.confidence is not None
    assert f"from a confidence of {exact.confidence:.4g} on" in found.summary()
    assert "count its 600 images" in found.summary()
    plain = detection_calibration_error(confidence, correct)
    assert found.metrics["d_ece"] == pytest.approx(float(plain))
    with pytest.raises(ValueError, match="images goes with confidence, not with probs"):
        sfumato.audit(probs=[[0.9, 0.1]], target=[0], images=["a"])
    with pytest.raises(ValueError, match="target_risk must be"):
        sfumato.audit(confidence=[0.9], correct=[1], target_risk=2.0)


def test_probabilities_are_no_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(60, 3, generator=generator).softmax(1)
    labels = torch.randint(3, (60,), generator=generator)
    for given in (probs, probs.numpy(), probs.tolist()):
        with pytest.raises(
            ValueError, match=r"must be raw scores, got probabilities .*probs="
        ) as caught:
            sfumato.audit(logits=given, target=labels)
        assert "--" not in str(caught.value)
    assert (
        sfumato.audit(logits=probs, target=labels, any_logits=True, resamples=20).metrics["nll"] > 0
    )
