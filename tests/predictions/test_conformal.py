"""Prediction sets: scores by hand, coverage by simulation, other libraries side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.metrics import class_coverage, mean_set_size, set_coverage, set_size_counts
from sfumato.predictions import ConformalPredictor
from sfumato.predictions.decisions import _row_hash

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


def fit(predictor: ConformalPredictor, probs: np.ndarray, labels: np.ndarray) -> ConformalPredictor:
    return predictor.fit(probs=probs, target=labels)


@pytest.mark.parametrize("method", METHODS)
def test_against_a_loop(method: str) -> None:
    probs, labels = draw(np.random.default_rng(0), 60)
    new, _ = draw(np.random.default_rng(1), 20)
    probs[0] = new[0] = [0.25, 0.25, 0.2, 0.1, 0.1, 0.1]  # ties
    settings = {"randomised": False, "penalty": 0.05, "free_ranks": 1}
    predictor = ConformalPredictor(method, alpha=0.2, **settings).fit(probs=probs, target=labels)
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
        fit(predictor, *draw(rng, 199, 3))
        new, labels = draw(rng, 400, 3)
        sets = predictor.predict(new)
        overall.append(float(set_coverage(sets, labels)))
        by_class.append(class_coverage(sets, labels))
    if per_class:  # a class has about 66 samples, so its places are about 1.5 % apart
        assert ((np.mean(by_class, 0) > 0.838) & (np.mean(by_class, 0) < 0.88)).all()
    else:
        assert np.mean(overall) == pytest.approx(0.85, abs=0.012)


def sharp(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of 5 classes that are true, and near 0 or 1."""
    logits = 6 * rng.normal(size=(n, 5))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return probs, (probs.cumsum(1) > rng.random((n, 1))).argmax(1)


@pytest.mark.parametrize("model", [draw, sharp])
@pytest.mark.parametrize("method", ["aps", "raps"])
def test_coverage_of_rows_served_one_by_one(method: str, model: Any) -> None:
    """Each of 60 predictors serves 100 rows alone: no deployment has an unlucky u."""
    rng = np.random.default_rng(0)
    found = []
    for trial in range(60):
        predictor = fit(ConformalPredictor(method, alpha=0.1, seed=trial), *model(rng, 999))
        new, labels = model(rng, 100)
        rows = zip(new, labels, strict=True)
        found.append(np.mean([predictor.predict(row[None])[0, label] for row, label in rows]))
    assert np.mean(found) == pytest.approx(0.9, abs=0.012)  # its standard error is 0.004
    assert np.std(found) < 0.045  # 0.03 of 100 rows, 0.0095 of the calibration set
    assert min(found) > 0.75


@pytest.mark.parametrize("method", METHODS)
def test_a_row_has_one_set_in_every_batch_and_container(method: str) -> None:
    rng = np.random.default_rng(0)
    predictor = fit(ConformalPredictor(method), *draw(rng, 400))
    rows = draw(rng, 50)[0].astype(np.float32)
    sets = predictor.predict(rows)
    assert (np.concatenate([predictor.predict(row[None]) for row in rows]) == sets).all()
    assert (predictor.predict(rows[::-1])[::-1] == sets).all()
    assert (predictor.predict(rows.astype(np.float64)) == sets).all()
    assert (predictor.predict(np.asfortranarray(rows)) == sets).all()
    assert (predictor.predict(torch.tensor(rows)).numpy() == sets).all()
    assert (predictor.predict(torch.tensor(rows.T).T).numpy() == sets).all()


def test_few_different_rows_keep_the_promise() -> None:
    """Equal rows share u: coverage is at least the promised, on average over seeds."""
    rng = np.random.default_rng(0)
    leaves = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
    found = []
    for trial in range(100):
        rows = leaves[rng.integers(3, size=1200)]
        labels = (rows.cumsum(1) > rng.random((1200, 1))).argmax(1)
        predictor = ConformalPredictor("aps", seed=trial).fit(probs=rows[:200], target=labels[:200])
        found.append(float(set_coverage(predictor.predict(rows[200:]), labels[200:])))
    assert 0.89 < np.mean(found) < 0.95


def test_the_hash_is_the_same_on_every_machine() -> None:
    rows = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [1.0, 0.0, -0.0]])
    found = _row_hash(rows.double(), seed=7).flatten()
    assert found.tolist() == [0.5322817114758744, 0.8628819579115229, 0.6118470469221128]
    many = _row_hash(torch.rand(20_000, 3).softmax(1), seed=7).flatten()
    assert many.histc(10, 0, 1).tolist() == pytest.approx([2000] * 10, abs=250)


def test_without_draws_no_set_is_empty_and_coverage_is_at_least_promised() -> None:
    rng = np.random.default_rng(0)
    predictor = ConformalPredictor("aps", alpha=0.3, randomised=False)
    fit(predictor, *draw(rng, 2000))
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
    predictor = ConformalPredictor("thr", alpha=0.1).fit(probs=probs, target=labels)
    assert predictor.predict(probs).all()
    labels[:] = 0
    predictor = ConformalPredictor("thr", alpha=0.4, per_class=True).fit(probs=probs, target=labels)
    assert predictor.predict(probs)[:, 1:].all()  # classes that were never seen
    assert not predictor.predict(probs)[:, 0].all()


def test_kinds_of_arrays_and_seeds() -> None:
    probs, labels = draw(np.random.default_rng(0), 300)
    predictor = ConformalPredictor("aps").fit(probs=probs, target=labels)
    sets = predictor.predict(probs)
    assert isinstance(sets, np.ndarray)
    assert sets.dtype == bool
    again = ConformalPredictor("aps").fit(probs=torch.tensor(probs), target=torch.tensor(labels))
    assert torch.equal(again.predict(torch.tensor(probs)), torch.tensor(sets))
    other = ConformalPredictor("aps", seed=1).fit(probs=probs, target=labels)
    assert (other.predict(probs) != sets).any()


def test_bad_input() -> None:
    probs, labels = draw(np.random.default_rng(0), 30)
    with pytest.raises(ValueError, match=r"call fit\(probs, target\) first"):
        ConformalPredictor().predict(probs)
    with pytest.raises(ValueError, match="method must be one of"):
        ConformalPredictor("plain")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alpha must be below 1"):
        ConformalPredictor(alpha=1.0)
    with pytest.raises(ValueError, match="probs must sum to one"):
        ConformalPredictor().fit(probs=2 * probs, target=labels)
    with pytest.raises(ValueError, match="target must be class indices in"):
        ConformalPredictor().fit(probs=probs, target=labels + 6)
    with pytest.raises(ValueError, match="must have the 6 classes of the fit"):
        ConformalPredictor().fit(probs=probs, target=labels).predict([[0.5, 0.5]])
    with pytest.raises(ValueError, match="there is nothing to fit on"):
        ConformalPredictor().fit(probs=probs[:0], target=labels[:0])
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

    ours = ConformalPredictor("thr").fit(probs=probs, target=labels).predict(new)
    assert (ours == theirs("lac")).all()
    # Both draw: sizes and coverage agree, not the sets of single samples.
    ours = ConformalPredictor("aps").fit(probs=probs, target=labels).predict(new)
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
    ours = predictor.fit(probs=probs, target=labels).predict(new)
    if method == "thr":
        assert torch.equal(ours, theirs)
    else:  # both draw: sizes agree, not the sets of single samples
        assert float(mean_set_size(ours)) == pytest.approx(float(mean_set_size(theirs)), rel=0.03)


def _grouped(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The model of `draw` for group "day"; at "night" its probabilities are of other samples."""
    probs, labels = draw(rng, n)
    night = rng.random(n) < 0.3
    probs[night] = rng.permutation(probs[night])
    return probs, labels, np.where(night, "night", "day")


@pytest.mark.parametrize("method", METHODS)
def test_every_group_is_covered(method: str) -> None:
    rng = np.random.default_rng(3)
    settings = {"method": method, "alpha": 0.1}
    found: dict[str, list[float]] = {"day": [], "night": []}
    pooled = []
    for _ in range(60):
        probs, labels, group = _grouped(rng, 400)
        new, theirs, which = _grouped(rng, 400)
        predictor = ConformalPredictor(**settings, per_group=True).fit(probs, labels, group=group)
        sets = predictor.predict(new, group=which)
        rows = [predictor.predict(new[n : n + 1], group=which[n : n + 1]) for n in range(5)]
        assert (np.concatenate(rows) == sets[:5]).all()  # alone and in a batch
        assert (predictor.predict(new[:7], group=which[:7]) == sets[:7]).all()
        held = sets[np.arange(400), theirs]
        for name, values in found.items():
            values.append(float(held[which == name].mean()))
        plain = ConformalPredictor(**settings).fit(probs, labels).predict(new)
        pooled.append(float(plain[np.arange(400), theirs][which == "night"].mean()))
    for values in found.values():
        error = np.std(values) / np.sqrt(len(values))
        assert 0.9 - 4 * error <= np.mean(values) <= 0.9 + 4 * error + 1 / 100
    assert np.mean(pooled) < 0.8  # what one quantile for all gives up


def test_groups_are_quantiles_of_their_own_samples() -> None:
    probs, labels, group = _grouped(np.random.default_rng(4), 300)
    both = ConformalPredictor("aps", per_group=True).fit(probs, labels, group=group)
    assert both.groups == ["day", "night"]
    for number, name in enumerate(both.groups):
        part = group == name
        alone = ConformalPredictor("aps").fit(probs[part], labels[part])
        assert torch.equal(both.quantile[number], alone.quantile)
    assert both.predict(probs[:1], group=["dusk"]).all()  # nothing is known of it


def test_label_shift_against_a_loop_and_by_simulation() -> None:
    """Twice as many of class 0 and half as many of the others, in new data."""
    rng = np.random.default_rng(5)
    weight = np.array([3.0, 0.6, 0.6, 0.6, 0.6, 0.6])
    probs, labels = draw(rng, 300)
    predictor = ConformalPredictor("lac", 0.1).fit(probs, labels, class_weight=weight)
    own = sorted((1 - probs[n, y], weight[y]) for n, y in enumerate(labels))
    scores, mass = (np.array(each) for each in zip(*own, strict=True))
    for y in range(6):
        needed = 0.9 * (mass.sum() + weight[y])
        limit = next(s for s, seen in zip(scores, mass.cumsum(), strict=True) if seen >= needed)
        assert float(predictor.quantile[y]) == pytest.approx(limit, abs=1e-12)
    coverage = []
    for _ in range(100):
        probs, labels = draw(rng, 300)
        new, theirs = draw(rng, 2000)
        chosen = rng.choice(2000, 500, p=weight[theirs] / weight[theirs].sum())
        new, theirs = new[chosen], theirs[chosen]
        sets = ConformalPredictor(alpha=0.1).fit(probs, labels, class_weight=weight).predict(new)
        coverage.append(float(sets[np.arange(500), theirs].mean()))
    error = np.std(coverage) / 10
    assert 0.9 - 4 * error <= np.mean(coverage) <= 0.9 + 4 * error + 0.01


def test_bad_groups_and_weights() -> None:
    probs, labels = draw(np.random.default_rng(6), 30)
    with pytest.raises(ValueError, match="group is only used with per_group=True"):
        ConformalPredictor().fit(probs, labels, group=["a"] * 30)
    grouped = ConformalPredictor(per_group=True)
    with pytest.raises(ValueError, match="group must name the group of each sample"):
        grouped.fit(probs, labels)
    with pytest.raises(ValueError, match=r"group must be \(30,\), got \(2,\)"):
        grouped.fit(probs, labels, group=["a", "b"])
    with pytest.raises(ValueError, match="class_weight must be 6 numbers of at least 0"):
        ConformalPredictor().fit(probs, labels, class_weight=[1, 2])
    with pytest.raises(ValueError, match="class_weight must be None with per_class"):
        ConformalPredictor(per_class=True).fit(probs, labels, class_weight=[1] * 6)
