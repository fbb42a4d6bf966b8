"""Prediction sets: scores by hand, coverage by simulation, other libraries side by side."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sfumato.metrics import class_coverage, mean_set_size, set_coverage, set_size_counts
from sfumato.predictions import ConformalPredictor

METHODS = ("thr", "aps", "raps")


def draw(rng: np.random.Generator, n: int, classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident probabilities, and labels of the true ones."""
    logits = 1.5 * rng.normal(size=(n, classes))
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (true.cumsum(1) > rng.random((n, 1))).argmax(1)
    stated = true**2 / (true**2).sum(1, keepdims=True)
    return stated, labels


def loop_score(p: np.ndarray, y: int, method: str, penalty: float, free: int) -> float:
    """Not randomised: everything that ranks before y."""
    if method == "thr":
        return float(1 - p[y])
    rank = sorted(range(len(p)), key=lambda c: (-p[c], c)).index(y)
    total = sum(p[c] for c in range(len(p)) if (-p[c], c) < (-p[y], y))
    return float(total + (penalty * max(0, rank + 1 - free) if method == "raps" else 0))


@pytest.mark.parametrize("method", METHODS)
def test_against_a_loop(method: str) -> None:
    probs, labels = draw(np.random.default_rng(0), 60)
    new, _ = draw(np.random.default_rng(1), 20)
    probs[0] = new[0] = [0.25, 0.25, 0.2, 0.1, 0.1, 0.1]  # ties
    settings = {"randomised": False, "penalty": 0.05, "free_ranks": 1}
    predictor = ConformalPredictor(method, alpha=0.2, **settings).fit(probs, labels)
    scores = sorted(loop_score(p, y, method, 0.05, 1) for p, y in zip(probs, labels, strict=True))
    limit = scores[math.ceil(61 * 0.8) - 1]
    expected = [[loop_score(p, y, method, 0.05, 1) <= limit + 1e-12 for y in range(6)] for p in new]
    assert predictor.predict(new).tolist() == expected


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_coverage_over_many_draws(method: str, per_class: bool) -> None:
    """199 calibration samples promise 0.85 exactly: 170 of 200 places."""
    rng = np.random.default_rng(0)
    overall, by_class = [], []
    for trial in range(80):
        predictor = ConformalPredictor(method, alpha=0.15, per_class=per_class, seed=trial)
        predictor.fit(*draw(rng, 199, 3))
        new, labels = draw(rng, 400, 3)
        sets = predictor.predict(new)
        overall.append(float(set_coverage(sets, labels)))
        by_class.append(class_coverage(sets, labels).numpy())
    if per_class:  # a class has about 66 samples, so its places are about 1.5 % apart
        assert ((np.mean(by_class, 0) > 0.838) & (np.mean(by_class, 0) < 0.88)).all()
    else:
        assert np.mean(overall) == pytest.approx(0.85, abs=0.012)


def test_without_draws_no_set_is_empty_and_coverage_is_at_least_promised() -> None:
    rng = np.random.default_rng(0)
    predictor = ConformalPredictor("aps", alpha=0.3, randomised=False).fit(*draw(rng, 2000))
    new, labels = draw(rng, 2000)
    sets = predictor.predict(new)
    assert int(set_size_counts(sets)[0]) == 0
    assert float(set_coverage(sets, labels)) > 0.68


def test_sizes() -> None:
    sets = np.array([[True, True, False], [False, False, False], [True, True, True]])
    assert float(mean_set_size(sets)) == pytest.approx(5 / 3)
    assert set_size_counts(sets).tolist() == [1, 0, 1, 1]
    assert class_coverage(sets, [0, 0, 2]).tolist()[::2] == [0.5, 1.0]
    assert math.isnan(float(class_coverage(sets, [0, 0, 2])[1]))


def test_too_few_samples_give_every_class() -> None:
    probs, labels = draw(np.random.default_rng(0), 8)
    predictor = ConformalPredictor("thr", alpha=0.1).fit(probs, labels)
    assert predictor.predict(probs).all()
    labels[:] = 0
    predictor = ConformalPredictor("thr", alpha=0.4, per_class=True).fit(probs, labels)
    assert predictor.predict(probs)[:, 1:].all()  # classes that were never seen
    assert not predictor.predict(probs)[:, 0].all()


def test_kinds_of_arrays_and_seeds() -> None:
    probs, labels = draw(np.random.default_rng(0), 300)
    predictor = ConformalPredictor("aps").fit(probs, labels)
    sets = predictor.predict(probs)
    assert isinstance(sets, np.ndarray)
    assert sets.dtype == bool
    again = ConformalPredictor("aps").fit(torch.tensor(probs), torch.tensor(labels))
    assert torch.equal(again.predict(torch.tensor(probs)), torch.tensor(sets))
    other = ConformalPredictor("aps", seed=1).fit(probs, labels)
    assert (other.predict(probs) != sets).any()


def test_bad_input() -> None:
    probs, labels = draw(np.random.default_rng(0), 30)
    with pytest.raises(ValueError, match=r"call fit\(probs, labels\) first"):
        ConformalPredictor().predict(probs)
    with pytest.raises(ValueError, match="method must be one of"):
        ConformalPredictor("lac")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alpha must be below 1"):
        ConformalPredictor(alpha=1.0)
    with pytest.raises(ValueError, match="probs must sum to one"):
        ConformalPredictor().fit(2 * probs, labels)
    with pytest.raises(ValueError, match="labels must be class indices in"):
        ConformalPredictor().fit(probs, labels + 6)
    with pytest.raises(ValueError, match="must have the 6 classes of the fit"):
        ConformalPredictor().fit(probs, labels).predict([[0.5, 0.5]])
    with pytest.raises(ValueError, match="there is nothing to fit on"):
        ConformalPredictor().fit(probs[:0], labels[:0])
    with pytest.raises(ValueError, match="sets must be boolean"):
        set_coverage(probs, labels)


class _Given:
    """A fitted scikit-learn classifier whose features are its probabilities."""

    classes_ = np.arange(6)
    n_features_in_ = 6

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, *_: object) -> _Given:
        return self

    def predict_proba(self, features: np.ndarray) -> np.ndarray:
        return np.asarray(features)

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.asarray(features).argmax(1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mapie_gives_the_same_sets() -> None:
    classification = pytest.importorskip("mapie.classification")
    base = pytest.importorskip("sklearn.base")
    estimator = type("Given", (_Given, base.ClassifierMixin, base.BaseEstimator), {})()
    rng = np.random.default_rng(0)
    (probs, labels), (new, new_labels) = draw(rng, 999), draw(rng, 5000)

    def theirs(score: str, **settings: object) -> np.ndarray:
        predictor = classification.SplitConformalClassifier(
            estimator, confidence_level=0.9, conformity_score=score, random_state=0
        )
        predictor.conformalize(probs, labels)
        return np.asarray(predictor.predict_set(new, settings or None)[1][..., 0])

    ours = ConformalPredictor("thr").fit(probs, labels).predict(new)
    assert (ours == theirs("lac")).all()
    # Both draw: sizes and coverage agree, not the sets of single samples.
    ours = ConformalPredictor("aps").fit(probs, labels).predict(new)
    other = theirs("aps", include_last_label="randomized")
    assert float(mean_set_size(ours)) == pytest.approx(float(mean_set_size(other)), rel=0.03)
    assert float(set_coverage(ours, new_labels)) == pytest.approx(
        float(set_coverage(other, new_labels)), abs=0.01
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_torchcp_gives_the_same_sets(method: str) -> None:
    try:
        from torchcp.classification import predictor as predictors, score
    except ImportError as missing:
        pytest.skip(f"TorchCP does not import: {missing}")
    rng = np.random.default_rng(0)
    (probs, labels), (new, _) = (map(torch.tensor, draw(rng, n)) for n in (1999, 5000))
    made = {
        "thr": lambda: score.LAC(score_type="identity"),
        "aps": lambda: score.APS(score_type="identity"),
        "raps": lambda: score.RAPS(score_type="identity", penalty=0.02, kreg=2),
    }[method]()
    other = predictors.SplitPredictor(made, alpha=0.1)
    torch.manual_seed(0)
    other.calculate_threshold(probs, labels, 0.1)
    theirs = other.predict_with_logits(new).bool()
    predictor = ConformalPredictor(method, penalty=0.02, free_ranks=2)
    ours = predictor.fit(probs, labels).predict(new)
    if method == "thr":
        assert torch.equal(ours, theirs)
    else:  # both draw: sizes agree, not the sets of single samples
        assert float(mean_set_size(ours)) == pytest.approx(float(mean_set_size(theirs)), rel=0.03)
