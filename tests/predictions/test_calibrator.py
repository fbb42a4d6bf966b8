"""Calibrators that ship: the new scalers, scikit-learn's way, the choice, the file, ONNX."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.predictions import (
    BiasScaler,
    EnsembleTemperatureScaler,
    IsotonicScaler,
    SplineScaler,
    StructuredMatrixScaler,
    TemperatureScaler,
    VectorScaler,
    choose_calibrator,
    load_calibrator,
)
from sfumato.predictions.calibrator import SCALERS

ALL = (
    BiasScaler,
    EnsembleTemperatureScaler,
    IsotonicScaler,
    SplineScaler,
    StructuredMatrixScaler,
    TemperatureScaler,
    VectorScaler,
)


def draw(n: int, classes: int = 4, factor: float = 2.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Overconfident logits and labels of the true ones."""
    generator = torch.Generator().manual_seed(seed)
    true = 1.5 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(true.softmax(1), 1, generator=generator).squeeze(1)
    return factor * true, labels


def matrix_loss(scaler: StructuredMatrixScaler, logits: Tensor, labels: Tensor) -> float:
    """The objective, written from the equation."""
    n, classes = logits.shape
    scaled = (logits / scaler.temperature).log_softmax(1)
    change = scaler.weight - torch.eye(classes, dtype=torch.float64)
    value = float(F.cross_entropy(scaled @ scaler.weight.T + scaler.bias, labels))
    for row in range(classes):
        value += classes / n * float(scaler.bias[row]) ** 2
        for column in range(classes):
            size = classes if row == column else classes * (classes - 1)
            value += size / n * float(change[row, column]) ** 2
    return value


def test_structured_matrix_is_at_the_minimum_of_its_equation() -> None:
    logits, labels = draw(300)
    scaler = StructuredMatrixScaler().fit(logits, labels)
    assert scaler.temperature.item() == pytest.approx(
        TemperatureScaler().fit(logits, labels).temperature
    )
    best = matrix_loss(scaler, logits, labels)
    generator = torch.Generator().manual_seed(1)
    for buffer in (scaler.weight, scaler.bias):
        for _ in range(5):
            step = 1e-3 * torch.randn(buffer.shape, generator=generator, dtype=torch.float64)
            buffer += step
            assert matrix_loss(scaler, logits, labels) > best
            buffer -= step


def test_structured_matrix_repairs_a_confusion_and_shrinks_to_temperature() -> None:
    logits, labels = draw(4000)
    mixed = logits.clone()
    mixed[:, 0] += 0.8 * logits[:, 1]  # evidence of one class counted for another
    few, many = mixed[:40], mixed
    matrix = StructuredMatrixScaler().fit(many, labels)
    single = TemperatureScaler().fit(many, labels)
    assert F.cross_entropy(matrix(many), labels) < F.cross_entropy(single(many), labels) - 0.03
    heavy = StructuredMatrixScaler(penalty=1e9).fit(few, labels[:40])
    alone = TemperatureScaler().fit(few, labels[:40])
    torch.testing.assert_close(heavy(few).softmax(1), alone(few).softmax(1), rtol=0, atol=1e-5)


def test_spline_by_hand() -> None:
    scaler = SplineScaler()
    scaler.knots = torch.tensor([0.0, 2.0], dtype=torch.float64)
    scaler.slopes = torch.tensor([1.0, 0.25], dtype=torch.float64)
    logits = torch.tensor([[1.0, 0, -1], [4.0, 0, -4], [3.0, 3, 0]], dtype=torch.float64)
    # h(1) = 1; h(4) = 2 + 0.25 * 2 = 2.5, so the scale is 2.5 / 4; a tie takes the first slope.
    expected = [[0, -1, -2], [0, -2.5, -5], [0, 0, -3]]
    assert scaler(logits).tolist() == expected


def test_spline_repairs_what_one_temperature_can_not() -> None:
    """Right about small margins, far too sure of large ones."""
    logits, labels = draw(6000, factor=1.0)
    top = logits.topk(2, 1).values
    margin = top[:, 0] - top[:, 1]
    stretched = (
        (logits - top[:, :1])
        * torch.where(margin > 1, margin.pow(2), margin)[:, None]
        / margin[:, None]
    )
    spline = SplineScaler().fit(stretched, labels)
    single = TemperatureScaler().fit(stretched, labels)
    gain = F.cross_entropy(single(stretched), labels) - F.cross_entropy(spline(stretched), labels)
    assert gain > 0.01
    assert torch.equal(spline(stretched).argmax(1), stretched.argmax(1))
    one = SplineScaler(pieces=1).fit(stretched, labels)
    torch.testing.assert_close(
        one(stretched).softmax(1), single(stretched).softmax(1), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("scaler", ALL)
def test_scikit_learns_way(scaler: type) -> None:
    """numpy in, numpy out; the same as with logits, zeros included."""
    logits, labels = draw(400)
    probs = logits.softmax(1).numpy()
    fitted = scaler().fit(probs, labels.numpy())
    found = fitted.predict_proba(probs)
    assert isinstance(found, np.ndarray)
    assert found.sum(1) == pytest.approx(np.ones(400))
    same = scaler().fit(logits.log_softmax(1), labels)(logits.log_softmax(1)).softmax(1)
    assert found == pytest.approx(same.numpy(), abs=1e-6)
    probs[probs < 0.02] = 0
    probs /= probs.sum(1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels of probability 0
        fitted = scaler().fit(probs, labels.numpy())
    assert fitted.mixture is not None
    loaded = scaler()
    loaded.load_state_dict(fitted.state_dict())
    assert loaded.predict_proba(probs) == pytest.approx(fitted.predict_proba(probs))
    with pytest.raises(ValueError, match="pass logits as a tensor"):
        scaler().fit(logits.numpy(), labels.numpy())


def test_after_an_estimator() -> None:
    """On probabilities of folds that the estimator did not see, as CalibratedClassifierCV does."""
    sklearn = pytest.importorskip("sklearn")
    from sklearn.datasets import make_classification
    from sklearn.model_selection import cross_val_predict
    from sklearn.naive_bayes import GaussianNB

    assert sklearn
    features, labels = make_classification(800, n_informative=4, n_redundant=10, random_state=0)
    probs = cross_val_predict(GaussianNB(), features, labels, method="predict_proba")
    found = TemperatureScaler().fit(probs, labels).predict_proba(probs)
    places = np.arange(800)
    assert -np.log(found[places, labels]).mean() < -np.log(probs[places, labels]).mean() - 0.05


def test_choice_is_a_temperature_where_that_is_all_there_is() -> None:
    logits, labels = draw(1000)
    found = choose_calibrator(labels, logits=logits, folds=3)
    assert found.method == "temperature"
    assert found.scaler is not None
    assert found.scaler.temperature == pytest.approx(2.5, rel=0.1)
    assert set(found.report["table"]) == {"none", *SCALERS}
    assert found.report["table"]["temperature"]["ece"] < found.report["table"]["none"]["ece"]
    again = choose_calibrator(
        labels.numpy(), probs=logits.softmax(1).numpy(), methods=["temperature"]
    )
    assert again.method == "temperature"
    assert again.predict_proba(logits.softmax(1)[:9]).numpy() == pytest.approx(
        found.calibrate_logits(logits[:9]).numpy(), abs=1e-6
    )


def test_choice_is_nothing_where_nothing_helps() -> None:
    logits, labels = draw(600, factor=1.0)
    found = choose_calibrator(labels, logits=logits, folds=2)
    assert found.method == "none"
    assert "no method is measurably better" in found.report["reason"]
    probs = logits.softmax(1)
    assert torch.equal(found.predict_proba(probs), probs)


@pytest.mark.parametrize("seed", range(3))
def test_never_worse_than_nothing(seed: int) -> None:
    logits, labels = draw(25, factor=0.5 + seed, seed=seed)
    found = choose_calibrator(labels, logits=logits, folds=2)
    places = torch.arange(25)
    after = -found.calibrate_logits(logits)[places, labels].log().mean()
    assert float(after) <= float(F.cross_entropy(logits, labels)) + 1e-12


def test_zeros_at_the_label_are_said() -> None:
    logits, labels = draw(600)
    probs = (logits.softmax(1) * 20).round() / 20
    probs = probs / probs.sum(1, keepdim=True)
    found = choose_calibrator(labels, probs=probs, methods=["temperature"])
    assert found.report["zero_labels"] == int((probs[torch.arange(600), labels] == 0).sum()) > 0
    assert found.uniform is not None
    assert any("probability 0" in each for each in found.report["warnings"])
    assert bool((found.predict_proba(probs)[torch.arange(600), labels] > 0).all())


@pytest.mark.parametrize("method", SCALERS)
def test_file_gives_the_same_numbers(method: str, tmp_path: Path) -> None:
    logits, labels = draw(400)
    probs = logits.softmax(1)
    probs[:3] = torch.tensor([1.0, 0, 0, 0])
    found = choose_calibrator(labels, probs=probs, methods=[method])
    found.save(tmp_path / "calibrator.json")
    loaded = load_calibrator(tmp_path / "calibrator.json")
    assert torch.equal(loaded.predict_proba(probs), found.predict_proba(probs))
    assert loaded.report["chosen"] == found.method == method


def test_bad_files_and_input(tmp_path: Path) -> None:
    logits, labels = draw(100)
    path = tmp_path / "calibrator.json"
    choose_calibrator(labels, logits=logits, methods=["vector"]).save(path)
    content = json.loads(path.read_text())
    for change in ({"version": 2}, {"method": "magic"}, {"parameters": {}}, {"classes": 7}):
        path.write_text(json.dumps({**content, "method": "vector", **change}))
        with pytest.raises(ValueError, match=r"is no calibrator of version 1: .*sfumato calibrate"):
            load_calibrator(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="is no calibrator"):
        load_calibrator(path)
    with pytest.raises(ValueError, match="at least 20 samples"):
        choose_calibrator(labels[:5], logits=logits[:5])
    with pytest.raises(ValueError, match="either probs or logits"):
        choose_calibrator(labels)
    with pytest.raises(ValueError, match="methods must be one of"):
        choose_calibrator(labels, logits=logits, methods=["platt"])
    with pytest.raises(ValueError, match="the spline is not known yet"):
        SplineScaler()(logits)
    with pytest.raises(ValueError, match="the matrix is not known yet"):
        StructuredMatrixScaler()(logits)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("method", SCALERS)
def test_onnx_gives_the_same_numbers(method: str, kind: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    from sfumato.predictions.onnx_calibrator import append_to_onnx

    logits, labels = draw(500)
    scores = logits if kind == "logits" else logits.softmax(1)
    if kind == "probs":
        scores[:3] = torch.tensor([1.0, 0, 0, 0])
    found = choose_calibrator(labels, methods=[method], **{kind: scores})
    assert found.method == method
    values = onnx.helper.make_tensor_value_info
    single = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "model",
        [values("x", single, ["N", 4])],
        [values("y", single, ["N", 4])],
    )
    made = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(made, tmp_path / "model.onnx")
    append_to_onnx(found, tmp_path / "model.onnx", tmp_path / "out.onnx", kind=kind)
    session = onnxruntime.InferenceSession(
        tmp_path / "out.onnx", providers=["CPUExecutionProvider"]
    )
    assert [each.name for each in session.get_outputs()] == ["y", "calibrated_probs"]
    rows = scores.float()
    probs = session.run(["calibrated_probs"], {"x": rows.numpy()})[0]
    apply = found.calibrate_logits if kind == "logits" else found.predict_proba
    assert probs == pytest.approx(apply(rows).numpy(), abs=2e-6)
    with pytest.raises(ValueError, match="has no output 'z'"):
        append_to_onnx(found, tmp_path / "model.onnx", tmp_path / "x", kind=kind, output="z")
    with pytest.raises(ValueError, match="append to the original"):
        append_to_onnx(found, tmp_path / "out.onnx", tmp_path / "x", kind=kind, output="y")
