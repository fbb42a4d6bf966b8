"""`Calibrator`: a fitted scaler as a small JSON file that any language can apply.

docs/calibrators.md has the format and every equation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato._core.arrays import like_input, to_tensor
from sfumato.predictions.held_out import check_logits, check_probabilities
from sfumato.predictions.isotonic import IsotonicScaler
from sfumato.predictions.scaler import SMALLEST, Scaler
from sfumato.predictions.spline import SplineScaler
from sfumato.predictions.structured_matrix import StructuredMatrixScaler
from sfumato.predictions.temperature import TemperatureScaler
from sfumato.predictions.uniform_mixture import mixed_logarithm
from sfumato.predictions.vector import VectorScaler

FORMAT, VERSION = "sfumato calibrator", 1
SCALERS: dict[str, Callable[[], Scaler]] = {  # from few parameters to many
    "temperature": TemperatureScaler,
    "spline": SplineScaler,
    "vector": VectorScaler,
    "isotonic": IsotonicScaler,
    "matrix": StructuredMatrixScaler,
}
_BUFFERS = {
    "none": {},
    "temperature": {"temperature": "_temperature"},
    "spline": {"knots": "knots", "slopes": "slopes"},
    "vector": {"scale": "scale", "bias": "bias"},
    "isotonic": {"stated": "stated", "found": "found"},
    "matrix": {"temperature": "temperature", "weight": "weight", "bias": "bias"},
}


@dataclass
class Calibrator:
    """Probabilities or logits in, calibrated probabilities out.

    log p comes first: of probabilities log((1 - uniform) p + uniform / C), of logits the log
    softmax. The scaler works on that, softmax follows, and `smoothing` mixes the result with the
    uniform distribution.

    Args:
        method: "none" or a key of `SCALERS`.
        classes: number of classes C.
        scaler: the fitted scaler; None for "none".
        uniform: share of the uniform distribution before the logarithm; None where no probability
            was 0.
        smoothing: share of the uniform distribution in the result.
        report: how it was chosen, plain data.
    """

    method: str
    classes: int
    scaler: Scaler | None = None
    uniform: float | None = None
    smoothing: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)

    def predict_proba(self, probs: Any) -> Any:
        """Calibrated probabilities of probabilities (N, C); array in, array out."""
        rows = to_tensor("probs", probs).double()
        check_probabilities(rows)
        self._check_classes(rows)
        if self.method == "none":
            return like_input(rows, probs)
        return like_input(self._apply(log_probabilities(rows, self.uniform)), probs)

    def calibrate_logits(self, logits: Any) -> Any:
        """Calibrated probabilities of logits (N, C); array in, array out."""
        rows = to_tensor("logits", logits).double()
        check_logits(rows)
        self._check_classes(rows)
        return like_input(self._apply(rows.log_softmax(1)), logits)

    def _apply(self, log_probs: Tensor) -> Tensor:
        if self.scaler is not None:
            log_probs = self.scaler(log_probs)
        probs = log_probs.softmax(1)
        return (1 - self.smoothing) * probs + self.smoothing / self.classes

    def _check_classes(self, rows: Tensor) -> None:
        if rows.ndim != 2 or rows.shape[1] != self.classes:
            raise ValueError(f"rows must be (N, {self.classes}), got {tuple(rows.shape)}")

    def to_dict(self) -> dict[str, Any]:
        """The content of the file."""
        buffers = {} if self.scaler is None else dict(self.scaler.named_buffers())
        parameters = {
            name: buffers[buffer].tolist() for name, buffer in _BUFFERS[self.method].items()
        }
        return {
            "format": FORMAT,
            "version": VERSION,
            "method": self.method,
            "classes": self.classes,
            "uniform": self.uniform,
            "smoothing": self.smoothing,
            "parameters": parameters,
            "report": self.report,
        }

    def save(self, path: str | Path) -> None:
        """Write the file; `load_calibrator` reads it."""
        from sfumato._core.files import write_json  # it imports yaml, which a leaf must not

        write_json(Path(path), self.to_dict())


def load_calibrator(path: str | Path) -> Calibrator:
    """The calibrator in a JSON file, as `sfumato calibrate` writes it.

    Raises:
        ValueError: another format or version, or parameters that don't fit the method.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError(f"its format is {content['format']!r}, version {content['version']!r}")
        return _from_dict(content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} is no calibrator of version {VERSION}: {error}. Write it with "
            "`sfumato calibrate`."
        ) from None


def _from_dict(content: Mapping[str, Any]) -> Calibrator:
    method, classes = content["method"], int(content["classes"])
    if method not in _BUFFERS:
        raise ValueError(f"method must be one of {list(_BUFFERS)}, got {method!r}")
    scaler = None
    if method != "none":
        scaler = SCALERS[method]()
        parameters = content["parameters"]
        state = {
            buffer: torch.tensor(parameters[name], dtype=torch.float64)
            for name, buffer in _BUFFERS[method].items()
        }
        if not all(bool(value.isfinite().all()) and value.numel() for value in state.values()):
            raise ValueError("parameters must be finite numbers")
        scaler.load_state_dict(state)
    found = Calibrator(
        method,
        classes,
        scaler,
        None if content["uniform"] is None else float(content["uniform"]),
        float(content["smoothing"]),
        dict(content.get("report", {})),
    )
    found.calibrate_logits(torch.zeros(1, classes))  # parameters of another number of classes
    return found


def log_probabilities(probs: Tensor, uniform: float | None) -> Tensor:
    """log p, with a share of the uniform distribution; without one p counts as at least 1e-12."""
    if uniform is None:
        return probs.clamp(min=SMALLEST).log()
    return mixed_logarithm(probs, torch.tensor(uniform, dtype=probs.dtype))
