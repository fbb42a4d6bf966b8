"""Calibrators that ship: the new scalers, scikit-learn's way, the choice, the file, ONNX."""

from __future__ import annotations

import copy
import itertools
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.predictions import (
    BiasScaler,
    Calibrator,
    EnsembleTemperatureScaler,
    IsotonicScaler,
    SplineScaler,
    StructuredMatrixScaler,
    TemperatureScaler,
    VectorScaler,
    choose_calibrator,
    load_calibrator,
)
from sfumato.predictions.calibrator import METHODS, SCALERS

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
    scaler = StructuredMatrixScaler().fit(logits=logits, target=labels)
    assert scaler.temperature.item() == pytest.approx(
        TemperatureScaler().fit(logits=logits, target=labels).temperature
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
    matrix = StructuredMatrixScaler().fit(logits=many, target=labels)
    single = TemperatureScaler().fit(logits=many, target=labels)
    assert F.cross_entropy(matrix(many), labels) < F.cross_entropy(single(many), labels) - 0.03
    heavy = StructuredMatrixScaler(penalty=1e9).fit(logits=few, target=labels[:40])
    alone = TemperatureScaler().fit(logits=few, target=labels[:40])
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
    spline = SplineScaler().fit(logits=stretched, target=labels)
    single = TemperatureScaler().fit(logits=stretched, target=labels)
    gain = F.cross_entropy(single(stretched), labels) - F.cross_entropy(spline(stretched), labels)
    assert gain > 0.01
    assert torch.equal(spline(stretched).argmax(1), stretched.argmax(1))
    one = SplineScaler(pieces=1).fit(logits=stretched, target=labels)
    torch.testing.assert_close(
        one(stretched).softmax(1), single(stretched).softmax(1), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("scaler", ALL)
def test_scikit_learns_way(scaler: type) -> None:
    """numpy in, numpy out; the same as with logits, zeros included."""
    logits, labels = draw(400)
    probs = logits.softmax(1).numpy()
    fitted = scaler().fit(probs=probs, target=labels.numpy())
    found = fitted.predict_proba(probs=probs)
    assert isinstance(found, np.ndarray)
    assert found.sum(1) == pytest.approx(np.ones(400))
    same = (
        scaler().fit(logits=logits.log_softmax(1), target=labels)(logits.log_softmax(1)).softmax(1)
    )
    assert found == pytest.approx(same.numpy(), abs=1e-6)
    probs[probs < 0.02] = 0
    probs /= probs.sum(1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels of probability 0
        fitted = scaler().fit(probs=probs, target=labels.numpy())
    assert fitted.mixture is not None
    loaded = scaler()
    loaded.load_state_dict(fitted.state_dict())
    assert loaded.predict_proba(probs=probs) == pytest.approx(fitted.predict_proba(probs=probs))


def test_after_an_estimator() -> None:
    """On probabilities of folds that the estimator did not see, as CalibratedClassifierCV does."""
    sklearn = pytest.importorskip("sklearn")
    from sklearn.datasets import make_classification
    from sklearn.model_selection import cross_val_predict
    from sklearn.naive_bayes import GaussianNB

    assert sklearn
    features, labels = make_classification(800, n_informative=4, n_redundant=10, random_state=0)
    probs = cross_val_predict(GaussianNB(), features, labels, method="predict_proba")
    found = TemperatureScaler().fit(probs=probs, target=labels).predict_proba(probs=probs)
    places = np.arange(800)
    assert -np.log(found[places, labels]).mean() < -np.log(probs[places, labels]).mean() - 0.05


def test_choice_is_a_temperature_where_that_is_all_there_is() -> None:
    logits, labels = draw(1000)
    found = choose_calibrator(logits=logits, target=labels, folds=3)
    assert found.method == "temperature"
    assert found.scaler is not None
    assert found.scaler.temperature == pytest.approx(2.5, rel=0.1)
    assert set(found.report["table"]) == {"none", *METHODS}
    assert found.report["table"]["temperature"]["ece"] < found.report["table"]["none"]["ece"]
    again = choose_calibrator(
        probs=logits.softmax(1).numpy(), target=labels.numpy(), methods=["temperature"]
    )
    assert again.method == "temperature"
    assert again.predict_proba(probs=logits.softmax(1)[:9]).numpy() == pytest.approx(
        found.predict_proba(logits=logits[:9]).numpy(), abs=1e-6
    )


def test_choice_is_nothing_where_nothing_helps() -> None:
    logits, labels = draw(600, factor=1.0)
    found = choose_calibrator(logits=logits, target=labels, folds=2)
    assert found.method == "none"
    assert "no method is significantly better" in found.report["reason"]
    probs = logits.softmax(1)
    assert torch.equal(found.predict_proba(probs=probs), probs)


@pytest.mark.parametrize("seed", range(3))
def test_never_worse_than_nothing(seed: int) -> None:
    logits, labels = draw(25, factor=0.5 + seed, seed=seed)
    found = choose_calibrator(logits=logits, target=labels, folds=2)
    places = torch.arange(25)
    after = -found.predict_proba(logits=logits)[places, labels].log().mean()
    assert float(after) <= float(F.cross_entropy(logits, labels)) + 1e-12


def test_zeros_at_the_label_are_said() -> None:
    logits, labels = draw(600)
    probs = (logits.softmax(1) * 20).round() / 20
    probs = probs / probs.sum(1, keepdim=True)
    found = choose_calibrator(probs=probs, target=labels, methods=["temperature"])
    assert found.report["zero_labels"] == int((probs[torch.arange(600), labels] == 0).sum()) > 0
    assert found.uniform is not None
    assert any("probability 0" in each for each in found.report["warnings"])
    assert bool((found.predict_proba(probs=probs)[torch.arange(600), labels] > 0).all())


@pytest.mark.parametrize("method", SCALERS)
def test_file_gives_the_same_numbers(method: str, tmp_path: Path) -> None:
    logits, labels = draw(400)
    probs = logits.softmax(1)
    probs[:3] = torch.tensor([1.0, 0, 0, 0])
    found = choose_calibrator(probs=probs, target=labels, methods=[method])
    found.save(tmp_path / "calibrator.json")
    loaded = load_calibrator(tmp_path / "calibrator.json")
    assert torch.equal(loaded.predict_proba(probs=probs), found.predict_proba(probs=probs))
    assert loaded.report["chosen"] == found.method == method


def test_bad_files_and_input(tmp_path: Path) -> None:
    logits, labels = draw(100)
    path = tmp_path / "calibrator.json"
    choose_calibrator(logits=logits, target=labels, methods=["vector"]).save(path)
    content = json.loads(path.read_text())
    for change in ({"version": 2}, {"method": "magic"}, {"parameters": {}}, {"classes": 7}):
        path.write_text(json.dumps({**content, "method": "vector", **change}))
        with pytest.raises(ValueError, match=r"is no calibrator of version 1: .*sfumato calibrate"):
            load_calibrator(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="is no calibrator"):
        load_calibrator(path)
    with pytest.raises(ValueError, match="at least 20 samples"):
        choose_calibrator(logits=logits[:5], target=labels[:5])
    with pytest.raises(ValueError, match="exactly one of logits= and probs=, got none"):
        choose_calibrator(target=labels)
    with pytest.raises(ValueError, match="methods must be one of"):
        choose_calibrator(logits=logits, target=labels, methods=["platt"])
    with pytest.raises(ValueError, match="the spline is not known yet"):
        SplineScaler()(logits)
    with pytest.raises(ValueError, match="the matrix is not known yet"):
        StructuredMatrixScaler()(logits)


def test_the_name_decides_and_not_the_container() -> None:
    logits, labels = draw(300)
    probs = logits.softmax(1)
    for given in (probs, probs.numpy()):
        with pytest.raises(ValueError, match="must be raw scores, got probabilities"):
            choose_calibrator(logits=given, target=labels)
    found = choose_calibrator(probs=probs, target=labels, methods=["temperature"])
    same = choose_calibrator(probs=probs.numpy(), target=labels.numpy(), methods=["temperature"])
    assert found.to_dict() == same.to_dict()
    for given in (probs, probs.numpy(), probs.tolist()):
        with pytest.raises(ValueError, match="must be raw scores, got probabilities"):
            found.predict_proba(logits=given)
        assert np.allclose(found.predict_proba(probs=given), found.predict_proba(probs=probs))
    with pytest.raises(ValueError, match="probs"):  # by position they are probabilities
        found.predict_proba(logits)
    assert choose_calibrator(logits=probs, target=labels, methods=["temperature"], any_logits=True)


# The others jump at numbers of the fit, which a rounding decides.
WITH_ONNX = [name for name in SCALERS if name not in ("histogram", "venn_abers")]


@pytest.fixture(scope="module")
def every_calibrator() -> dict[str, Calibrator]:
    logits, labels = draw(400)
    probs = logits.softmax(1)
    probs[:3] = torch.tensor([1.0, 0, 0, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {
            name: choose_calibrator(probs=probs, target=labels, methods=[name]) for name in SCALERS
        }
    found["none"] = Calibrator("none", 4)
    assert {each.method for each in found.values()} == set(found)
    return found


SCALARS = [
    -1,
    0,
    5,
    1.5,
    -0.5,
    1e31,
    10**400,
    True,
    None,
    "1",
    [],
    {},
    [[]],
    [1, "a"],
    [[1], [1, 2]],
]
SCALARS += [[0.0, -1.0], [[[[1.0]]]], [[0.1, 0.2]], float("nan"), float("inf"), "x" * 10_000]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of nested objects and lists, of long lists the first entry."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, child in children:
        yield from _paths(child, (*path, key)) if isinstance(child, dict | list) else [(*path, key)]


def _changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = copy.deepcopy(content)
    parent = copied
    for key in path[:-1]:
        parent = parent[key]
    if value is DELETED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return copied


DELETED = object()


def _loaded(path: Path) -> Calibrator | str:
    """The calibrator, or what the ValueError says; no other error is caught."""
    try:
        return load_calibrator(path)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("method", ["none", *SCALERS])
def test_malformed_files_are_value_errors(
    method: str, every_calibrator: dict[str, Calibrator], tmp_path: Path
) -> None:
    """Anything in any place: a ValueError, or a calibrator that gives probabilities."""
    path = tmp_path / "calibrator.json"
    every_calibrator[method].save(path)
    content = json.loads(path.read_text())
    content.pop("report")
    refused = 0
    for place, value in itertools.product(_paths(content), [DELETED, *SCALARS]):
        if not place and value is DELETED:
            continue
        path.write_text(json.dumps(_changed(content, place, value)))
        found = _loaded(path)
        if isinstance(found, str):
            assert "is no calibrator of version 1" in found
            assert len(found) < 500
            refused += 1
            continue
        probs = found.predict_proba(logits=torch.randn(3, found.classes))
        assert torch.allclose(probs.sum(1), torch.ones(3).double())
    assert refused > 100


@pytest.mark.parametrize(
    ("method", "field", "value"),
    [
        ("temperature", "temperature", -1),
        ("temperature", "temperature", 0),
        ("none", "smoothing", 5),
        ("none", "smoothing", -1),
        ("none", "smoothing", float("nan")),
        ("none", "uniform", 1),
        ("none", "classes", 2.0),
        ("none", "classes", 1),
        ("none", "version", True),
        ("none", "report", []),
        ("none", "parameters", {"x": 1}),
        ("spline", "slopes", [-1.0]),
        ("spline", "knots", [1.0, 0.0]),
        ("vector", "bias", [0.0]),
        ("isotonic", "stated", [[0.0, 2.0]] * 4),
        ("isotonic", "found", [[1.0, 0.0]] * 4),
        ("matrix", "weight", [[1.0] * 3] * 4),
    ],
)
def test_the_field_is_named(
    method: str,
    field: str,
    value: Any,
    every_calibrator: dict[str, Calibrator],
    tmp_path: Path,
) -> None:
    content = every_calibrator[method].to_dict()
    inside = content["parameters"] if field in content["parameters"] else content
    inside[field] = value
    path = tmp_path / "calibrator.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=field):
        load_calibrator(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 5000,
        b'"\\ud800"',
        b"null",
    ],
    ids=range(8),
)
def test_files_that_are_no_calibrators(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "calibrator.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match="is no calibrator of version 1"):
        load_calibrator(path)


def _identity(
    onnx: Any, path: Path, dtype: str, classes: Any = 4, *, softmax: bool = False
) -> None:
    """A model whose output is its input, in another precision."""
    kind = getattr(onnx.TensorProto, dtype)
    values = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Cast", ["x"], ["cast"], to=kind)]
    nodes.append(onnx.helper.make_node("Softmax" if softmax else "Identity", ["cast"], ["y"]))
    graph = onnx.helper.make_graph(
        nodes,
        "model",
        [values("x", onnx.TensorProto.FLOAT, ["N", classes])],
        [values("y", kind, ["N", classes])],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "DOUBLE"])
@pytest.mark.parametrize("method", ["none", *WITH_ONNX])
def test_onnx_of_any_precision_is_run(
    method: str, dtype: str, every_calibrator: dict[str, Calibrator], tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    from sfumato.predictions.onnx_calibrator import append_to_onnx

    out, calibrator = tmp_path / "out.onnx", every_calibrator[method]
    _identity(onnx, tmp_path / "model.onnx", dtype)
    difference = append_to_onnx(calibrator, tmp_path / "model.onnx", out, kind="logits")
    assert difference is not None
    assert difference < 1e-5
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    rows = torch.randn(9, 4).numpy()
    given, found = session.run(["y", "calibrated_probs"], {"x": rows})
    expected = calibrator.predict_proba(logits=given.astype(np.float64))
    assert found == pytest.approx(expected, abs=1e-5)


def test_onnx_models_that_do_not_fit(
    every_calibrator: dict[str, Calibrator], tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from sfumato.predictions.onnx_calibrator import append_to_onnx

    model, out, calibrator = tmp_path / "m.onnx", tmp_path / "out.onnx", every_calibrator["vector"]

    def refused(match: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=match) as caught:
            append_to_onnx(calibrator, model, out, **{"kind": "logits", **options})
        assert "\n" not in str(caught.value)
        assert not out.exists()
        assert [each.name for each in tmp_path.iterdir()] in ([], ["m.onnx"])

    refused("no such file")
    for garbage in (b"", b"garbage", b"\x08\x07" * 50, bytes(range(256))):
        model.write_bytes(garbage)
        refused("m.onnx")
    _identity(onnx, model, "FLOAT", 5)
    refused(r"'y' must be \(N, 4\).*got \['N', 5\]")
    _identity(onnx, model, "INT64")
    refused("'y' must be a floating-point tensor")
    _identity(onnx, model, "FLOAT", softmax=True)
    refused("'y' gives no logits, of which the calibrator was fitted")
    _identity(onnx, model, "FLOAT")
    refused("'y' gives no probs, of which the calibrator was fitted", kind="probs")
    _identity(onnx, model, "FLOAT", "C")  # the file does not say how many classes
    refused("onnxruntime can't run it with the calibrator|must be")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("method", WITH_ONNX)
def test_onnx_gives_the_same_numbers(method: str, kind: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    from sfumato.predictions.onnx_calibrator import append_to_onnx

    logits, labels = draw(500)
    scores = logits if kind == "logits" else logits.softmax(1)
    if kind == "probs":
        scores[:3] = torch.tensor([1.0, 0, 0, 0])
    found = choose_calibrator(methods=[method], **{kind: scores}, target=labels)
    assert found.method == method
    values = onnx.helper.make_tensor_value_info
    single = onnx.TensorProto.FLOAT
    node = onnx.helper.make_node
    nodes = [node("Identity", ["x"], ["y"])]
    if kind == "probs":  # the model is run on numbers of any kind, and must give probabilities
        nodes = [node("Abs", ["x"], ["a"]), node("LpNormalization", ["a"], ["y"], axis=1, p=1)]
    graph = onnx.helper.make_graph(
        nodes, "model", [values("x", single, ["N", 4])], [values("y", single, ["N", 4])]
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
    assert probs == pytest.approx(found.predict_proba(**{kind: rows}).numpy(), abs=2e-6)
    with pytest.raises(ValueError, match="has no output 'z'"):
        append_to_onnx(found, tmp_path / "model.onnx", tmp_path / "x", kind=kind, output="z")
    with pytest.raises(ValueError, match="append to the original"):
        append_to_onnx(found, tmp_path / "out.onnx", tmp_path / "x", kind=kind, output="y")
