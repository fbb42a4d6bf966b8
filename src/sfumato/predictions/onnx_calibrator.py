"""A calibrator inside an ONNX model: one more output, with the same numbers as in Python."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from sfumato._core.checks import LEAST_ROWS, check_choice
from sfumato._core.files import checked_file
from sfumato.predictions.calibrator import Calibrator
from sfumato.predictions.scalers import SMALLEST

OUTPUT = "calibrated_probs"
_LEAST_OPSET = 13
_MOST_BYTES = 2**31  # of a message of protobuf
_MOST_DIFFERENCE = 1e-2
_SIZES = (8, 32, 224, 1, 64, 128)  # tried for the sizes that a model leaves open
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
Kind = Literal["logits", "probs", "confidence"]
_IN_DOUBLE = ("logistic", "logistic_spline", "beta", "isotonic")
_STEPS = ("histogram", "venn_abers")


def append_to_onnx(
    calibrator: Calibrator,
    model: str | Path,
    out: str | Path,
    *,
    kind: Kind,
    output: str | None = None,
    any_logits: bool = False,
) -> float | None:
    """Write a copy of an ONNX model that also gives calibrated probabilities.

    onnxruntime, where it is installed, runs the written model on random inputs; a model that does
    not give the calibrator's probabilities is not kept.

    Args:
        calibrator: what is appended.
        model: the ONNX file.
        out: the file to write; its new output is called "calibrated_probs".
        kind: whether the model's output is "logits", "probs" or "confidence".
        output: name of that output, (N, C) in any floating point, of confidences in any shape;
            None where the model has only one.
        any_logits: accept logits that look like probabilities.

    Returns:
        The largest difference to Python's probabilities; None without onnxruntime.
    """
    check_choice("kind", kind, ("logits", "probs", "confidence"))
    onnx, path = _onnx(), Path(out)
    loaded = _load(onnx, model)
    source = _source(onnx, loaded, model, kind, output)
    _check_output(onnx, source, model, None if kind == "confidence" else calibrator.classes)
    shape = _sizes(source) if kind == "confidence" else None
    nodes, constants, shown = calibrator_nodes(calibrator, source.name, kind, shape)
    loaded.graph.node.extend(nodes)
    loaded.graph.initializer.extend(constants)
    loaded.graph.output.append(shown)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".calibrated-") as folder:
        written = Path(folder) / "model.onnx"
        try:
            onnx.checker.check_model(loaded)
            onnx.save(loaded, str(written))
        except Exception as error:  # protobuf and the checker have classes of their own
            raise ValueError(f"{model}: can't be written: {_one_line(error)}") from None
        try:
            import onnxruntime
        except ImportError:
            difference = None
        else:
            found, probs = _run(onnxruntime, written, source.name, str(model))
            difference = _compare(
                calibrator, found, probs, kind, f"{model}: {source.name!r}", any_logits
            )
        written.replace(path)
    return difference


def _check_possible(calibrator: Calibrator) -> None:
    if calibrator.method in _STEPS:
        raise ValueError(
            f"{calibrator.method} jumps from value to value, so that a runtime's last rounding "
            "would decide: choose another of the methods for ONNX, such as isotonic or beta"
        )
    if calibrator.place is not None:
        raise ValueError(
            "the calibrator reads boxes, and ONNX models give them in units of their own: choose "
            "the methods logistic, beta, logistic_spline or isotonic for ONNX"
        )


def _load(onnx: Any, model: str | Path) -> Any:
    if not Path(model).is_file():
        raise ValueError(f"{model}: no such file")
    try:
        loaded = onnx.load(checked_file(Path(model), most=_MOST_BYTES))
    except Exception as error:  # protobuf's errors share no class but that of all
        raise ValueError(f"{model}: onnx can't read it: {_one_line(error)}") from None
    if not loaded.graph.output:
        raise ValueError(f"{model}: is no ONNX model, or one without outputs")
    opsets = {each.domain: each.version for each in loaded.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx", 0))
    if opset < _LEAST_OPSET:
        raise ValueError(
            f"{model} is of operator set {opset}, at least {_LEAST_OPSET} is needed: convert it "
            "with onnx.version_converter"
        )
    return loaded


def _source(onnx: Any, loaded: Any, model: str | Path, kind: Kind, output: str | None) -> Any:
    """Describe the output that the calibrator follows."""
    outputs = {each.name: each for each in loaded.graph.output}
    if OUTPUT in outputs:
        raise ValueError(f"{model} has an output {OUTPUT!r} already: append to the original")
    if output is None and len(outputs) != 1:
        raise ValueError(f"{model} has the outputs {list(outputs)}: say which holds the {kind}")
    name = output or next(iter(outputs))
    if name not in outputs:
        raise ValueError(f"{model} has no output {name!r}, only {list(outputs)}")
    return outputs[name]


def _check_output(onnx: Any, source: Any, model: str | Path, classes: int | None) -> None:
    """Raise unless an output may be floating point (N, classes); of None classes, any shape."""
    kinds = onnx.TensorProto
    allowed = (kinds.UNDEFINED, kinds.FLOAT, kinds.FLOAT16, kinds.DOUBLE, kinds.BFLOAT16)
    form = source.type.tensor_type
    is_tensor = source.type.WhichOneof("value") in (None, "tensor_type")
    if not is_tensor or form.elem_type not in allowed:
        raise ValueError(f"{model}: output {source.name!r} must be a floating-point tensor")
    if classes is None and not form.HasField("shape"):
        raise ValueError(
            f"{model}: output {source.name!r} has no shape; add it with onnx.shape_inference"
        )
    if classes is None or not form.HasField("shape"):
        return
    sizes = _sizes(source)
    if len(sizes) != 2 or sizes[1] not in (None, classes):
        shown = ["N" if size is None else size for size in sizes]
        raise ValueError(
            f"{model}: output {source.name!r} must be (N, {classes}), one column for each class of "
            f"the calibrator, got {shown}"
        )


def _sizes(source: Any) -> list[int | None]:
    """The sizes of an output; None where the file leaves one open."""
    dims = source.type.tensor_type.shape.dim
    return [each.dim_value if each.HasField("dim_value") else None for each in dims]


def _run(onnxruntime: Any, path: Path, source: str, model: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores and calibrated probabilities of a written model for random inputs, at least 4 rows."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # what fails is said here, in one line
    reason = ""
    try:
        session = onnxruntime.InferenceSession(
            str(path), settings, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # its errors share no class but that of all
        raise ValueError(f"{model}: onnxruntime can't load it: {_one_line(error)}") from None
    rng = np.random.default_rng(0)
    for size in _SIZES:
        parts: list[list[np.ndarray]] = []
        try:
            while sum(len(part[0]) for part in parts) < LEAST_ROWS and len(parts) < LEAST_ROWS:
                given = {each.name: _random(rng, each, size) for each in session.get_inputs()}
                parts.append(session.run([source, OUTPUT], given))
        except Exception as error:
            reason = _one_line(error)
            continue
        scores, probs = (np.concatenate(each) for each in zip(*parts, strict=True))
        return scores, probs
    raise ValueError(f"{model}: onnxruntime can't run it with the calibrator: {reason}")


def _random(rng: np.random.Generator, described: Any, size: int) -> np.ndarray:
    """Values for an input; sizes that the file leaves open are `size`, that of the batch 4."""
    free = [LEAST_ROWS] + [size] * len(described.shape)
    pairs = zip(described.shape, free, strict=False)
    shape = [each if isinstance(each, int) and each > 0 else other for each, other in pairs]
    if described.type not in _TYPES:
        raise ValueError(f"input {described.name!r} is {described.type}, which can't be made up")
    dtype = np.dtype(_TYPES[described.type])
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(2 if dtype != np.uint8 else 256, size=shape).astype(dtype)


def _compare(
    calibrator: Calibrator,
    scores: np.ndarray,
    probs: np.ndarray,
    kind: Kind,
    where: str,
    any_logits: bool,
) -> float:
    """Largest difference between a model's probabilities (N, C) and those of its scores."""
    is_confidence = kind == "confidence"
    of_classes = is_confidence or scores.shape[1:] == (calibrator.classes,)
    if scores.shape != probs.shape or not of_classes:
        raise ValueError(f"{where} must be (N, {calibrator.classes}), got {scores.shape}")
    try:
        rows = scores.astype(np.float64)
        if is_confidence:
            expected = calibrator.predict_proba(confidence=rows.ravel()).reshape(rows.shape)
        else:
            given: dict[str, Any] = {kind: rows}
            expected = calibrator.predict_proba(**given, any_logits=any_logits)
    except ValueError as error:
        raise ValueError(
            f"{where} gives no {kind}, of which the calibrator was fitted: {error}"
        ) from None
    difference = float(np.abs(probs - expected).max(initial=0.0))
    if not difference <= _MOST_DIFFERENCE:
        raise ValueError(
            f"{where}: with the calibrator onnxruntime's probabilities differ from Python's by "
            f"{difference:.1e}"
        )
    return difference


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def largest_difference(calibrator: Calibrator, rows: Tensor, kind: Kind) -> float:
    """Measure how far onnxruntime's probabilities of `rows` (N, C) are from Python's."""
    import onnxruntime

    onnx = _onnx()
    shape: list[int | None] = [None] if kind == "confidence" else [None, calibrator.classes]
    nodes, constants, shown = calibrator_nodes(calibrator, "scores", kind, shape)
    scores = onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph(nodes, "calibrator", [scores], [shown], constants)
    opset = onnx.helper.make_opsetid("", _LEAST_OPSET)
    made = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.checker.check_model(made)
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    single = rows.float().cpu().numpy()
    (found,) = session.run([OUTPUT], {"scores": single})
    return _compare(calibrator, single, found, kind, "the calibrator", True)


def calibrator_nodes(
    calibrator: Calibrator, source: str, kind: Kind, shape: list[int | None] | None = None
) -> tuple[list[Any], list[Any], Any]:
    """Nodes, constants and the description of the output."""
    _check_possible(calibrator)
    onnx = _onnx()
    # Curves of isotonic regression have steps narrower than a rounding of single precision, and
    # odds need the distance from 1.
    in_double = calibrator.method in _IN_DOUBLE or kind == "confidence"
    graph = _Graph(onnx, np.float64 if in_double else np.float32)
    wanted = onnx.TensorProto.DOUBLE if in_double else onnx.TensorProto.FLOAT
    given = source
    source = graph.add("Cast", source, to=wanted)  # models may give half or double precision
    if kind == "confidence":
        source = graph.wrong_and_right(source)
    last = graph.log_probabilities(calibrator, source, kind)
    if calibrator.scaler is not None:
        last = getattr(graph, f"_{calibrator.method}")(calibrator.to_dict()["parameters"], last)
    if calibrator.method == "none" and kind != "logits":
        last = source
    elif calibrator.method not in _IN_DOUBLE:
        last = graph.add("Softmax", last, axis=1)
    if calibrator.smoothing:
        last = graph.add("Mul", last, graph.constant(1 - calibrator.smoothing))
        last = graph.add("Add", last, graph.constant(calibrator.smoothing / calibrator.classes))
    if kind == "confidence":
        right = graph.add("Gather", last, graph.constant(1, np.int64), axis=1)
        last = graph.add("Reshape", right, graph.add("Shape", given))
    single = onnx.TensorProto.FLOAT
    graph.nodes.append(onnx.helper.make_node("Cast", [last], [OUTPUT], to=single))
    shape = shape or [None, calibrator.classes]
    shown = onnx.helper.make_tensor_value_info(OUTPUT, single, shape)
    return graph.nodes, graph.constants, shown


class _Graph:
    """Nodes and constants as they are added; methods named like `Calibrator.method`."""

    def __init__(self, onnx: Any, dtype: type) -> None:
        self.onnx, self.dtype = onnx, dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"sfumato_calibrator_{len(self.nodes)}"
        made = self.onnx.helper.make_node(operator, list(inputs), [name], **attributes)
        self.nodes.append(made)
        return name

    def constant(self, values: Any, dtype: type | None = None) -> str:
        name = f"sfumato_calibrator_constant_{len(self.constants)}"
        array: np.ndarray = np.asarray(values, dtype=dtype or self.dtype)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def log_probabilities(self, calibrator: Calibrator, source: str, kind: Kind) -> str:
        if kind == "logits":
            return self.add("LogSoftmax", source, axis=1)
        if calibrator.uniform is None:
            return self.add("Log", self.add("Max", source, self.constant(SMALLEST)))
        mixed = self.add("Mul", source, self.constant(1 - calibrator.uniform))
        share = self.constant(calibrator.uniform / calibrator.classes)
        return self.add("Log", self.add("Add", mixed, share))

    def _temperature(self, found: dict[str, Any], logits: str) -> str:
        return self.add("Div", logits, self.constant(found["temperature"]))

    def _vector(self, found: dict[str, Any], logits: str) -> str:
        scaled = self.add("Mul", logits, self.constant(found["scale"]))
        return self.add("Add", scaled, self.constant(found["bias"]))

    def _matrix(self, found: dict[str, Any], logits: str) -> str:
        scaled = self.add("LogSoftmax", self._temperature(found, logits), axis=1)
        weight = self.constant(np.transpose(found["weight"]))
        return self.add("Add", self.add("MatMul", scaled, weight), self.constant(found["bias"]))

    def _spline(self, found: dict[str, Any], logits: str) -> str:
        two = self.constant([2], np.int64)
        name = f"sfumato_calibrator_{len(self.nodes)}"
        made = self.onnx.helper.make_node("TopK", [logits, two], [name, f"{name}_places"], axis=1)
        self.nodes.append(made)
        axis = self.constant([1], np.int64)
        places = [self.constant([place], np.int64) for place in range(3)]
        first = self.add("Slice", name, places[0], places[1], axis)
        margin = self.add("Sub", first, self.add("Slice", name, places[1], places[2], axis))
        knots = np.asarray(found["knots"])
        widths = np.append(np.diff(knots), np.finfo(np.float32).max)
        height = self._clipped(margin, knots, widths, np.asarray(found["slopes"]), axis)
        tied = self.add("LessOrEqual", margin, self.constant(0.0))
        safe = self.add("Where", tied, self.constant(1.0), margin)
        slope = self.constant(found["slopes"][0])
        ratio = self.add("Where", tied, slope, self.add("Div", height, safe))
        return self.add("Mul", self.add("Sub", logits, first), ratio)

    def wrong_and_right(self, confidence: str) -> str:
        """Confidences of any shape as two classes, (N, 2)."""
        column = self.add("Reshape", confidence, self.constant([-1, 1], np.int64))
        return self.add("Concat", self.add("Sub", self.constant(1.0), column), column, axis=1)

    def _logistic(self, found: dict[str, Any], logits: str) -> str:
        slopes, knots = np.asarray(found["slopes"]), np.asarray(found["knots"])
        odds = self.add("Sub", *self._chances(logits))
        axis = self.constant([2], np.int64)
        odds = self.add("Unsqueeze", odds, axis)  # (N, C, 1)
        parts = odds
        if knots.size:
            largest = np.full_like(knots[:, :1], np.finfo(np.float64).max)
            upper = np.concatenate([knots[:, 1:], largest], 1)
            inside = self.add("Min", odds, self.constant(upper))
            above = self.add("Max", inside, self.constant(knots))
            later = self.add("Sub", above, self.constant(knots))
            parts = self.add("Min", odds, self.constant(knots[:, :1]))
            parts = self.add("Concat", parts, later, axis=2)
        risen = self.add("Mul", parts, self.constant(slopes))
        line = self.add("ReduceSum", risen, axis, keepdims=0)
        return self._normalised_odds(line, np.asarray(found["bias"])[:, 0])

    _logistic_spline = _logistic

    def _beta(self, found: dict[str, Any], logits: str) -> str:
        a, b, c = np.asarray(found["coefficients"]).T
        own, rest = self._chances(logits)
        first = self.add("Mul", own, self.constant(a))
        return self._normalised_odds(
            self.add("Sub", first, self.add("Mul", rest, self.constant(b))), c
        )

    def _chances(self, logits: str) -> tuple[str, str]:
        """log p and log(1 - p), the rest summed from both sides so that nothing cancels."""
        probs, axis = self.add("Softmax", logits, axis=1), self.constant(1, np.int64)
        sides = [self.add("CumSum", probs, axis, exclusive=1, reverse=end) for end in (0, 1)]
        rest = self.add("Max", self.add("Add", *sides), self.constant(np.finfo(np.float64).tiny))
        return self.add("LogSoftmax", logits, axis=1), self.add("Log", rest)

    def _normalised_odds(self, odds: str, bias: np.ndarray) -> str:
        curve = self.add("Sigmoid", self.add("Add", odds, self.constant(bias)))
        return self._normalised(curve, len(bias))

    def _isotonic(self, found: dict[str, Any], logits: str) -> str:
        stated, heights = (np.asarray(found[key]) for key in ("stated", "found"))  # (C, K)
        widths = np.diff(stated, axis=1)
        rises = np.diff(heights, axis=1)
        slopes = np.divide(rises, widths, out=np.zeros_like(rises), where=widths > 0)
        axis = self.constant([2], np.int64)
        probs = self.add("Unsqueeze", self.add("Softmax", logits, axis=1), axis)  # (N, C, 1)
        curve = self._clipped(probs, stated[:, :-1], widths, slopes, axis, keep=0)
        return self._normalised(self.add("Add", curve, self.constant(heights[:, 0])), len(stated))

    def _normalised(self, curve: str, num_classes: int) -> str:
        """Each class divided by the sum of all; equal shares where that is 0."""
        classes = self.constant([1], np.int64)
        total = self.add("ReduceSum", curve, classes, keepdims=1)
        nothing = self.add("LessOrEqual", total, self.constant(0.0))
        safe = self.add("Where", nothing, self.constant(1.0), total)
        return self.add(
            "Where", nothing, self.constant(1 / num_classes), self.add("Div", curve, safe)
        )

    def _clipped(
        self,
        values: str,
        starts: np.ndarray,
        widths: np.ndarray,
        slopes: np.ndarray,
        axis: str,
        keep: int = 1,
    ) -> str:
        """sum_k slope_k clip(x - start_k, 0, width_k) over the last axis."""
        above = self.add("Max", self.add("Sub", values, self.constant(starts)), self.constant(0.0))
        inside = self.add("Min", above, self.constant(widths))
        risen = self.add("Mul", inside, self.constant(slopes))
        return self.add("ReduceSum", risen, axis, keepdims=keep)


def _onnx() -> Any:
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
    except ImportError as error:
        raise ImportError("ONNX models need the package onnx: pip install onnx") from error
    return onnx
