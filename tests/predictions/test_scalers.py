"""Post-hoc scalers against hand-worked values, brute force, numpy loops and their laws."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from torch import Tensor

from sfumato.predictions import (
    BiasScaler,
    ConformalPredictor,
    EnsembleTemperatureScaler,
    IsotonicScaler,
    LogitNormaliser,
    SplineScaler,
    StructuredMatrixScaler,
    TemperatureScaler,
    UniformMixture,
    VectorScaler,
    choose_calibrator,
)
from tests.no_float64 import no_float64

SCALERS = [
    SplineScaler,
    StructuredMatrixScaler,
    TemperatureScaler,
    VectorScaler,
    BiasScaler,
    EnsembleTemperatureScaler,
    IsotonicScaler,
    LogitNormaliser,
]
every_scaler = pytest.mark.parametrize("kind", SCALERS, ids=lambda kind: kind.__name__)
every_calibrating = pytest.mark.parametrize("kind", SCALERS[:-1], ids=lambda kind: kind.__name__)


def predictions(count: int = 2000, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits that are three times too large for labels drawn from their own distribution."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64) * 1.5
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return logits * 3, labels


def needs(kind: type) -> None:
    if kind is IsotonicScaler:
        pytest.importorskip("sklearn")


# vector


def test_vector_recovers_scale_and_bias() -> None:
    logits, labels = predictions(20_000)
    scale = torch.tensor([1.0, 2.0, 0.5, 1.5, 1.0], dtype=torch.float64)
    bias = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.5], dtype=torch.float64)
    scaler = VectorScaler().fit(logits=(logits / 3 - bias) / scale, target=labels)
    assert torch.allclose(scaler.scale, scale, atol=0.1)
    assert torch.allclose(scaler.bias - scaler.bias.mean(), bias, atol=0.15)


def test_vector_is_the_minimum() -> None:
    logits, labels = predictions(200, 3)
    scaler = VectorScaler(penalty=0.01).fit(logits=logits, target=labels)

    def loss(values: np.ndarray) -> float:
        scale, bias = torch.from_numpy(values).chunk(2)
        distance = (scale - 1).square().sum() + bias.square().sum()
        return float(F.cross_entropy(logits * scale + bias, labels) + 0.005 * distance)

    best = minimize(loss, np.r_[np.ones(3), np.zeros(3)], tol=1e-12)
    assert torch.cat([scaler.scale, scaler.bias]).numpy() == pytest.approx(best.x, abs=1e-3)


def test_strong_penalty_changes_nothing() -> None:
    logits, labels = predictions(50)
    assert torch.allclose(
        VectorScaler(penalty=1e6).fit(logits=logits, target=labels)(logits), logits, atol=1e-3
    )
    assert torch.allclose(
        BiasScaler(penalty=1e6).fit(logits=logits, target=labels)(logits), logits, atol=1e-3
    )


@pytest.mark.parametrize("kind", [VectorScaler, BiasScaler])
@pytest.mark.parametrize("penalty", [0.0, 1e-4])
def test_a_class_that_is_missing_stays_possible(kind: Any, penalty: float) -> None:
    logits, labels = predictions(300, 4)
    keep = labels != 2
    scaler = kind(penalty=penalty).fit(logits=logits[keep], target=labels[keep])
    probs = scaler(logits).softmax(1)
    assert bool(torch.isfinite(probs).all())
    if penalty:
        assert float(scaler.bias[2]) > -10
        assert float(probs[:, 2].max()) > 0.001


# bias


def test_bias_by_hand() -> None:
    """Equal logits and shares 3/4, 1/4: biases +-ln(3) / 2."""
    scaler = BiasScaler(penalty=0.0).fit(
        logits=torch.zeros(4, 2), target=torch.tensor([0, 0, 0, 1])
    )
    half = math.log(3) / 2
    assert scaler.bias.tolist() == pytest.approx([half, -half], abs=1e-6)


def test_bias_gives_the_shares_of_the_labels() -> None:
    logits, labels = predictions()
    labels = torch.where(labels == 0, 1, labels)  # class 0 is gone, class 1 twice as frequent
    scaler = BiasScaler(penalty=1e-6).fit(logits=logits, target=labels)
    found = scaler(logits).softmax(1).mean(0)
    assert torch.allclose(found, labels.bincount(minlength=5).double() / len(labels), atol=1e-3)
    assert float(scaler.bias.sum()) == pytest.approx(0.0, abs=1e-6)


# ensemble temperature


def test_ensemble_temperature_equals_a_numpy_loop() -> None:
    logits, labels = predictions(20)
    scaler = EnsembleTemperatureScaler().fit(logits=logits, target=labels)
    found = scaler(logits).exp().numpy()
    for row, probs in zip(logits.numpy(), found, strict=True):
        tempered = np.exp(row / scaler.temperature) / np.exp(row / scaler.temperature).sum()
        raw = np.exp(row) / np.exp(row).sum()
        mix = scaler.weights[0] * tempered + scaler.weights[1] * raw + scaler.weights[2] / 5
        assert probs == pytest.approx(mix, rel=1e-9)


def test_ensemble_weights_beat_a_grid_over_the_simplex() -> None:
    logits, labels = predictions(300)
    labels[:60] = torch.arange(60) % 5  # a fifth of the labels are noise: uniform has its place
    scaler = EnsembleTemperatureScaler().fit(logits=logits, target=labels)
    assert scaler.temperature == TemperatureScaler().fit(logits=logits, target=labels).temperature
    best = float(F.nll_loss(scaler(logits), labels))
    tempered = (logits / scaler.temperature).softmax(1)
    grid = [
        float(F.nll_loss((a * tempered + b * logits.softmax(1) + (1 - a - b) / 5).log(), labels))
        for a in np.arange(0, 1.01, 0.05)
        for b in np.arange(0, 1.01 - a, 0.05)
        if b < 1 - 1e-9 or a > 0
    ]
    assert best <= min(grid) + 1e-9
    assert sum(scaler.weights) == pytest.approx(1.0)
    assert min(scaler.weights) >= 0


def test_ensemble_temperature_keeps_the_order_of_classes() -> None:
    logits, labels = predictions(500)
    found = EnsembleTemperatureScaler().fit(logits=logits, target=labels)(logits)
    assert torch.equal(found.argsort(1), logits.argsort(1))
    assert torch.allclose(found.exp().sum(1), torch.ones(500, dtype=torch.float64))


def test_ensemble_temperature_of_huge_logits() -> None:
    logits, labels = predictions(100)
    scaler = EnsembleTemperatureScaler().fit(logits=logits, target=labels)
    found = scaler(torch.tensor([[1e30, 0.0, 0.0, 0.0, -1e30]]))
    assert bool(torch.isfinite(found.softmax(1)).all())


# isotonic


def test_isotonic_equals_scikit_learn_on_new_data() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    logits, labels = predictions(400, 3)
    new, _ = predictions(100, 3, seed=1)
    columns = []
    for c in range(3):
        curve = isotonic.IsotonicRegression(out_of_bounds="clip")
        curve.fit(logits.softmax(1)[:, c].numpy(), (labels == c).numpy())
        columns.append(curve.predict(new.softmax(1)[:, c].numpy()))
    expected = np.stack(columns, 1)
    expected /= expected.sum(1, keepdims=True)
    found = IsotonicScaler().fit(logits=logits, target=labels)(new).softmax(1)
    assert found.numpy() == pytest.approx(expected, abs=1e-12)


def test_isotonic_where_no_class_is_left() -> None:
    pytest.importorskip("sklearn")
    logits = torch.tensor([[0.0, 0.0, 5.0], [0.0, 0.0, 5.0], [5.0, 0.0, 0.0]])
    scaler = IsotonicScaler().fit(logits=logits, target=torch.tensor([0, 0, 1]))
    probs = scaler(torch.tensor([[4.9, 0.0, 5.0], [0.0, 20.0, 0.0]])).softmax(1)
    assert torch.allclose(probs.sum(1), torch.ones(2))
    assert bool(torch.isfinite(probs).all())


def test_isotonic_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.isotonic", None)
    logits, labels = predictions(10)
    with pytest.raises(ImportError, match="needs scikit-learn: install it"):
        IsotonicScaler().fit(logits=logits, target=labels)


# what holds for all


@every_scaler
def test_dense_logits_and_ignored_entries(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(60)
    dense = logits.reshape(3, 4, 5, 5).permute(0, 3, 1, 2)  # 3 images of 4 x 5 pixels
    maps = labels.reshape(3, 4, 5).clone()
    maps[0, 0, 0] = 255
    expected = kind().fit(logits=logits[1:], target=labels[1:])
    found = kind().fit(logits=dense, target=maps, ignore_index=255)
    rows = found(dense).permute(0, 2, 3, 1).reshape(60, 5)
    assert torch.allclose(rows.softmax(1), expected(logits).softmax(1), atol=1e-5)


@every_scaler
def test_state_survives_saving(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(100)
    scaler, other = kind().fit(logits=logits, target=labels), kind()
    other.load_state_dict(scaler.state_dict())
    assert torch.equal(other(logits), scaler(logits))
    assert repr(other) == repr(scaler)


@every_scaler
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_type_and_shape_stay(kind: Any, dtype: torch.dtype) -> None:
    needs(kind)
    logits, labels = predictions(50)
    scaler = kind().fit(logits=logits.to(dtype), target=labels)
    found = scaler(logits.to(dtype))
    assert (found.dtype, found.shape) == (dtype, logits.shape)
    assert not bool(found.isnan().any())
    assert scaler(logits[:0].to(dtype)).shape == (0, 5)
    assert scaler(logits[:1].to(dtype)).shape == (1, 5)


@every_scaler
def test_two_classes_and_one_sample(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(1, 2)
    assert kind().fit(logits=logits, target=labels)(logits).shape == (1, 2)


@pytest.mark.parametrize(
    "kind", [TemperatureScaler, VectorScaler, EnsembleTemperatureScaler, IsotonicScaler]
)
def test_likelihood_on_new_data_improves(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(4000)
    scaler = kind().fit(logits=logits, target=labels)
    logits, labels = predictions(4000, seed=1)
    before = F.cross_entropy(logits, labels)
    after = F.nll_loss(scaler(logits).softmax(1).clamp_min(1e-6).log(), labels)
    assert float(after) < 0.8 * float(before)


@every_scaler
def test_bad_input(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(10)
    with pytest.raises(ValueError, match=r"call fit\(logits=..., target=...\) first"):
        kind()(logits)
    with pytest.raises(ValueError, match="no valid entry"):
        kind().fit(logits=logits, target=torch.full((10,), -100))
    with pytest.raises(ValueError, match=r"class indices in \[0, 5\), got 7"):
        kind().fit(logits=logits, target=labels.clone().fill_(7))
    with pytest.raises(ValueError, match="finite"):
        kind().fit(logits=logits * math.inf, target=labels)
    with pytest.raises(ValueError, match=r"got \(10, 5\) and \(9,\)"):
        kind().fit(logits=logits, target=labels[:9])
    with pytest.raises(TypeError, match="logits must be floating point"):
        kind().fit(logits=labels[:, None], target=labels)


@pytest.mark.parametrize("kind", [VectorScaler, BiasScaler, IsotonicScaler])
def test_other_classes_than_fitted(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(10)
    scaler = kind().fit(logits=logits, target=labels)
    with pytest.raises(ValueError, match=r"the 5 classes of the fit, got \(2, 3\)"):
        scaler(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"logits must be \(N, C, ...\), got \(5,\)"):
        scaler(torch.zeros(5))


@every_calibrating
def test_the_name_decides_and_not_the_container(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(400)
    probs = logits.softmax(1)
    by_probs, by_logits = (
        kind().fit(probs=probs, target=labels),
        kind().fit(logits=logits, target=labels),
    )
    expected = {
        "probs": by_probs.predict_proba(probs=probs),
        "logits": by_logits(logits).softmax(1),
    }
    for name, scores in (("probs", probs), ("logits", logits)):
        fitted = by_probs if name == "probs" else by_logits
        for given in (scores, scores.numpy(), scores.tolist()):
            again = kind().fit(**{name: given}, target=labels.tolist())
            assert list(again.state_dict()) == list(fitted.state_dict())
            found = torch.as_tensor(again.predict_proba(**{name: given}))
            assert torch.allclose(found.double(), expected[name].double(), atol=1e-5)


@every_calibrating
def test_probabilities_are_no_logits(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(400)
    probs = logits.softmax(1)
    fitted = kind().fit(logits=logits, target=labels)
    for given in (probs, probs.numpy(), probs.half(), probs.bfloat16(), probs.double()):
        with pytest.raises(ValueError, match=r"raw scores, got probabilities .*probs=.*any_logits"):
            kind().fit(logits=given, target=labels)
        with pytest.raises(ValueError, match="must be raw scores, got probabilities"):
            fitted.predict_proba(logits=given)
    with pytest.raises(ValueError, match="must be raw scores, got probabilities"):
        fitted(probs)
    with pytest.raises(ValueError, match="probs must not be negative"):
        kind().fit(logits, labels)
    with pytest.raises(ValueError, match="exactly one of logits= and probs=, got both"):
        kind().fit(probs=probs, target=labels, logits=logits)
    meant = kind().fit(logits=probs, target=labels, any_logits=True)
    assert meant(probs).shape == probs.shape


def test_the_normaliser_takes_no_probabilities() -> None:
    logits, labels = predictions(400)
    with pytest.raises(ValueError, match="must be raw scores, got probabilities"):
        LogitNormaliser().fit(logits=logits.softmax(1), target=labels)
    assert (
        LogitNormaliser().fit(logits=logits.softmax(1), target=labels, any_logits=True).order != -1
    )
    again = LogitNormaliser().fit(logits=logits.numpy(), target=labels.numpy())
    assert again.order == LogitNormaliser().fit(logits=logits, target=labels).order


def test_probabilities_of_pixels() -> None:
    logits, labels = predictions(60)
    dense = logits.softmax(1).reshape(3, 4, 5, 5).permute(0, 3, 1, 2)
    maps = labels.reshape(3, 4, 5).clone()
    maps[0, 0, 0] = 255
    expected = TemperatureScaler().fit(logits=logits[1:], target=labels[1:]).temperature
    found = TemperatureScaler().fit(probs=dense, target=maps, ignore_index=255)
    assert found.temperature == pytest.approx(expected, rel=1e-6)
    assert found.predict_proba(probs=dense).shape == dense.shape


def test_negative_penalty() -> None:
    with pytest.raises(ValueError, match="penalty must be in"):
        VectorScaler(penalty=-1.0)
    with pytest.raises(ValueError, match="penalty must be in"):
        BiasScaler(penalty=-1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("count", "classes"), [(300, 4), (2000, 6)])
def test_matrix_is_that_of_its_authors(
    count: int, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """probmetrics in single precision, told to begin with a temperature and no uniform share."""
    pytest.importorskip("numba")
    theirs = pytest.importorskip("probmetrics.calibrators.logistic")
    factory = pytest.importorskip("probmetrics.calibrators.factory")
    plain = factory.get_calibrator("temp-scaling")
    monkeypatch.setattr(factory, "get_calibrator", lambda name: plain)
    rng = np.random.default_rng(count)
    true = 1.2 * rng.normal(size=(count, classes))  # no probability below 1e-12, where ours ends
    labels = np.array([rng.choice(classes, p=softmax(row)) for row in true])
    said = 1.4 * true @ (np.eye(classes) + 0.3 * rng.normal(size=(classes, classes)))
    probs = softmax(said + rng.normal(size=classes), axis=1)
    other = theirs.SMSCalibrator().fit(probs, labels)
    scaler = StructuredMatrixScaler().fit(probs=probs, target=labels)
    assert np.abs(scaler.weight.numpy() - np.eye(classes)).max() > 0.05  # more than a temperature
    np.testing.assert_allclose(scaler.weight.numpy(), other.W_[:, :-1], atol=1e-2)
    np.testing.assert_allclose(scaler.bias.numpy(), other.W_[:, -1], atol=1e-2)
    np.testing.assert_allclose(
        scaler.predict_proba(probs=probs), other.predict_proba(probs), atol=3e-3
    )

    def penalised(weight: np.ndarray, bias: np.ndarray) -> float:
        scaled = log_softmax(np.log(probs) / float(scaler.temperature), axis=1)
        found = log_softmax(scaled @ weight.T + bias, axis=1)[np.arange(count), labels]
        change = weight - np.eye(classes)
        near = (bias**2).sum() + (np.diag(change) ** 2).sum()
        far = (change**2).sum() - (np.diag(change) ** 2).sum()
        return float(-found.mean() + classes / count * (near + (classes - 1) * far))

    ours = penalised(scaler.weight.numpy(), scaler.bias.numpy())
    assert ours == pytest.approx(penalised(other.W_[:, :-1], other.W_[:, -1]), abs=1e-5)
    assert ours <= penalised(other.W_[:, :-1], other.W_[:, -1]) + 1e-9  # theirs stops earlier


@every_scaler
def test_devices_without_float64(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitted, moved and called there, with the numbers of the processor."""
    needs(kind)
    logits, labels = predictions(300)
    logits = logits.float()
    expected = kind().fit(logits=logits, target=labels)(logits)
    with no_float64(monkeypatch) as device:
        given, target = logits.to(device), labels.to(device)
        scaler = kind().fit(logits=given, target=target)
        for moved in (scaler, scaler.to(device), scaler.half()):
            found = moved(given)
            assert (found.device.type, found.dtype) == (device.type, torch.float32)
            assert torch.equal(found.cpu(), expected)
        loaded = kind().to(device)
        loaded.load_state_dict(scaler.state_dict())
        assert torch.equal(loaded(given).cpu(), expected)


@every_calibrating
def test_probabilities_on_devices_without_float64(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(kind)
    logits, labels = predictions(300)
    probs = logits.softmax(1).float()
    probs[:3] = torch.tensor([1.0, 0, 0, 0, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels of probability 0
        expected = kind().fit(probs=probs, target=labels).predict_proba(probs=probs)
        with no_float64(monkeypatch) as device:
            scaler = kind().fit(probs=probs.to(device), target=labels.to(device)).to(device)
            found = scaler.predict_proba(probs=probs.to(device))
            assert (found.device.type, found.dtype) == (device.type, torch.float32)
            assert torch.allclose(found.cpu(), expected.float())


def test_calibrators_and_sets_on_devices_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = predictions(300)
    probs = logits.softmax(1).float()
    expected = choose_calibrator(probs=probs, target=labels).predict_proba(probs=probs).float()
    sets = ConformalPredictor("aps").fit(probs=probs, target=labels).predict(probs)
    with no_float64(monkeypatch) as device:
        given, target = probs.to(device), labels.to(device)
        found = choose_calibrator(probs=given, target=target).predict_proba(probs=given)
        assert torch.allclose(found.cpu(), expected)
        there = ConformalPredictor("aps").fit(probs=given, target=target).predict(given)
        assert there.device.type == device.type
        assert torch.equal(there.cpu(), sets)


@every_scaler
def test_half_precision_keeps_what_was_fitted(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(300)
    scaler = kind().fit(logits=logits, target=labels)
    expected = scaler(logits)
    assert torch.equal(scaler.half()(logits), expected)
    assert torch.equal(scaler.bfloat16().float()(logits), expected)


@every_scaler
def test_repr_says_whether_it_is_fitted(kind: Any) -> None:
    needs(kind)
    logits, labels = predictions(100)
    scaler = kind()
    assert "not fitted" in repr(scaler)
    assert "nan" not in repr(scaler)
    assert "not fitted" not in repr(scaler.fit(logits=logits, target=labels))


def test_repr_shows_the_fitted_numbers() -> None:
    target, probs = torch.tensor([0] * 16 + [1] * 4), torch.tensor([[0.99, 0.01]] * 20)
    scaler = TemperatureScaler("ece").fit(probs=probs, target=target)
    assert repr(scaler) == (
        f"TemperatureScaler(method='ece', num_bins=15, temperature={scaler.temperature:.4g})"
    )
    mixture = UniformMixture()
    assert repr(mixture) == "UniformMixture(not fitted)"
    assert (
        repr(mixture.fit(probs=probs, target=target))
        == f"UniformMixture(amount={mixture.amount:.4g})"
    )
    assert repr(LogitNormaliser()) == "LogitNormaliser(not fitted)"
    predictor = ConformalPredictor("aps", 0.2, randomised=False)
    assert repr(predictor) == "ConformalPredictor('aps', alpha=0.2, randomised=False, not fitted)"
    assert repr(predictor.fit(probs=probs, target=target)).endswith("quantile=0.99)")


def test_probabilities_by_position_as_fit_takes_them() -> None:
    logits, labels = predictions(200)
    probs = logits.softmax(1)
    scaler = TemperatureScaler().fit(probs, labels)
    torch.testing.assert_close(scaler.predict_proba(probs), scaler.predict_proba(probs=probs))
    chosen = choose_calibrator(probs, labels, methods=("temperature",))
    torch.testing.assert_close(chosen.predict_proba(probs), chosen.predict_proba(probs=probs))
