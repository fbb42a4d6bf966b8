"""Calibration, prediction sets and risk control as scikit-learn estimators.

Around `sfumato.predictions`, whose modules do the work: labels may be strings, scores may be (N,)
for two classes, parameters can be searched, and everything fits into pipelines. Needs scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sfumato._core.checks import check_choice, check_number, check_open_share
from sfumato.predictions import (
    BiasScaler,
    ConformalPredictor,
    EnsembleTemperatureScaler,
    RiskThreshold,
    choose_calibrator,
    risk_threshold,
)
from sfumato.predictions.calibrator import SCALERS

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import (
        StratifiedKFold,
        check_cv,
        cross_val_predict,
        train_test_split,
    )
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        column_or_1d,
        has_fit_parameter,
        indexable,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "sfumato.integrations.sklearn needs scikit-learn 1.6: python3 -m pip install scikit-learn"
    ) from error

if TYPE_CHECKING:
    from typing_extensions import Self

_SCALERS: dict[str, Any] = {
    **SCALERS,
    "bias": BiasScaler,
    "ensemble_temperature": EnsembleTemperatureScaler,
}
METHODS = ("auto", *_SCALERS)


class _MostProbable(ClassifierMixin, BaseEstimator):
    """A classifier that predicts the label of greatest probability."""

    classes_: np.ndarray
    predict_proba: Any

    def predict(self, X: Any) -> np.ndarray:
        """The label of greatest probability."""
        check_is_fitted(self, "classes_")
        return self.classes_[self.predict_proba(X).argmax(1)]


class ScoreCalibrator(_MostProbable):
    """Calibrates scores that another model gave: X has one column for each class.

    Args:
        method: "auto" chooses by cross-validation (`choose_calibrator`); else one of "temperature",
            "logistic", "beta", "spline", "logistic_spline", "vector", "histogram", "isotonic",
            "venn_abers", "matrix", "bias", "ensemble_temperature".
        scores: what X holds: "probs", or "logits" for raw scores.
        options: arguments of the method's scaler, such as {"penalty": 1e-3}.

    Shape:
        X: (N, C), in the sorted order of the labels, as everywhere in scikit-learn; for two classes
        also (N,), of the second. Integer labels below C may miss some of the classes.

    Example:
        >>> probs = np.array([[0.99, 0.01], [0.01, 0.99]] * 10)
        >>> labels = np.array(["cat", "dog"] * 8 + ["dog", "cat"] * 2)
        >>> ScoreCalibrator().fit(probs, labels).predict_proba(probs)[0].round(2)
        array([0.8, 0.2])
    """

    def __init__(
        self,
        method: str = "temperature",
        *,
        scores: Literal["probs", "logits"] = "probs",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.scores = scores
        self.options = options

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit on held-out scores and their labels."""
        check_choice("method", self.method, METHODS)
        check_choice("scores", self.scores, ("probs", "logits"))
        rows = self._rows(X, reset=True)
        self.classes_, codes = _encode(_labels(y), rows.shape[1])
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, rows)
        given: dict[str, Any] = {self.scores: rows, "target": codes, "sample_weight": weight}
        options = dict(self.options or {})
        if self.method == "auto":
            self.calibrator_: Any = choose_calibrator(**given, **options)
        else:
            self.calibrator_ = _SCALERS[self.method](**options).fit(**given)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, (N, C)."""
        check_is_fitted(self)
        return self.calibrator_.predict_proba(**{self.scores: self._rows(X)})

    def _rows(self, X: Any, *, reset: bool = False) -> np.ndarray:
        """Scores as (N, C) in float64; those of one column as two classes."""
        if np.ndim(np.asarray(X)) == 1:
            X = np.reshape(X, (-1, 1))
        rows: np.ndarray = validate_data(self, X, reset=reset, dtype=np.float64)
        if rows.shape[1] > 1:
            return rows
        first = 1 - rows if self.scores == "probs" else np.zeros_like(rows)
        return np.hstack([first, rows])


def _labels(y: Any) -> np.ndarray:
    labels: np.ndarray = column_or_1d(y, warn=True)
    check_classification_targets(labels)
    return labels


def _encode(y: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The classes of the columns, and the column of each label."""
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) == columns:
        return classes, codes
    if classes.dtype.kind in "iu" and classes[0] >= 0 and classes[-1] < columns:
        return np.arange(columns), y
    raise ValueError(
        f"X has columns for {columns} classes, but y holds {len(classes)}: which column is whose "
        "is unknown. Give labels 0 to C - 1, or one of every class."
    )


def _has_scores(self: _Classifier) -> bool:
    return hasattr(self._inner(), "predict_proba") or hasattr(self._inner(), "decision_function")


class _Classifier(MetaEstimatorMixin, _MostProbable):
    """A classifier whose scores of rows that it was not fitted on are looked at."""

    estimator: Any

    def _given(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _inner(self) -> Any:
        return self.estimator_ if hasattr(self, "estimator_") else self._given()

    def _keep(self, estimator: Any) -> None:
        self.estimator_ = estimator
        self.classes_ = estimator.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))

    def _scores_of(self, X: Any) -> tuple[Literal["probs", "logits"], np.ndarray]:
        check_is_fitted(self, "estimator_")
        if hasattr(self.estimator_, "predict_proba"):
            return "probs", self.estimator_.predict_proba(X)
        return "logits", self.estimator_.decision_function(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = self._given()
        if hasattr(inner, "__sklearn_tags__"):
            tags.input_tags.sparse = inner.__sklearn_tags__().input_tags.sparse
        return tags


def _weight_option(estimator: Any, weight: np.ndarray | None) -> dict[str, Any]:
    """The option with which a classifier is fitted to weights, if there are any."""
    if weight is not None and not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(f"{type(estimator).__name__}.fit takes no sample_weight")
    return {} if weight is None else {"sample_weight": weight}


class CalibratedClassifier(_Classifier):
    """A classifier fitted on all rows, calibrated on its scores of a cross-validation.

    Args:
        estimator: classifier with `predict_proba` or `decision_function`; None takes
            `LogisticRegression()`.
        method, options: as `ScoreCalibrator`.
        cv: folds, or a splitter of scikit-learn; "prefit" takes the estimator as it is, and all
            rows calibrate it.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_iris(return_X_y=True)
        >>> CalibratedClassifier(GaussianNB(), method="auto").fit(X, y).predict_proba(X).shape
        (150, 3)

    Differs: `CalibratedClassifierCV` of scikit-learn averages one calibrated classifier per fold
    unless told `ensemble=False`, which is what this one does.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "temperature",
        cv: Any = 5,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.options = options

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the classifier, and the calibrator on scores of held-out rows."""
        X, y = indexable(X, y)
        y = _labels(y)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        inner = self._given()
        if isinstance(self.cv, str) and self.cv == "prefit":
            check_is_fitted(inner)
            self._keep(inner)
            name, scores = self._scores_of(X)
        else:
            name, scores = self._held_out(clone(inner), X, y, weight)
            self._keep(clone(inner).fit(X, y, **_weight_option(inner, weight)))
        codes = np.searchsorted(self.classes_, y)
        calibrator = ScoreCalibrator(self.method, scores=name, options=self.options)
        self.calibrator_ = calibrator.fit(scores, codes, sample_weight=weight)
        return self

    def _held_out(
        self, inner: Any, X: Any, y: np.ndarray, weight: np.ndarray | None
    ) -> tuple[Literal["probs", "logits"], np.ndarray]:
        # Stratified for classifiers, so that every fold has every class.
        splitter = check_cv(self.cv, y, classifier=True)
        _, counts = np.unique(y, return_counts=True)
        if len(counts) < 2:
            raise ValueError("y must hold at least two classes, got one class")
        if isinstance(splitter, StratifiedKFold) and counts.min() < splitter.n_splits:
            raise ValueError(
                f"cv={splitter.n_splits} needs as many samples of every class, got a class with "
                f"{counts.min()}"
            )
        params = _weight_option(inner, weight)
        name = "predict_proba" if hasattr(inner, "predict_proba") else "decision_function"
        scores = cross_val_predict(inner, X, y, cv=splitter, method=name, params=params)
        return ("probs" if name == "predict_proba" else "logits"), scores

    @available_if(_has_scores)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, (N, C)."""
        _, scores = self._scores_of(X)
        return self.calibrator_.predict_proba(scores)


class _SplitClassifier(_Classifier):
    """A classifier fitted on one part of the rows; the other part carries a guarantee."""

    calibration_size: float
    random_state: int

    def _fit_part(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Fit the classifier; probabilities and columns of the labels of the other rows."""
        X, y = indexable(X, y)
        y = _labels(y)
        check_number("calibration_size", self.calibration_size, low=0.0, high=1.0)
        inner = self._given()
        if self.calibration_size == 1:
            check_is_fitted(inner)
            self._keep(inner)
            held, labels = X, y
        else:
            check_open_share("calibration_size", self.calibration_size)
            fitted, held, known, labels = train_test_split(
                X, y, test_size=self.calibration_size, random_state=self.random_state
            )
            self._keep(clone(inner).fit(fitted, known))
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise ValueError(f"class {unknown[0]!r} is missing in the part that was fitted on")
        return self.predict_proba(held), np.searchsorted(self.classes_, labels)

    @available_if(lambda self: hasattr(self._inner(), "predict_proba"))
    def predict_proba(self, X: Any) -> np.ndarray:
        """The classifier's own probabilities, (N, C)."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict_proba(X)


class ConformalClassifier(_SplitClassifier):
    """A classifier that also gives sets of labels, which hold the right one as often as guaranteed.

    Args:
        estimator: classifier with `predict_proba`; None takes `LogisticRegression()`.
        method, alpha, per_class: as `ConformalPredictor`.
        calibration_size: share of the rows that the classifier does not see; 1 takes it as it is
            fitted, and all rows calibrate.
        random_state: of the split, and of the randomised methods.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = ConformalClassifier(LogisticRegression(max_iter=1000), alpha=0.1)
        >>> classifier.fit(X, y).predict_set(X[:1])
        array([[ True, False, False]])
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: Literal["thr", "aps", "raps"] = "thr",
        alpha: float = 0.1,
        per_class: bool = False,
        calibration_size: float = 0.25,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.method: Literal["thr", "aps", "raps"] = method
        self.alpha = alpha
        self.per_class = per_class
        self.calibration_size = calibration_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the classifier on a part of the rows, the sets on the others."""
        predictor = ConformalPredictor(
            self.method, self.alpha, self.per_class, seed=self.random_state
        )
        probs, codes = self._fit_part(X, y)
        self.conformal_ = predictor.fit(probs=probs, target=codes)
        return self

    def predict_set(self, X: Any) -> np.ndarray:
        """Mark those of `classes_` that are in the set of each row; boolean, (N, C)."""
        probs = self.predict_proba(X)
        return self.conformal_.predict(probs)


class RiskControlledClassifier(_SplitClassifier):
    """A classifier that answers where at most `target_risk` of its answers are wrong, or abstains.

    Args:
        estimator: classifier with `predict_proba`; None takes `LogisticRegression()`.
        target_risk, delta: as `risk_threshold`.
        calibration_size: as `ConformalClassifier`.
        random_state: of the split.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> inner = LogisticRegression(max_iter=1000)
        >>> classifier = RiskControlledClassifier(inner, target_risk=0.2, calibration_size=0.5)
        >>> classifier.fit(X, y).predict_or_abstain(X[:1])
        array([0], dtype=object)
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        target_risk: float = 0.05,
        delta: float = 0.05,
        calibration_size: float = 0.25,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.target_risk = target_risk
        self.delta = delta
        self.calibration_size = calibration_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the classifier on a part of the rows, the threshold on the others."""
        probs, codes = self._fit_part(X, y)
        self.threshold_: RiskThreshold = risk_threshold(
            probs.max(1), probs.argmax(1) == codes, target_risk=self.target_risk, delta=self.delta
        )
        return self

    def accept(self, X: Any) -> np.ndarray:
        """True for the rows that are answered, (N,)."""
        confidence = self.predict_proba(X).max(1)
        return self.threshold_.accept(confidence)

    def predict_or_abstain(self, X: Any, abstain: Any = None) -> np.ndarray:
        """Labels where the classifier answers, `abstain` elsewhere; an array of objects, (N,)."""
        answers = self.predict(X).astype(object)
        answers[~self.accept(X)] = abstain
        return answers
