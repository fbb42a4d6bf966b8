from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from sfumato.integrations import (
    CalibratedClassifier,
    ConformalClassifier,
    RiskControlledClassifier,
    ScoreCalibrator,
)
from sfumato.integrations.sklearn import METHODS
from sfumato.predictions import TemperatureScaler

FEATURES = "X must hold one column of scores for each class, here it holds features"
# What does not apply to an estimator whose columns are classes.
NOT_APPLICABLE = {
    "check_classifiers_train": FEATURES,
    "check_classifiers_classes": FEATURES,
    "check_estimators_fit_returns_self": FEATURES,
    "check_estimators_overwrite_params": FEATURES,
    "check_estimators_nan_inf": FEATURES,
    "check_readonly_memmap_input": FEATURES,
    "check_fit2d_predict1d": "one-dimensional scores are those of two classes",
}


def _expected(estimator: Any) -> dict[str, str]:
    return NOT_APPLICABLE if isinstance(estimator, ScoreCalibrator) else {}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        CalibratedClassifier(LogisticRegression(), cv=3),
        CalibratedClassifier(LogisticRegression(), cv=3, method="vector"),
        CalibratedClassifier(LogisticRegression(), cv=3, method="logistic"),
        CalibratedClassifier(LogisticRegression(), cv=3, method="venn_abers"),
        ConformalClassifier(LogisticRegression()),
        RiskControlledClassifier(LogisticRegression()),
        ScoreCalibrator(scores="logits"),
    ],
    expected_failed_checks=_expected,
)
def test_scikit_learns_own_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def overconfident() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of three times the true logits, and labels as strings."""
    rng = np.random.default_rng(0)
    logits = 1.5 * rng.normal(size=(3000, 3))
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    codes = (rng.random((3000, 1)) > true.cumsum(1)).sum(1)
    sure = np.exp(3 * logits) / np.exp(3 * logits).sum(1, keepdims=True)
    return sure, np.array(["cat", "dog", "eel"])[codes]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_calibrates_labels_that_are_strings(
    overconfident: tuple[np.ndarray, np.ndarray], method: str
) -> None:
    probs, labels = overconfident
    found = ScoreCalibrator(method).fit(probs[:2000], labels[:2000])
    after = found.predict_proba(probs[2000:])
    truth = (labels[2000:, None] == found.classes_).astype(float)
    assert list(found.classes_) == ["cat", "dog", "eel"]
    assert after.sum(1) == pytest.approx(1)
    if method != "bias":  # which only shifts
        assert ((after - truth) ** 2).mean() < ((probs[2000:] - truth) ** 2).mean() - 0.01
    assert (found.predict(probs[2000:]) == found.classes_[after.argmax(1)]).all()


def test_the_module_below_does_the_work(overconfident: tuple[np.ndarray, np.ndarray]) -> None:
    probs, labels = overconfident
    found = ScoreCalibrator().fit(probs, labels)
    codes = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    scaler = TemperatureScaler().fit(probs=torch.from_numpy(probs), target=codes)
    assert found.calibrator_.temperature == scaler.temperature == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("scores", ["probs", "logits"])
def test_two_classes_in_one_column(scores: Any) -> None:
    rng = np.random.default_rng(0)
    logit = 3 * rng.normal(size=1000)
    y = rng.random(1000) < 1 / (1 + np.exp(-logit / 2))
    one = logit if scores == "logits" else 1 / (1 + np.exp(-logit))
    zero = np.zeros(1000) if scores == "logits" else 1 - one
    both = np.stack([zero, one], 1)
    calibrator = ScoreCalibrator(scores=scores)
    expected = clone(calibrator).fit(both, y).predict_proba(both)
    for column in (one, one[:, None], one.tolist()):
        assert calibrator.fit(column, y).predict_proba(column) == pytest.approx(expected)


def test_integer_labels_may_miss_a_class() -> None:
    probs = np.full((40, 3), 1 / 3)
    found = ScoreCalibrator("vector").fit(probs, np.arange(40) % 2)
    assert list(found.classes_) == [0, 1, 2]
    with pytest.raises(ValueError, match="columns for 3 classes, but y holds 2"):
        ScoreCalibrator().fit(probs, ["a", "b"] * 20)


@pytest.mark.parametrize(
    "method", [name for name in METHODS if name != "auto" and "spline" not in name]
)
def test_a_weight_of_two_is_two_copies(
    overconfident: tuple[np.ndarray, np.ndarray], method: str
) -> None:
    probs, labels = (each[:600] for each in overconfident)
    weight = np.arange(600) % 3
    weighted = ScoreCalibrator(method).fit(probs, labels, sample_weight=weight)
    copied = ScoreCalibrator(method).fit(np.repeat(probs, weight, 0), np.repeat(labels, weight))
    expected = copied.predict_proba(probs)
    assert weighted.predict_proba(probs) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_equal_weights_change_nothing(
    overconfident: tuple[np.ndarray, np.ndarray], method: str
) -> None:
    probs, labels = (each[:600] for each in overconfident)
    plain = ScoreCalibrator(method).fit(probs, labels).predict_proba(probs)
    for weight in (1.0, 1 / 600):  # shares that sum to 1 are no single sample
        found = ScoreCalibrator(method).fit(probs, labels, sample_weight=np.full(600, weight))
        assert found.predict_proba(probs) == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("weight", [[-1.0] * 40, [0.0] * 40, [np.nan] * 40, [1.0] * 39])
def test_weights_that_make_no_sense(weight: list[float]) -> None:
    with pytest.raises(ValueError, match=r"sample_weight|Sample weights|NaN"):
        ScoreCalibrator().fit(np.full((40, 2), 0.5), [0, 1] * 20, sample_weight=weight)


def test_used_before_fit() -> None:
    with pytest.raises(NotFittedError):
        ScoreCalibrator().predict_proba([[0.5, 0.5]])
    with pytest.raises(NotFittedError):
        ConformalClassifier().predict_set([[0.5, 0.5]])
    with pytest.raises(NotFittedError):
        RiskControlledClassifier().accept([[0.5, 0.5]])


def test_pipelines_and_searches() -> None:
    features, labels = load_iris(return_X_y=True)
    inner = make_pipeline(StandardScaler(), LogisticRegression())
    search = GridSearchCV(
        CalibratedClassifier(inner, cv=3),
        {"method": ["temperature", "vector"], "options": [None, {}]},
        scoring="neg_log_loss",
        cv=3,
    )
    assert search.fit(features, labels).best_score_ > -0.2
    search = GridSearchCV(CalibratedClassifier(inner), {"options": [{"penalty": 0.1}, None]}, cv=3)
    assert search.set_params(estimator__method="vector").fit(features, labels).best_score_ > 0.9
    assert cross_val_score(CalibratedClassifier(inner), features, labels, cv=3).mean() > 0.9
    sharper = FunctionTransformer(lambda probs: probs**3 / (probs**3).sum(1, keepdims=True))
    probs = LogisticRegression(max_iter=500).fit(features, labels).predict_proba(features)
    assert make_pipeline(sharper, ScoreCalibrator()).fit(probs, labels).score(probs, labels) > 0.9


def test_decision_functions_and_fitted_classifiers() -> None:
    features, labels = load_iris(return_X_y=True)
    for inner in (LinearSVC(), LinearSVC().fit(features, labels)):
        cv = "prefit" if hasattr(inner, "coef_") else 3
        found = CalibratedClassifier(inner, method="vector", cv=cv).fit(features, labels)
        assert found.predict_proba(features).sum(1) == pytest.approx(1)
        assert found.score(features, labels) > 0.9
    two = labels > 0
    found = CalibratedClassifier(LinearSVC(), cv=3).fit(features, two)
    assert found.predict_proba(features).shape == (150, 2)


def test_platt_scaling_is_that_of_scikit_learn() -> None:
    features, labels = load_iris(return_X_y=True)
    two = np.array(["no", "yes"])[(labels > 1).astype(int)]
    ours = CalibratedClassifier(LinearSVC(), cv=3, method="logistic").fit(features, two)
    theirs = CalibratedClassifierCV(LinearSVC(), cv=3, method="sigmoid", ensemble=False)
    expected = theirs.fit(features, two).predict_proba(features)
    assert ours.predict_proba(features) == pytest.approx(expected, abs=1e-6)


def test_too_few_of_a_class() -> None:
    features, labels = np.random.default_rng(0).normal(size=(20, 2)), [0] * 18 + [1] * 2
    with pytest.raises(ValueError, match="cv=5 needs as many samples of every class"):
        CalibratedClassifier().fit(features, labels)


def _draw(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    features, labels = make_classification(
        size, 6, n_informative=4, n_classes=3, flip_y=0.1, random_state=seed
    )
    return features, np.array(["a", "b", "c"])[labels]


def test_sets_hold_the_label_as_often_as_promised() -> None:
    coverage = []
    for seed in range(30):
        features, labels = _draw(seed, 1500)
        found = ConformalClassifier(alpha=0.1, method="aps", calibration_size=0.4)
        found.fit(features[:500], labels[:500])
        sets = found.predict_set(features[500:])
        own = np.searchsorted(found.classes_, labels[500:])
        coverage.append(sets[np.arange(1000), own].mean())
    assert np.mean(coverage) == pytest.approx(0.9, abs=0.015)


def test_answers_are_as_right_as_promised() -> None:
    broken = []
    for seed in range(40):
        features, labels = _draw(seed, 3000)
        found = RiskControlledClassifier(target_risk=0.3, delta=0.1, calibration_size=0.5)
        found.fit(features[:1000], labels[:1000])
        answers = found.predict_or_abstain(features[1000:], abstain="?")
        answered = answers != "?"
        assert (answered == found.accept(features[1000:])).all()
        if answered.any():
            broken.append((answers != labels[1000:])[answered].mean() > 0.3)
    assert len(broken) > 10  # of 40 draws, a threshold was found
    assert sum(broken) <= 8  # of 40 at 10 %: more has a probability below 2 %


def test_a_fitted_classifier_is_taken_as_it_is() -> None:
    features, labels = _draw(0, 600)
    inner = LogisticRegression().fit(features[:300], labels[:300])
    found = ConformalClassifier(inner, calibration_size=1.0).fit(features[300:], labels[300:])
    assert found.estimator_ is inner
    with pytest.raises(NotFittedError):
        ConformalClassifier(calibration_size=1.0).fit(features, labels)
    with pytest.raises(ValueError, match="calibration_size"):
        ConformalClassifier(calibration_size=0.0).fit(features, labels)
