"""`sfumato.audit`: can these confidences be trusted, and from which one on can one act on them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._core.checks import check_open_share
from sfumato._core.files import write_text
from sfumato.engine.evaluation.audit import audit as audit_files
from sfumato.engine.evaluation.audit_thresholds import Target
from sfumato.engine.runs.prediction_arrays import predictions_of_arrays
from sfumato.report.audit_figure import audit_figure
from sfumato.report.audit_markdown import to_markdown
from sfumato.report.audit_page import audit_page, notebook_page
from sfumato.report.audit_sentences import sentences, warnings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def audit(
    labels: Any,
    *,
    probs: Any = None,
    logits: Any = None,
    confidence: Any = None,
    correct: Any = None,
    predicted: Any = None,
    classes: Sequence[str] | None = None,
    groups: Any = None,
    time: Any = None,
    images: Any = None,
    boxes: Any = None,
    name: str = "model",
    target_risk: float | None = None,
    delta: float = 0.05,
    resamples: int = 1000,
    seed: int = 0,
) -> Audit:
    """Judge predictions: over- or underconfident, where, how sure that is, and what to do.

    Give exactly one of `probs`, `logits` and `confidence`, as arrays of NumPy or PyTorch, series or
    frames of pandas, or lists.

    Args:
        labels: class numbers (N,), true and false for 1 and 0, or names of `classes`; None where
            `correct` is given.
        probs: probabilities (N, C); (N,) for the second of two classes; label maps (N, C, H, W).
        logits: raw scores (N, C) or (N, C, H, W).
        confidence: probability of the predicted class (N,), with `correct` or `predicted`.
        correct: whether each prediction was right (N,).
        predicted: the predicted class of each (N,), compared with `labels`.
        classes: names of the classes in the order of the scores, or of the class numbers.
        groups: a name for each prediction (N,); adds a table by group.
        time: number or date of each prediction (N,); adds calibration over time.
        images: name or number of the image of each detection (N,), with `confidence`: intervals and
            thresholds are then over images, since those of one are not independent.
        boxes: corners x1 y1 x2 y2 of each detection as shares of its image (N, 4): adds D-ECE.
        name: what the model is called.
        target_risk: error that accepted predictions may have; adds the threshold from which on it
            is kept, as `risk_threshold` finds it.
        delta: how often, over draws of the data, that promise may be broken.
        resamples: bootstrap resamples of the intervals; 0 leaves them out.
        seed: of the resamples.

    Raises:
        ValueError: for values that can't be audited, with the number of the row and the remedy.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> found = audit(torch.tensor([0, 0, 1, 1]), probs=probs)
        >>> round(found.metrics["accuracy"], 2), round(found.metrics["ece"], 2)
        (0.75, 0.35)
    """
    file = predictions_of_arrays(
        name,
        {
            "labels": labels,
            "probs": probs,
            "logits": logits,
            "confidence": confidence,
            "correct": correct,
            "predicted": predicted,
            "groups": groups,
            "time": time,
            "images": images,
            "boxes": boxes,
        },
        classes=classes,
    )
    check_open_share("delta", delta)
    target = None
    if target_risk is not None:
        check_open_share("target_risk", target_risk)
        target = Target(target_risk, delta)
    return Audit(audit_files([file], resamples=resamples, seed=seed, target=target))


class Audit:
    """What an audit found. In a notebook it shows itself.

    Args:
        found: plain data, as `to_dict` gives it.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = dict(found)

    @property
    def metrics(self) -> dict[str, float]:
        """Accuracy, calibration, likelihood and selective classification, as far as known."""
        found = self._model["metrics"]
        return {key: value for key, value in found.items() if not key.endswith("_interval")}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % interval of each metric."""
        found = self._model["metrics"]
        ends = "_interval"
        return {key[: -len(ends)]: tuple(found[key]) for key in found if key.endswith(ends)}

    @property
    def verdict(self) -> str:
        """In a word: "overconfident", "underconfident", "no miscalibration found" ..."""
        return str(self._model["verdict"])

    def summary(self) -> str:
        """The verdict in sentences, and what speaks against it."""
        return "\n".join([*sentences(self._found), *warnings_of(self._found)])

    def figure(self) -> Figure:
        """Reliability diagram with bars of uncertainty, and the risk-coverage curve; matplotlib."""
        return audit_figure(self._model)

    def to_html(self, path: str | Path) -> Path:
        """Write the page as one file that opens from disk; its path."""
        page = Path(path)
        write_text(page, audit_page(self._found))
        return page

    def to_markdown(self) -> str:
        """A block for a model card."""
        return to_markdown(self._found)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return self._found

    def __repr__(self) -> str:
        return f"<Audit of {self._model['samples']:,} predictions: {self.verdict}>"

    def _repr_html_(self) -> str:
        return notebook_page(self._found)

    @property
    def _model(self) -> Mapping[str, Any]:
        model: Mapping[str, Any] = self._found["models"][0]
        return model
