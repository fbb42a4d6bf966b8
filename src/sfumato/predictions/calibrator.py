"""`Calibrator`: a fitted scaler as a JSON file, and the choice among all scalers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import (
    check_choice,
    check_integer,
    check_logit_values,
    check_number,
    check_open_share,
    given_scores,
    like_input,
    to_labels,
    to_outcomes,
    to_scores,
    to_tensor,
)
from sfumato._core.files import MOST_JSON, read_text
from sfumato._core.seeds import fold_seed
from sfumato._core.statistics import row_weights
from sfumato.predictions.classwise import (
    PLACE_FEATURES,
    BetaScaler,
    HistogramScaler,
    IsotonicScaler,
    LogisticScaler,
    VennAbersScaler,
    fit_place,
    with_place,
)
from sfumato.predictions.scalers import (
    HIGHEST,
    LOWEST,
    SMALLEST,
    Scaler,
    SplineScaler,
    StructuredMatrixScaler,
    TemperatureScaler,
    UniformMixture,
    VectorScaler,
    check_logits,
    check_probabilities,
    ece_of_confidences,
    fit_quietly,
    mixed_logarithm,
)

FORMAT, VERSION = "sfumato calibrator", 1

SCALERS: dict[str, Callable[[], Scaler]] = {  # from few parameters to many
    "temperature": TemperatureScaler,
    "logistic": LogisticScaler,
    "beta": BetaScaler,
    "spline": SplineScaler,
    "logistic_spline": partial(LogisticScaler, pieces=6),
    "vector": VectorScaler,
    "histogram": HistogramScaler,
    "isotonic": IsotonicScaler,
    "venn_abers": VennAbersScaler,
    "matrix": StructuredMatrixScaler,
}
# Tried where nobody says which.
METHODS = ("temperature", "spline", "vector", "isotonic", "matrix")
CONFIDENCE_METHODS = ("logistic", "beta", "logistic_spline", "isotonic")
BY_PLACE = "logistic_by_place"  # a logistic map of confidence, position and size of a box

_HIGHEST_PARAMETER = 1e30  # of a file: products with it stay finite, in single precision too


@dataclass
class Calibrator:
    """Probabilities or logits in, calibrated probabilities out.

    The scaler works on log p, of logits the log softmax, of probabilities
    log((1 - uniform) p + uniform / C). Softmax follows, and `smoothing`.

    Args:
        method: "none" or a key of `SCALERS`.
        classes: number of classes C.
        scaler: the fitted scaler; None for "none".
        uniform: share of the uniform distribution before the logarithm; None where no probability
            was 0.
        smoothing: share of the uniform distribution in the result.
        report: how it was chosen, plain data.
        of: "classes", or "confidence" where only the confidence of the predicted class is known:
            the classes are then wrong and right.
        place: eight numbers of `fit_place`, which position and size of a box add to the log odds.
    """

    method: str
    classes: int
    scaler: Scaler | None = None
    uniform: float | None = None
    smoothing: float = 0.0
    report: dict[str, Any] = field(default_factory=dict, repr=False)
    of: Literal["classes", "confidence"] = "classes"
    place: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("none", *SCALERS))
        check_integer("classes", self.classes, low=2, high=10**9)
        if self.uniform is not None:
            check_open_share("uniform", self.uniform)
        check_number("smoothing", self.smoothing, low=0.0)
        if self.smoothing >= 1:
            raise ValueError(f"smoothing must be in [0, 1), got {self.smoothing!r}")
        check_choice("of", self.of, ("classes", "confidence"))
        if self.of == "confidence" and self.classes != 2:
            raise ValueError(f"classes of a confidence must be 2, got {self.classes}")
        if self.place is not None:
            if self.of != "confidence" or len(self.place) != len(PLACE_FEATURES):
                raise ValueError(f"place must be {len(PLACE_FEATURES)} numbers, of confidences")
            for each in self.place:
                check_number("place", each, low=-_HIGHEST_PARAMETER, high=_HIGHEST_PARAMETER)

    def predict_proba(
        self,
        probs: Any = None,
        *,
        logits: Any = None,
        confidence: Any = None,
        boxes: Any = None,
        any_logits: bool = False,
    ) -> Any:
        """Calibrate logits or probabilities, (N, C), or confidences, (N,), array for array.

        Args:
            probs, logits: probabilities or raw scores of the classes.
            confidence: probabilities of the predicted classes, where the calibrator is of those.
            boxes: corners x1 y1 x2 y2 as shares of the image, (N, 4), for a calibrator with them.
            any_logits: accept logits that look like probabilities.
        """
        if (self.of == "confidence") != (confidence is not None):
            wanted = "confidence=" if self.of == "confidence" else "probs= or logits="
            raise ValueError(f"the calibrator was fitted on {self.of}: give {wanted}")
        if (boxes is None) != (self.place is None):
            what = "does not read boxes: leave them" if self.place is None else "reads boxes: give"
            raise ValueError(f"the calibrator {what} {'out' if self.place is None else 'them'}")
        if confidence is not None:
            return like_input(self._of_confidence(confidence, boxes), confidence)
        name, given = given_scores(logits, probs)
        rows = _checked_rows(name, given, any_logits)
        if rows.ndim != 2 or rows.shape[1] != self.classes:
            raise ValueError(f"{name} must be (N, {self.classes}), got {tuple(rows.shape)}")
        if name == "logits":
            return like_input(self._apply(rows.log_softmax(1)), given)
        if self.method == "none":
            return like_input(rows, given)
        return like_input(self._apply(log_probabilities(rows, self.uniform)), given)

    def _of_confidence(self, confidence: Any, boxes: Any) -> Tensor:
        scores = to_scores("confidence", confidence)
        if self.method == "none":
            return scores
        log_probs = log_probabilities(wrong_and_right(scores), self.uniform)
        if self.place is not None:
            log_probs = with_place(log_probs, to_boxes(boxes, len(scores)), self.place)
        return self._apply(log_probs)[:, 1]

    def _apply(self, log_probs: Tensor) -> Tensor:
        if self.scaler is not None:
            log_probs = self.scaler(log_probs)
        probs = log_probs.softmax(1)
        return (1 - self.smoothing) * probs + self.smoothing / self.classes

    def to_dict(self) -> dict[str, Any]:
        """The content of the file."""
        parameters = {} if self.scaler is None else _buffers(self.scaler)
        return {
            "format": FORMAT,
            "version": VERSION,
            "method": self.method,
            "classes": self.classes,
            "uniform": self.uniform,
            "smoothing": self.smoothing,
            "parameters": {name: each.tolist() for name, each in parameters.items()},
            **({"of": self.of, "place": self.place} if self.of == "confidence" else {}),
            "report": self.report,
        }

    def save(self, path: str | Path) -> None:
        """Write the file; `load_calibrator` reads it."""
        from sfumato._core.files import write_json  # it imports yaml, which a leaf must not

        write_json(Path(path), self.to_dict())


def _buffers(scaler: Scaler) -> dict[str, Tensor]:
    """The fitted numbers by their names in the file."""
    return {name.lstrip("_"): each for name, each in scaler.named_buffers(recurse=False)}


def load_calibrator(path: str | Path) -> Calibrator:
    """Read a calibrator from a JSON file, as `sfumato calibrate` writes it.

    The file may come from a stranger: every field is checked.
    """
    try:
        content = json.loads(read_text(Path(path), most=MOST_JSON))
        return _from_dict(content)
    except (TypeError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise ValueError(
            f"{path} is no calibrator of version {VERSION}: {reason}. Write it with "
            "`sfumato calibrate`."
        ) from None


def _from_dict(content: Any) -> Calibrator:
    fields = _mapping("the content", content)
    for name, known in (("format", FORMAT), ("version", VERSION)):
        value = _field(fields, name)
        if type(value) is not type(known) or value != known:
            raise ValueError(f"{name} must be {known!r}, got {_short(value)}")
    method = _field(fields, "method")
    if not isinstance(method, str):
        raise ValueError(f"method must be a name, got {_short(method)}")
    found = Calibrator(
        method,
        _field(fields, "classes"),
        None,
        _field(fields, "uniform"),
        _field(fields, "smoothing"),
        dict(_mapping("report", fields.get("report", {}))),
        fields.get("of", "classes"),
        None if fields.get("place") is None else _array("place", fields["place"]).tolist(),
    )
    parameters = _mapping("parameters", _field(fields, "parameters"))
    scaler = None if method == "none" else SCALERS[method]()
    buffers = {} if scaler is None else _buffers(scaler)
    if set(parameters) != set(buffers):
        raise ValueError(
            f"parameters of {method} must be {list(buffers)}, got {_short(list(parameters))}"
        )
    if scaler is not None:
        values = {name: _array(name, value) for name, value in parameters.items()}
        _check_parameters(method, values, found.classes)
        names = [name for name, _ in scaler.named_buffers(recurse=False)]
        scaler.load_state_dict({name: values[name.lstrip("_")] for name in names})
        found.scaler = scaler
    return found


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"{name} is missing")
    return fields[name]


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {_short(value)}")
    return value


def _array(name: str, value: Any) -> Tensor:
    """Numbers of a parameter in float64, none beyond 1e30: results stay finite."""
    # Two levels are all that any parameter has; deeper lists fail as "no number".
    flat = [value]
    for _ in range(2):
        flat = [each for part in flat for each in (part if isinstance(part, list) else [part])]
    for each in flat:
        if isinstance(each, bool) or not isinstance(each, int | float):
            raise ValueError(f"{name} must hold numbers, got {_short(each)}")
        if not -_HIGHEST_PARAMETER <= each <= _HIGHEST_PARAMETER:
            raise ValueError(f"{name} must hold finite numbers up to 1e30, got {_short(each)}")
    try:
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError):
        raise ValueError(f"{name} must have rows of one length, got {_short(value)}") from None


class _Form(NamedTuple):
    """Shape and range of an array of a file; C are the classes, K the points of a curve."""

    name: str
    shape: tuple[int | str, ...]
    low: float = -math.inf
    high: float = math.inf
    never_falls: bool = False


def _curve(name: str, points: str = "K") -> _Form:
    return _Form(name, ("C", points), 0.0, 1.0, never_falls=True)


# The last axis of the first one says what K is.
_LOGISTIC = (
    _Form("slopes", ("C", "K"), low=0.0),
    _Form("knots", ("C", "K-1"), never_falls=True),
    _Form("bias", ("C", 1)),
)
_FORMS: dict[str, tuple[_Form, ...]] = {
    "temperature": (_Form("temperature", (), LOWEST, HIGHEST),),
    "spline": (_Form("knots", ("K",), never_falls=True), _Form("slopes", ("K",))),
    "vector": (_Form("scale", ("C",)), _Form("bias", ("C",))),
    "logistic": _LOGISTIC,
    "logistic_spline": _LOGISTIC,
    "beta": (_Form("coefficients", ("C", 3)),),
    "histogram": (_Form("found", ("C", "K"), 0.0, 1.0), _curve("edges", "K-1")),
    "isotonic": (_curve("stated"), _curve("found")),
    "venn_abers": (_curve("scores"), _curve("lower", "K+1"), _curve("upper", "K+1")),
    "matrix": (
        _Form("temperature", (1,), LOWEST, HIGHEST),
        _Form("weight", ("C", "C")),
        _Form("bias", ("C",)),
    ),
}


def _check_parameters(method: str, found: dict[str, Tensor], classes: int) -> None:
    """Raise unless the parameters of a method have their shapes, ranges and relations."""
    points = max(*found[_FORMS[method][0].name].shape[-1:], 1, 1)
    sizes = {"C": classes, "K": points, "K-1": points - 1, "K+1": points + 1}
    for form in _FORMS[method]:
        name, value = form.name, found[form.name]
        shape = tuple(each if isinstance(each, int) else sizes[each] for each in form.shape)
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} must have the shape {shape}, got {tuple(value.shape)}")
        _check_range(name, value, form.low, form.high)
        if form.never_falls and not bool((value.diff() >= 0).all()):
            raise ValueError(f"{name} must not fall along a row")
    if method == "beta":
        _check_range("coefficients", found["coefficients"][:, :2], 0.0, math.inf)
    elif method == "venn_abers" and not bool((found["lower"] <= found["upper"]).all()):
        raise ValueError("lower must not be above upper")
    elif method == "spline":
        knots, slopes = found["knots"], found["slopes"]
        if float(knots[0]) != 0 or not bool((knots.diff() > 0).all()):
            raise ValueError(f"knots must rise from 0, got {_short(knots.tolist())}")
        if not bool((slopes > 0).all()):
            raise ValueError(f"slopes must be positive, got {float(slopes.min()):g}")


def _check_range(name: str, value: Tensor, low: float, high: float) -> None:
    if value.numel() and not bool(((value >= low) & (value <= high)).all()):
        worst = value.min() if float(value.min()) < low else value.max()
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {float(worst):g}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _checked_rows(name: str, given: Any, any_logits: bool) -> Tensor:
    rows = to_tensor(name, given)
    if name == "logits" and not any_logits:
        check_logit_values("logits", rows)
    rows = rows.double()
    (check_logits if name == "logits" else check_probabilities)(rows)
    return rows


def log_probabilities(probs: Tensor, uniform: float | None) -> Tensor:
    """log p, with a share of the uniform distribution; without one p counts as at least 1e-12."""
    if uniform is None:
        return probs.clamp(min=SMALLEST).log()
    return mixed_logarithm(probs, torch.tensor(uniform, dtype=probs.dtype))


def wrong_and_right(confidence: Tensor) -> Tensor:
    """The probabilities that a prediction is wrong and that it is right, (N, 2)."""
    return torch.stack([1 - confidence, confidence], 1)


def to_boxes(boxes: Any, count: int) -> Tensor:
    """Corners of `count` boxes as shares of their image, (N, 4) float64."""
    corners = to_tensor("boxes", boxes).double()
    inside = (corners >= -1e-6) & (corners <= 1 + 1e-6)  # but for roundings
    if tuple(corners.shape) != (count, 4) or not bool(inside.all()):
        raise ValueError(
            f"boxes must be ({count}, 4), corners x1 y1 x2 y2 as shares of the image in [0, 1]; "
            f"got {tuple(corners.shape)}: divide pixels by its width and height"
        )
    return corners.clamp(0, 1)


MOST_CLASSES = 200  # of a matrix, whose fit takes time and memory with their square
LEAST_SAMPLES = 20
_BINS = 15


class Held(NamedTuple):
    """Held-out predictions: probabilities where these were given, else log probabilities."""

    values: Tensor  # (N, C)
    labels: Tensor  # (N,)
    are_probs: bool
    weight: Tensor | None = None  # (N,)
    of: Literal["classes", "confidence"] = "classes"
    boxes: Tensor | None = None  # (N, 4), of detections

    def take(self, places: Tensor) -> Held:
        weight, boxes = (
            None if each is None else each[places] for each in (self.weight, self.boxes)
        )
        return self._replace(
            values=self.values[places], labels=self.labels[places], weight=weight, boxes=boxes
        )

    @property
    def size(self) -> float:
        """Number of samples, each as often as its weight says."""
        return len(self.labels) if self.weight is None else float(self.weight.sum())

    def mean(self, values: Tensor) -> float:
        """The mean of one number for each sample."""
        weight = self.weight
        return float(values.mean() if weight is None else values @ weight / weight.sum())


def choose_calibrator(
    probs: Any = None,
    target: Any = None,
    *,
    logits: Any = None,
    confidence: Any = None,
    correct: Any = None,
    boxes: Any = None,
    methods: Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
    any_logits: bool = False,
    sample_weight: Any = None,
) -> Calibrator:
    """Fit every method by cross-validation and return the one to use, fitted on everything.

    The best has the least negative log-likelihood on the folds that it was not fitted on. A simpler
    one (in the order of `methods`) is taken where the best is not better by more than one standard
    error of the paired difference. "none" is always a candidate, so the likelihood of the held-out
    data never becomes worse.

    Args:
        probs, logits: probabilities or raw scores, (N, C); give one of the two, or `confidence`.
        target: class indices, (N,).
        confidence: probability of the predicted class, (N,), where nothing else is known; the
            calibrator then maps confidences.
        correct: whether each of those predictions was right, (N,).
        boxes: corners x1 y1 x2 y2 of detections as shares of their image, (N, 4), with their
            confidences: adds "logistic_by_place", which reads confidence, position and size.
        methods: which to try, of "temperature", "logistic", "beta", "spline", "logistic_spline",
            "vector", "histogram", "isotonic", "venn_abers", "matrix". None tries temperature,
            spline, vector, isotonic and matrix; of confidences logistic, beta, logistic_spline and
            isotonic.
        folds, seed: number of folds of the cross-validation, and their seed.
        any_logits: accept logits that look like probabilities.
        sample_weight: how often each sample counts, (N,).

    Returns:
        The `Calibrator`, whose `report` has `table` (method, nll, ece, difference and its standard
        error), `chosen`, `reason`, `skipped`, `samples`, `zero_labels` and `warnings`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> true = 2 * torch.randn(2000, 3, generator=generator)
        >>> target = torch.multinomial(true.softmax(1), 1, generator=generator).squeeze(1)
        >>> choose_calibrator(logits=3 * true, target=target).method
        'temperature'
    """
    check_integer("folds", folds, low=2)
    if confidence is None:
        if correct is not None or boxes is not None:
            raise ValueError("correct and boxes go with confidence=: give it, or leave them out")
        held = _held(target, probs, logits, any_logits)
    else:
        if target is not None or probs is not None or logits is not None:
            raise ValueError("confidence= goes with correct=, without target, probs and logits")
        held = _held_confidence(confidence, correct, boxes)
    held = _weighed(held, sample_weight)
    tried, skipped = _possible(methods, held)
    losses, confidences = _cross_validate(held, tried, folds, seed)
    table = {name: _row(losses, name, confidences[name], held) for name in losses}
    # Chosen by cross-validation, then fitted on everything: no sample is left unused.
    chosen, reason = _choose(table)
    found, messages = _fit_harmless(chosen, held, _prepare(held))
    if found.method == "none" != chosen:
        chosen, reason = "none", f"{chosen} fits these predictions worse than doing nothing"
    found.report = {
        "chosen": chosen,
        "reason": reason,
        "samples": len(held.labels),
        "folds": folds,
        "table": table,
        "skipped": skipped,
        "zero_labels": int((_own(held.values, held.labels) == 0).sum()) if held.are_probs else 0,
        "warnings": messages,
    }
    return found


def _held_confidence(confidence: Any, correct: Any, boxes: Any) -> Held:
    """Wrong and right as two classes, of which the second has the confidence."""
    if correct is None:
        raise ValueError("correct must be given with confidence, got None")
    scores = to_scores("confidence", confidence)
    labels = to_outcomes("correct", correct, len(scores)).to(scores.device).long()
    corners = None if boxes is None else to_boxes(boxes, len(scores)).to(scores.device)
    return Held(wrong_and_right(scores), labels, True, None, "confidence", corners)


def _held(target: Any, probs: Any, logits: Any, any_logits: bool) -> Held:
    name, given = given_scores(logits, probs)
    values = _checked_rows(name, given, any_logits)
    if values.ndim != 2 or values.shape[1] < 2:
        raise ValueError(f"{name} must be (N, C) with C >= 2, got {tuple(values.shape)}")
    if not bool(values.isfinite().all()):
        raise ValueError(f"{name} must be finite")
    labels = to_labels("target", target, *values.shape).to(values.device)
    return Held(values if logits is None else values.log_softmax(1), labels, logits is None)


def _weighed(held: Held, sample_weight: Any) -> Held:
    """The samples that count, of which there must be enough."""
    if len(held.labels) < LEAST_SAMPLES:
        got = len(held.labels)
        raise ValueError(f"at least {LEAST_SAMPLES} samples are needed to choose, got {got}")
    weight = row_weights(sample_weight, held.labels, -1)
    return held if weight is None else held._replace(weight=weight).take(weight > 0)


def _possible(methods: Sequence[str] | None, held: Held) -> tuple[list[str], dict[str, str]]:
    """The methods to try, from simple to rich, and why others are not."""
    known = [*SCALERS, BY_PLACE]
    if methods is None:
        methods = METHODS if held.of == "classes" else (*CONFIDENCE_METHODS, BY_PLACE)
        methods = [name for name in methods if name != BY_PLACE or held.boxes is not None]
    for method in methods:
        check_choice("methods", method, known)
    if BY_PLACE in methods and held.boxes is None:
        raise ValueError(f"methods: {BY_PLACE!r} reads the boxes of detections: give boxes=")
    skipped = {}
    if held.values.shape[1] > MOST_CLASSES and "matrix" in methods:
        skipped["matrix"] = f"more than {MOST_CLASSES} classes"
    if "isotonic" in methods:
        try:
            import sklearn.isotonic  # noqa: F401
        except ImportError:
            skipped["isotonic"] = "scikit-learn is not installed"
    return [name for name in known if name in methods and name not in skipped], skipped


class Prepared(NamedTuple):
    """Log probabilities that every method fits, and the share of the uniform one in them."""

    log_probs: Tensor
    uniform: float | None
    messages: list[str]


def _prepare(held: Held) -> Prepared:
    if not held.are_probs:
        return Prepared(held.values, None, [])
    if bool((held.values > 0).all()):
        return Prepared(log_probabilities(held.values, None), None, [])
    mixture = UniformMixture(free_temperature=True)
    messages = fit_quietly(lambda: mixture.fit(held.values, held.labels, sample_weight=held.weight))
    uniform = mixture.amount
    return Prepared(log_probabilities(held.values, uniform), uniform, messages)


def _fit(method: str, held: Held, prepared: Prepared) -> tuple[Calibrator, list[str]]:
    """The calibrator of a method, and what the fit warned of."""
    classes = held.values.shape[1]
    if method == "none":
        return Calibrator(method, classes, of=held.of), prepared.messages
    log_probs, place = prepared.log_probs, None
    if method == BY_PLACE and held.boxes is not None:
        place = fit_place(log_probs, held.labels == 1, held.boxes, held.weight).tolist()
        log_probs, method = with_place(log_probs, held.boxes, place), "logistic"
    scaler = SCALERS[method]()
    messages = fit_quietly(
        lambda: scaler.fit(logits=log_probs, target=held.labels, sample_weight=held.weight)
    )
    # Their curves end at 0: what was never seen would be ruled out.
    smoothing = 1 / (held.size + 1) if method in ("isotonic", "histogram") else 0.0
    found = Calibrator(
        method, classes, scaler, prepared.uniform, smoothing, of=held.of, place=place
    )
    return found, prepared.messages + messages


def _fit_harmless(method: str, held: Held, prepared: Prepared) -> tuple[Calibrator, list[str]]:
    """The method fitted on everything, or nothing where that is better."""
    found, messages = _fit(method, held, prepared)
    without = Calibrator("none", found.classes, of=held.of)
    # "not <=", because a fit that ended in NaN is to be refused too.
    if not held.mean(_losses(found, held)) <= held.mean(_losses(without, held)):
        return without, messages
    return found, messages


def _log_probabilities(calibrator: Calibrator, held: Held) -> Tensor:
    """Calibrated log probabilities, (N, C); finite also where the probabilities are below 1e-308.

    Minus infinity only where a given probability is 0 and nothing is mixed in.
    """
    if calibrator.scaler is None:
        return held.values.log() if held.are_probs else held.values
    values = held.values
    if held.are_probs:
        values = log_probabilities(values, calibrator.uniform)
    if calibrator.place is not None and held.boxes is not None:
        values = with_place(values, held.boxes, calibrator.place)
    found: Tensor = calibrator.scaler(values).log_softmax(1)
    if not calibrator.smoothing:
        return found
    share = math.log(calibrator.smoothing / calibrator.classes)
    return torch.logaddexp(found + math.log1p(-calibrator.smoothing), found.new_tensor(share))


def _losses(calibrator: Calibrator, held: Held) -> Tensor:
    return -_own(_log_probabilities(calibrator, held), held.labels)


def _own(values: Tensor, labels: Tensor) -> Tensor:
    """Take the value that each row has for its label, (N,)."""
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def _cross_validate(
    held: Held, methods: Sequence[str], folds: int, seed: int
) -> tuple[dict[str, Tensor], dict[str, tuple[Tensor, Tensor]]]:
    """Loss, and confidence with correctness, of each sample by a fit without it."""
    generator = torch.Generator().manual_seed(fold_seed(seed, "calibrator folds"))
    part = (torch.randperm(len(held.labels), generator=generator) % folds).to(held.labels.device)
    names = ["none", *methods]
    losses = {name: held.values.new_zeros(len(part)) for name in names}
    sure = {
        name: (torch.zeros_like(losses[name]), torch.zeros_like(losses[name])) for name in names
    }
    for fold in range(folds):
        outside, inside = held.take(part != fold), held.take(part == fold)
        prepared = _prepare(outside)
        for name in names:
            found, _ = _fit(name, outside, prepared)
            log_probs = _log_probabilities(found, inside)
            losses[name][part == fold] = -_own(log_probs, inside.labels)
            # Of a confidence the prediction is fixed: it is how often that is right.
            predicted = log_probs.argmax(1)
            predicted = predicted if held.of == "classes" else torch.ones_like(predicted)
            sure[name][0][part == fold] = _own(log_probs, predicted).exp()
            sure[name][1][part == fold] = (predicted == inside.labels).double()
    return losses, sure


def _row(
    losses: dict[str, Tensor], name: str, sure: tuple[Tensor, Tensor], held: Held
) -> dict[str, float]:
    """nll and ece of a method, and how far it is from the best, paired."""
    best = min(losses, key=lambda each: held.mean(losses[each]))
    difference = losses[name] - losses[best]
    return {
        "nll": held.mean(losses[name]),
        "ece": float(ece_of_confidences(*sure, _BINS, held.weight)),
        "above_best": held.mean(difference),
        "standard_error": _standard_error(difference, held.weight),
    }


def _standard_error(values: Tensor, weight: Tensor | None) -> float:
    """The standard error of a mean; with weights that of the weighted one (as of a ratio)."""
    if weight is None:
        return float(values.std()) / math.sqrt(len(values))
    share = weight / weight.sum()
    return math.sqrt(float((share * (values - values @ share)).square().sum()))


def _choose(table: dict[str, dict[str, float]]) -> tuple[str, str]:
    best = min(table, key=lambda name: table[name]["nll"])
    near = [
        name
        for name, row in table.items()
        if name == best or row["above_best"] <= row["standard_error"]
    ]
    chosen = near[0]  # the table goes from simple to rich
    value = f"NLL {table[chosen]['nll']:.4f} in cross-validation"
    without = f"{table['none']['nll']:.4f} without"
    if chosen == "none":
        return chosen, f"no method is significantly better than doing nothing ({value})"
    if chosen == best:
        return chosen, f"least {value}, {without}"
    return chosen, (
        f"{value}, {without}; {best} with {table[best]['nll']:.4f} is not better by more than a "
        "standard error, and has more to go wrong"
    )
