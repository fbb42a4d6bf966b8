"""Maps of one class against the rest: against scikit-learn, netcal and venn-abers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from sfumato.predictions import (
    BetaScaler,
    HistogramScaler,
    IsotonicScaler,
    LogisticScaler,
    VennAbersScaler,
    choose_calibrator,
    load_calibrator,
)
from sfumato.predictions.calibrator import BY_PLACE, CONFIDENCE_METHODS, SCALERS
from sfumato.predictions.classwise import fit_place, place_features, with_place
from sfumato.predictions.onnx_calibrator import largest_difference

ALL = (LogisticScaler, BetaScaler, HistogramScaler, IsotonicScaler, VennAbersScaler)


@pytest.fixture(scope="module")
def two() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log odds that say too much, whether it was so, and how often each was seen."""
    rng = np.random.default_rng(0)
    odds = 3 * rng.normal(size=400)
    labels = (rng.random(400) < 1 / (1 + np.exp(-odds / 2 - 0.3))).astype(int)
    return odds, labels, rng.integers(0, 3, 400).astype(float)


def both(odds: np.ndarray) -> np.ndarray:
    return np.stack([np.zeros_like(odds), odds], 1)


def shares(odds: np.ndarray) -> np.ndarray:
    second = 1 / (1 + np.exp(-odds))
    return np.stack([1 - second, second], 1)


@pytest.mark.parametrize("weighted", [False, True])
def test_logistic_is_platts(two: tuple[np.ndarray, ...], weighted: bool) -> None:
    odds, labels, weight = two
    given = weight if weighted else None
    theirs = _SigmoidCalibration().fit(odds, labels, given).predict(odds)
    ours = LogisticScaler().fit(logits=both(odds), target=labels, sample_weight=given)
    assert ours.predict_proba(logits=both(odds))[:, 1] == pytest.approx(theirs, abs=1e-7)


def test_logistic_without_priors_is_logistic_regression(two: tuple[np.ndarray, ...]) -> None:
    odds, labels, _ = two
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10000).fit(odds[:, None], labels)
    ours = LogisticScaler(platt=False).fit(logits=both(odds), target=labels)
    expected = theirs.predict_proba(odds[:, None])
    assert ours.predict_proba(logits=both(odds)) == pytest.approx(expected, abs=1e-6)


def test_netcal(two: tuple[np.ndarray, ...]) -> None:
    binning, scaling = (pytest.importorskip(f"netcal.{name}") for name in ("binning", "scaling"))
    odds, labels, _ = two
    probs = shares(odds)
    pairs = {
        "logistic": (scaling.LogisticCalibration(), LogisticScaler(platt=False)),
        "beta": (scaling.BetaCalibration(), BetaScaler(platt=False)),
        "histogram": (binning.HistogramBinning(10), HistogramScaler()),
    }
    for name, (theirs, ours) in pairs.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.fit(probs[:, 1], labels)
        found = ours.fit(probs=probs, target=labels).predict_proba(probs=probs)[:, 1]
        # netcal ends its search at 1e-6.
        assert found == pytest.approx(theirs.transform(probs[:, 1]), abs=1e-5), name


@pytest.mark.parametrize("digits", [16, 2])
def test_venn_abers(two: tuple[np.ndarray, ...], digits: int) -> None:
    """With scores that all differ, and with ties."""
    venn_abers = pytest.importorskip("venn_abers")
    odds, labels, _ = two
    first = shares(odds)[:, 1].round(digits).clip(0.01, 0.99)
    probs = np.stack([1 - first, first], 1)
    new = np.concatenate([np.random.default_rng(1).random(300), first])
    new = np.stack([1 - new, new], 1)
    peer = venn_abers.VennAbers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer.fit(probs, labels)
        mean, pairs = peer.predict_proba(new)
    ours = VennAbersScaler().fit(probs=probs, target=labels)
    assert ours.predict_proba(probs=new) == pytest.approx(mean, abs=1e-12)
    assert ours.predict_interval(probs=new)[:, 1] == pytest.approx(pairs, abs=1e-12)


def test_venn_abers_by_its_definition(two: tuple[np.ndarray, ...]) -> None:
    """Two isotonic regressions for every new score, with weights."""
    odds, labels, weight = two
    probs, labels, weight = shares(odds)[:60].round(2).clip(0.01, 0.99), labels[:60], weight[:60]
    probs[:, 0] = 1 - probs[:, 1]
    new = np.linspace(0.005, 0.995, 45)
    ours = VennAbersScaler().fit(probs=probs, target=labels, sample_weight=weight)
    found = ours.predict_interval(probs=np.stack([1 - new, new], 1))[:, 1]
    for place, score in enumerate(new):
        for label in (0, 1):
            curve = IsotonicRegression(y_min=0, y_max=1)
            scores, hits = np.append(probs[:, 1], score), np.append(labels, label)
            curve.fit(scores, hits, sample_weight=np.append(weight, 1.0))
            assert found[place, label] == pytest.approx(curve.predict([score])[0], abs=1e-9)


@pytest.mark.parametrize("scaler", ALL)
def test_each_class_against_the_rest(scaler: Any) -> None:
    """Three classes: one map each, as of two classes, divided by their sum."""
    rng = np.random.default_rng(2)
    logits = 2 * rng.normal(size=(300, 3))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (rng.random((300, 1)) > probs.cumsum(1)).sum(1)
    alone = []
    for c in range(3):
        pair = np.stack([1 - probs[:, c], probs[:, c]], 1)
        fitted = scaler().fit(probs=pair, target=(labels == c).astype(int))
        alone.append(fitted.predict_proba(probs=pair)[:, 1])
    expected = np.stack(alone, 1)
    expected /= expected.sum(1, keepdims=True)
    found = scaler().fit(probs=probs, target=labels).predict_proba(probs=probs)
    assert found == pytest.approx(expected, abs=1e-6)


def test_large_scores_and_classes_apart() -> None:
    """Scores of a support vector machine, in hundreds, that separate the classes."""
    odds = np.linspace(-900.0, 900.0, 40)
    ours = LogisticScaler().fit(logits=both(odds), target=(odds > 0).astype(int))
    theirs = _SigmoidCalibration().fit(odds, (odds > 0).astype(int)).predict(odds)
    assert ours.predict_proba(logits=both(odds))[:, 1] == pytest.approx(theirs, abs=1e-4)
    masked = torch.tensor([[0.0, -torch.inf], [0.0, torch.inf]], dtype=torch.float64)
    assert ours(masked[:1]).softmax(1)[0, 1] < 0.1


def test_scores_that_fall_are_not_turned_around(two: tuple[np.ndarray, ...]) -> None:
    odds, labels, _ = two
    ours = LogisticScaler(platt=False).fit(logits=both(-odds), target=labels)
    assert ours.slopes.tolist() == [[0.0], [0.0]]
    assert ours.predict_proba(logits=both(odds))[:, 1] == pytest.approx(labels.mean())


def test_a_bent_line_follows_a_curve() -> None:
    rng = np.random.default_rng(3)
    odds = 3 * rng.normal(size=5000)
    true = np.where(odds > 0, odds / 4, 2 * odds) - 0.4
    labels = (rng.random(5000) < 1 / (1 + np.exp(-true))).astype(int)
    bent = LogisticScaler(pieces=6).fit(logits=both(odds), target=labels)
    straight = LogisticScaler().fit(logits=both(odds), target=labels)
    target = 1 / (1 + np.exp(-true))
    errors = [
        np.abs(each.predict_proba(logits=both(odds))[:, 1] - target).mean()
        for each in (bent, straight)
    ]
    assert errors[0] < 0.03
    assert errors[1] > 2 * errors[0]


def confidences(count: int = 600) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Overconfident detections, the more so the smaller they are."""
    rng = np.random.default_rng(4)
    confidence = rng.beta(3, 1, count)
    corners = np.sort(rng.random((count, 2, 2)), 1).reshape(count, 4)
    size = corners[:, 2] - corners[:, 0]
    odds = np.log(confidence / (1 - confidence)) / 2 - 1 + 3 * size
    return confidence, rng.random(count) < 1 / (1 + np.exp(-odds)), corners


@pytest.mark.parametrize("method", CONFIDENCE_METHODS)
def test_confidences_as_a_file_and_as_onnx(tmp_path: Path, method: str) -> None:
    pytest.importorskip("onnxruntime")
    confidence, correct, _ = confidences()
    found = choose_calibrator(confidence=confidence, correct=correct, methods=[method])
    assert found.method == method
    after = found.predict_proba(confidence=confidence)
    assert after.mean() == pytest.approx(correct.mean(), abs=0.01)
    order = np.argsort(confidence)
    assert (np.diff(after[order]) >= -1e-12).all()  # a monotone map
    found.save(tmp_path / "c.json")
    loaded = load_calibrator(tmp_path / "c.json")
    assert (loaded.predict_proba(confidence=confidence) == after).all()
    rows = torch.from_numpy(confidence)
    assert largest_difference(found, rows, "confidence") < 1e-6
    with pytest.raises(ValueError, match="give confidence="):
        found.predict_proba(probs=np.full((4, 2), 0.5))


def test_the_choice_for_detections_reads_their_boxes(tmp_path: Path) -> None:
    confidence, correct, boxes = confidences(3000)
    plain = choose_calibrator(confidence=confidence, correct=correct)
    found = choose_calibrator(confidence=confidence, correct=correct, boxes=boxes)
    assert plain.method in CONFIDENCE_METHODS
    assert plain.place is None
    assert found.report["chosen"] == BY_PLACE
    found.save(tmp_path / "c.json")
    after = load_calibrator(tmp_path / "c.json").predict_proba(confidence=confidence, boxes=boxes)
    small = boxes[:, 2] - boxes[:, 0] < 0.2
    for part in (small, ~small):
        assert after[part].mean() == pytest.approx(correct[part].mean(), abs=0.03)
    with pytest.raises(ValueError, match="reads boxes: give them"):
        found.predict_proba(confidence=confidence)
    with pytest.raises(ValueError, match="boxes must be"):
        found.predict_proba(confidence=confidence, boxes=100 * boxes)
    with pytest.raises(ValueError, match="reads boxes"):
        largest_difference(found, torch.from_numpy(confidence), "confidence")


def test_place_is_a_logistic_regression() -> None:
    confidence, correct, boxes = confidences()
    log_probs = torch.from_numpy(np.stack([1 - confidence, confidence], 1)).log()
    corners, right = torch.from_numpy(boxes), torch.from_numpy(correct)
    place = fit_place(log_probs, right, corners)
    moved = with_place(log_probs, corners, place)
    odds = (log_probs[:, 1] - log_probs[:, 0])[:, None].numpy()
    features = np.hstack([odds, place_features(corners).numpy()])
    n, m = correct.sum(), (~correct).sum()
    # Platt's targets, as two weighted samples each.
    share = np.where(correct, (n + 1) / (n + 2), 1 / (m + 2))
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=100_000).fit(
        np.vstack([features, features]),
        np.repeat([1, 0], len(correct)),
        sample_weight=np.concatenate([share, 1 - share]),
    )
    expected = theirs.coef_[0, 1:] / theirs.coef_[0, 0]
    assert place.numpy() == pytest.approx(expected, rel=1e-3, abs=1e-3)
    after = (moved[:, 1] - moved[:, 0]).numpy()
    assert after == pytest.approx(odds[:, 0] + features[:, 1:] @ place.numpy())


@pytest.mark.parametrize("method", ["logistic", "logistic_spline", "beta", "isotonic"])
def test_onnx_of_three_classes(method: str) -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(5)
    logits = 3 * rng.normal(size=(500, 3))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (rng.random((500, 1)) > (probs**0.5).cumsum(1) / (probs**0.5).sum(1)[:, None]).sum(1)
    found = choose_calibrator(logits=logits, target=labels, methods=[method])
    assert found.method == method
    assert largest_difference(found, torch.from_numpy(logits), "logits") < 1e-5


@pytest.mark.parametrize("method", ["histogram", "venn_abers"])
def test_steps_have_no_onnx(method: str) -> None:
    probs = np.random.default_rng(6).dirichlet([0.3, 0.3], 200)
    found = choose_calibrator(probs, (probs[:, 1] > 0.4).astype(int), methods=[method])
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match="jumps from value to value"):
        largest_difference(found, torch.from_numpy(probs), "probs")


@pytest.mark.parametrize("method", SCALERS)
def test_every_method_as_a_file(tmp_path: Path, method: str) -> None:
    rng = np.random.default_rng(7)
    probs = rng.dirichlet([0.4] * 3, 2000)
    soft = probs**0.5 / (probs**0.5).sum(1, keepdims=True)
    labels = (rng.random((2000, 1)) > soft.cumsum(1)).sum(1)
    found = choose_calibrator(probs, labels, methods=[method])
    assert found.method == method
    found.save(tmp_path / "c.json")
    again = load_calibrator(tmp_path / "c.json").predict_proba(probs=probs)
    assert (again == found.predict_proba(probs=probs)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slopes": [[-1.0], [1.0]]}, r"slopes must be in \[0"),
        ({"bias": [[0.0]]}, "bias must have the shape"),
        ({"knots": [[1.0], [0.0]]}, "knots must have the shape"),
    ],
)
def test_a_changed_file_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    import json

    confidence, correct, _ = confidences()
    found = choose_calibrator(confidence=confidence, correct=correct, methods=["logistic"])
    content = found.to_dict()
    content["parameters"] |= change
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load_calibrator(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"confidence": [0.5] * 30}, "correct must be given"),
        ({"correct": [1] * 30}, "go with confidence="),
        ({"confidence": [0.5] * 30, "target": [1] * 30}, "without target"),
        (
            {"confidence": [1.5] * 30, "correct": [1] * 30},
            r"confidence must be numbers in \[0, 1\]",
        ),
        ({"confidence": [0.5] * 5, "correct": [1] * 5}, "at least 20 samples"),
        (
            {"confidence": [0.5] * 30, "correct": [1] * 30, "methods": [BY_PLACE]},
            "reads the boxes of detections",
        ),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_calibrator(**given)
