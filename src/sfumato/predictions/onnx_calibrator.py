"""A calibrator inside an ONNX model: one more output, with the same numbers as in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from sfumato._core.checks import check_choice
from sfumato.predictions.calibrator import Calibrator
from sfumato.predictions.scaler import SMALLEST

OUTPUT = "calibrated_probs"
_LEAST_OPSET = 13
Kind = Literal["logits", "probs"]


def append_to_onnx(
    calibrator: Calibrator,
    model: str | Path,
    out: str | Path,
    *,
    kind: Kind,
    output: str | None = None,
) -> None:
    """Write a copy of an ONNX model that also gives calibrated probabilities.

    Args:
        calibrator: what is appended.
        model: the ONNX file.
        out: the file to write; its new output is called "calibrated_probs".
        kind: whether the model's output is "logits" or "probs".
        output: name of that output, (N, C); None where the model has only one.

    Raises:
        ImportError: onnx is not installed.
        ValueError: no such output, several and none named, or an operator set below 13.
    """
    check_choice("kind", kind, ("logits", "probs"))
    onnx = _onnx()
    loaded = onnx.load(str(model))
    names = [each.name for each in loaded.graph.output]
    if output is None and len(names) != 1:
        raise ValueError(f"{model} has the outputs {names}: say which holds the {kind}")
    source = output or names[0]
    if source not in names:
        raise ValueError(f"{model} has no output {source!r}, only {names}")
    if OUTPUT in names:
        raise ValueError(f"{model} has an output {OUTPUT!r} already: append to the original")
    opset = next(
        (each.version for each in loaded.opset_import if each.domain in ("", "ai.onnx")), 0
    )
    if opset < _LEAST_OPSET:
        raise ValueError(
            f"{model} is of operator set {opset}, at least {_LEAST_OPSET} is needed: convert it "
            "with onnx.version_converter"
        )
    nodes, constants, shown = calibrator_nodes(calibrator, source, kind)
    loaded.graph.node.extend(nodes)
    loaded.graph.initializer.extend(constants)
    loaded.graph.output.append(shown)
    onnx.checker.check_model(loaded)
    onnx.save(loaded, str(out))


def calibrator_model(calibrator: Calibrator, kind: Kind) -> Any:
    """The calibrator alone as an ONNX model with the input "scores"."""
    onnx = _onnx()
    nodes, constants, shown = calibrator_nodes(calibrator, "scores", kind)
    shape = ["N", calibrator.classes]
    scores = onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph(nodes, "calibrator", [scores], [shown], constants)
    opset = onnx.helper.make_opsetid("", _LEAST_OPSET)
    made = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.checker.check_model(made)
    return made


def largest_difference(calibrator: Calibrator, rows: Tensor, kind: Kind) -> float:
    """Largest difference between onnxruntime's probabilities of `rows` (N, C) and Python's."""
    import onnxruntime

    made = calibrator_model(calibrator, kind).SerializeToString()
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    single = rows.float()
    found = session.run([OUTPUT], {"scores": single.cpu().numpy()})[0]
    apply = calibrator.calibrate_logits if kind == "logits" else calibrator.predict_proba
    return float(np.abs(found - apply(single).cpu().numpy()).max())


def calibrator_nodes(
    calibrator: Calibrator, source: str, kind: Kind
) -> tuple[list[Any], list[Any], Any]:
    """Nodes, constants and the description of the output."""
    onnx = _onnx()
    # Curves of isotonic regression have steps narrower than a rounding of single precision.
    is_steep = calibrator.method == "isotonic"
    graph = _Graph(onnx, np.float64 if is_steep else np.float32)
    if is_steep:
        source = graph.add("Cast", source, to=onnx.TensorProto.DOUBLE)
    last = graph.log_probabilities(calibrator, source, kind)
    if calibrator.scaler is not None:
        last = getattr(graph, f"_{calibrator.method}")(calibrator.to_dict()["parameters"], last)
    if calibrator.method == "none" and kind == "probs":
        last = source
    elif calibrator.method != "isotonic":
        last = graph.add("Softmax", last, axis=1)
    if calibrator.smoothing:
        last = graph.add("Mul", last, graph.constant(1 - calibrator.smoothing))
        last = graph.add("Add", last, graph.constant(calibrator.smoothing / calibrator.classes))
    single = onnx.TensorProto.FLOAT
    graph.nodes.append(onnx.helper.make_node("Cast", [last], [OUTPUT], to=single))
    shape = ["N", calibrator.classes]
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
        tempered = self.add("Div", logits, self.constant(found["temperature"]))
        scaled = self.add("LogSoftmax", tempered, axis=1)
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

    def _isotonic(self, found: dict[str, Any], logits: str) -> str:
        stated, heights = (np.asarray(found[key]) for key in ("stated", "found"))  # (C, K)
        widths = np.diff(stated, axis=1)
        rises = np.diff(heights, axis=1)
        slopes = np.divide(rises, widths, out=np.zeros_like(rises), where=widths > 0)
        axis = self.constant([2], np.int64)
        probs = self.add("Unsqueeze", self.add("Softmax", logits, axis=1), axis)  # (N, C, 1)
        curve = self._clipped(probs, stated[:, :-1], widths, slopes, axis, keep=0)
        curve = self.add("Add", curve, self.constant(heights[:, 0]))
        classes = self.constant([1], np.int64)
        total = self.add("ReduceSum", curve, classes, keepdims=1)
        nothing = self.add("LessOrEqual", total, self.constant(0.0))
        safe = self.add("Where", nothing, self.constant(1.0), total)
        return self.add(
            "Where", nothing, self.constant(1 / len(stated)), self.add("Div", curve, safe)
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
