"""`sfumato.audit`: can these confidences be trusted, and from which one on can one act on them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from sfumato._core.checks import check_open_share
from sfumato._core.files import write_text
from sfumato._core.text import Bar
from sfumato.auditing.calibrate import calibrate_predictions
from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import (
    AnyPredictions,
    Reading,
    calibrated,
    predictions_of_arrays,
    predictions_of_frame,
)
from sfumato.auditing.judge import Target, audit as audit_files
from sfumato.auditing.page import (
    audit_figure,
    audit_page,
    notebook_page,
    sentences,
    to_markdown,
    warnings_of,
)
from sfumato.auditing.totals import Model
from sfumato.auditing.workers import find_sources, plan_reading, read_source
from sfumato.predictions import Calibrator, RiskThreshold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sfumato.auditing.judge import Found, Judgement


def audit(
    source: Any = None,
    *,
    target: Any = None,
    label: str | Path | None = None,
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
    in_distribution: Any = None,
    calibrator: Calibrator | None = None,
    name: str = "model",
    target_risk: float | None = None,
    delta: float = 0.05,
    resamples: int = 1000,
    seed: int = 0,
    any_logits: bool = False,
) -> Audit:
    """Judge predictions: over- or underconfident, where, how sure that is, and what to do.

    Give a source, or exactly one of `probs`, `logits` and `confidence`, as arrays of NumPy or
    PyTorch, series or frames of pandas, or lists.

    Args:
        source: a file, a folder of files or a pattern, as `sfumato audit` reads them; or a frame of
            pandas, Polars or pyarrow, or a mapping of names to columns. Columns are found by their
            usual names; else `label`, `probs` (one name, or one for each class), `logits`,
            `confidence`, `correct`, `predicted`, `groups`, `time`, `images`, `boxes` and
            `in_distribution` name them.
        label: the column of the labels in `source`; for an .npy or .pt of scores their file.
        target: class numbers (N,), true and false for 1 and 0, or names of `classes`; None where
            `correct` is given.
        probs: probabilities (N, C); (N,) for the second of two classes; dense ones (N, C, H, W).
        logits: raw scores (N, C) or (N, C, H, W).
        confidence: probability of the predicted class (N,), with `correct` or `predicted`.
        correct: whether each prediction was right (N,).
        predicted: the predicted class of each (N,), compared with `target`.
        classes: names of the classes in the order of the scores, or of the class numbers.
        groups: a name for each prediction (N,); adds a table by group.
        time: number or date of each prediction (N,); adds calibration over time.
        images: name or number of the image of each detection (N,), with `confidence`: intervals and
            thresholds are then over images, since those of one are not independent.
        boxes: corners x1 y1 x2 y2 of each detection as shares of its image (N, 4): adds D-ECE.
        in_distribution: false for inputs that are of none of the classes (N,): they are measured as
            strange inputs, and count for nothing else; their labels are not read.
        calibrator: shows the predictions as they are and as it makes them, compared on one page.
        name: what the model is called.
        target_risk: error that accepted predictions may have; adds the threshold from which on it
            is kept, as `risk_threshold` finds it.
        delta: how often, over draws of the data, that guarantee may fail.
        resamples: bootstrap resamples of the intervals; 0 leaves them out.
        seed: of the resamples.
        any_logits: accept logits that look like probabilities (rows that are not negative and sum
            to 1), which are refused otherwise.

    Raises:
        ValueError: for values that can't be audited, with the number of the row and the remedy.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
        >>> found = audit(probs=probs, target=torch.tensor([0, 0, 1, 1]))
        >>> round(found.metrics["accuracy"], 2), round(found.metrics["ece"], 2)
        (0.75, 0.35)
    """
    given = {
        "target": target,
        "probs": probs,
        "logits": logits,
        "confidence": confidence,
        "correct": correct,
        "predicted": predicted,
        "groups": groups,
        "time": time,
        "images": images,
        "boxes": boxes,
        "in_distribution": in_distribution,
    }
    check_open_share("delta", delta)
    if target_risk is not None:
        check_open_share("target_risk", target_risk)
    wanted = None if target_risk is None else Target(target_risk, delta)
    if source is not None:
        options = {"classes": None if classes is None else tuple(classes), "any_logits": any_logits}
        files = _of_source(source, given | {"label": label}, options, calibrator)
    elif label is not None:
        raise ValueError("label names a column of source: give labels themselves as target=")
    else:
        file = predictions_of_arrays(name, given, classes=classes, any_logits=any_logits)
        files = [file] if calibrator is None else [file, calibrated(file, calibrator)]
    found = audit_files(files, resamples=resamples, seed=seed, target=wanted)
    for model in found["models"] if calibrator is not None else ():
        model["layout"] = {"--calibrator": "FILE"}
    return Audit(found, files[0], calibrator)


# Arguments that name a column of a source, and what the column then is.
_COLUMNS = {"groups": "group", "images": "image", "boxes": "box"}

# Options of the command in messages about files, and what a caller of `audit` has for them.
_OF_PYTHON = {
    "sfumato audit --unlabelled": "sfumato.predictions.expected_accuracy",
    " with --on-bad-row skip": "",
    "name the label of void pixels with --ignore-index": "leave images with void pixels out",
    "--kind logits": "logits=NAME",
    "(--kind probs)": "(probs=NAME)",
    "say --any-logits": "any_logits=True",
    "--labels": "label=",
    "--classes cat,dog": "classes=['cat', 'dog']",
    "--classes": "classes=",
}


def _of_source(
    source: Any, given: Mapping[str, Any], options: dict[str, Any], calibrator: Calibrator | None
) -> list[AnyPredictions | Model]:
    """Read what a path or a frame holds; a second time as a calibrator makes it."""
    if isinstance(source, Tensor | np.ndarray | list | tuple):
        raise TypeError(
            f"source must be a path or a frame, got {type(source).__name__}: give arrays by name, "
            "such as audit(probs=..., target=...)"
        )
    named = {key: value for key, value in given.items() if value is not None}
    if "target" in named:
        raise ValueError("with a source label= names the column of the labels: leave target out")
    try:
        return _read(source, named, options, calibrator)
    except PredictionFileError as error:
        text = str(error)
        for option, argument in _OF_PYTHON.items():
            text = text.replace(option, argument)
        raise PredictionFileError(text) from None


def _read(
    source: Any, named: dict[str, Any], options: dict[str, Any], calibrator: Calibrator | None
) -> list[AnyPredictions | Model]:
    is_path = isinstance(source, str | Path)
    suffix = Path(source).suffix.lower() if is_path and "label" in named else ""
    is_file = suffix in (".pt", ".pth") and Path(str(named["label"])).is_file()
    if suffix == ".npy" or is_file:
        options |= {"labels": Path(named.pop("label"))}
    told = {_COLUMNS.get(key, key): _names(key, value) for key, value in named.items()}
    reading = Reading(columns=told, **options)
    if not is_path:
        file = predictions_of_frame(source, reading)
        return [file] if calibrator is None else [file, calibrated(file, calibrator)]
    (found,) = find_sources([str(source)])
    (plan,) = plan_reading([found])
    readings = [reading, *([] if calibrator is None else [replace(reading, calibrator=calibrator)])]
    return [read_source(plan, each, bar=Bar()) for each in readings]


def _names(key: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
        raise TypeError(
            f"{key} must name a column of the source, or several, got {type(value).__name__}: "
            "arrays go without a source"
        )
    return tuple(names)


class Audit:
    """The result of an audit. In a notebook it shows itself.

    Args:
        found: plain data, as `to_dict` gives it.
        file: the predictions that were audited.
        calibrator: the one that was applied to them.
    """

    def __init__(
        self,
        found: Found,
        file: AnyPredictions | Model | None = None,
        calibrator: Calibrator | None = None,
    ) -> None:
        self._found, self._file, self._calibrator = found, file, calibrator

    @property
    def metrics(self) -> dict[str, float]:
        """Accuracy, calibration, likelihood and selective classification, as far as known."""
        found = self._model["metrics"]
        return {key: value for key, value in found.items() if not key.endswith("_interval")}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % interval of each metric."""
        found = self._model["metrics"]
        known = {key: found.get(f"{key}_interval") for key in self.metrics}
        return {key: tuple(ends) for key, ends in known.items() if ends is not None}

    @property
    def verdict(self) -> str:
        """Verdict in a word: "overconfident", "underconfident", "no miscalibration found" ..."""
        return str(self._model["verdict"])

    @property
    def threshold(self) -> RiskThreshold | None:
        """From which confidence on to accept, for `target_risk=`; None where none was asked for."""
        found = self._model.get("thresholds")
        if found is None:
            return None
        known = {each.name for each in fields(RiskThreshold)}
        accept = {key: value for key, value in found["accept"].items() if key in known}
        return RiskThreshold(**{"delta": found["delta"], **accept})

    @property
    def sets(self) -> dict[str, Any] | None:
        """Coverage and sizes of prediction sets; None without scores of all classes."""
        return self._model.get("sets")

    @property
    def strange(self) -> dict[str, Any] | None:
        """How well each score tells strange inputs; None without `in_distribution`."""
        return self._model.get("strange")

    @property
    def calibrator(self) -> Calibrator:
        """The calibrator that was applied, else the one to use, fitted on these predictions.

        What it does must be judged on others: audit those with `calibrator=`.
        """
        if self._calibrator is None:
            file = self._file
            rows = file.tallies.sample.rows(file.name) if isinstance(file, Model) else file
            if rows is None:
                raise PredictionFileError(
                    "the predictions are not in memory: use 'sfumato calibrate' on a file of them"
                )
            self._calibrator = calibrate_predictions(rows)
        return self._calibrator

    @property
    def calibrated(self) -> Audit | None:
        """The same audit after the calibrator that was given; None without one."""
        if len(self._found["models"]) < 2:
            return None
        return Audit({**self._found, "models": self._found["models"][1:], "comparisons": []})

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
        return dict(self._found)

    def __repr__(self) -> str:
        return f"<Audit of {self._model['samples']:,} predictions: {self.verdict}>"

    def _repr_html_(self) -> str:
        return notebook_page(self._found)

    @property
    def _model(self) -> Judgement:
        return self._found["models"][0]
