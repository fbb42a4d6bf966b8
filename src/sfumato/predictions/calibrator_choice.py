"""Which calibrator to use: every method by cross-validation, and never one that does harm."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfumato._core.arrays import to_labels, to_tensor
from sfumato._core.checks import check_choice, check_integer
from sfumato._core.seeds import fold_seed
from sfumato.predictions.calibrator import SCALERS, Calibrator, log_probabilities
from sfumato.predictions.held_out import check_logits, check_probabilities, ece_of_confidences
from sfumato.predictions.scaler import fit_quietly
from sfumato.predictions.uniform_mixture import UniformMixture

MOST_CLASSES = 200  # of a matrix, whose fit takes time and memory with their square
LEAST_SAMPLES = 20
_BINS = 15


class Held(NamedTuple):
    """Held-out predictions: probabilities where these were given, else log probabilities."""

    values: Tensor  # (N, C)
    labels: Tensor  # (N,)
    are_probs: bool

    def take(self, places: Tensor) -> Held:
        return Held(self.values[places], self.labels[places], self.are_probs)


def choose_calibrator(
    labels: Any,
    *,
    probs: Any = None,
    logits: Any = None,
    methods: Sequence[str] = tuple(SCALERS),
    folds: int = 5,
    seed: int = 0,
) -> Calibrator:
    """Fit every method by cross-validation and return the one to use, fitted on everything.

    The best is the one of least negative log-likelihood on the parts that it was not fitted on; a
    simpler one (in the order none, temperature, spline, vector, isotonic, matrix) is taken where
    the best is not better than it by more than one standard error of the paired difference. It is
    "none" where nothing is better than nothing, so the likelihood of the held-out data never
    becomes worse.

    Args:
        labels: class indices, (N,).
        probs: probabilities, (N, C); give either these or `logits`.
        logits: raw scores, (N, C).
        methods: which to try, of "temperature", "spline", "vector", "isotonic", "matrix".
        folds: parts of the cross-validation.
        seed: of the parts.

    Returns:
        The `Calibrator`, whose `report` has `table` (method, nll, ece, difference and its standard
        error), `chosen`, `reason`, `skipped`, `samples`, `zero_labels` and `warnings`.

    Raises:
        ValueError: fewer than 20 samples, or values that are neither.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> true = 2 * torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial(true.softmax(1), 1, generator=generator).squeeze(1)
        >>> choose_calibrator(labels, logits=3 * true).method
        'temperature'
    """
    check_integer("folds", folds, low=2)
    for method in methods:
        check_choice("methods", method, SCALERS)
    held = _held(labels, probs, logits)
    tried, skipped = _possible(methods, held.values.shape[1])
    losses, confidences = _cross_validate(held, tried, folds, seed)
    table = {name: _row(losses, name, confidences[name], held.labels) for name in losses}
    chosen, reason = _choose(table)
    found, messages = _fit_harmless(chosen, held, _prepare(held))
    if found.method != chosen:
        reason = f"{chosen} fits these predictions worse than doing nothing"
    found.report = {
        "chosen": found.method,
        "reason": reason,
        "samples": len(held.labels),
        "folds": folds,
        "table": table,
        "skipped": skipped,
        "zero_labels": _zero_labels(held),
        "warnings": messages,
    }
    return found


def _held(labels: Any, probs: Any, logits: Any) -> Held:
    if (probs is None) == (logits is None):
        raise ValueError("give either probs or logits")
    name, given = ("probs", probs) if logits is None else ("logits", logits)
    values = to_tensor(name, given).double()
    if values.ndim != 2 or values.shape[1] < 2:
        raise ValueError(f"{name} must be (N, C) with C >= 2, got {tuple(values.shape)}")
    (check_probabilities if logits is None else check_logits)(values)
    if not bool(values.isfinite().all()):
        raise ValueError(f"{name} must be finite")
    if len(values) < LEAST_SAMPLES:
        raise ValueError(
            f"at least {LEAST_SAMPLES} samples are needed to choose, got {len(values)}"
        )
    target = to_labels("labels", labels, *values.shape).to(values.device)
    return Held(values if logits is None else values.log_softmax(1), target, logits is None)


def _possible(methods: Sequence[str], classes: int) -> tuple[list[str], dict[str, str]]:
    skipped = {}
    if classes > MOST_CLASSES and "matrix" in methods:
        skipped["matrix"] = f"more than {MOST_CLASSES} classes"
    if "isotonic" in methods:
        try:
            import sklearn.isotonic  # noqa: F401
        except ImportError:
            skipped["isotonic"] = "scikit-learn is not installed"
    tried = [name for name in SCALERS if name in methods and name not in skipped]
    return tried, skipped


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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        uniform = UniformMixture(free_temperature=True).fit(held.values, held.labels).amount
    messages = [str(each.message) for each in caught]
    return Prepared(log_probabilities(held.values, uniform), uniform, messages)


def _fit(method: str, held: Held, prepared: Prepared) -> tuple[Calibrator, list[str]]:
    """The calibrator of a method, and what the fit warned of."""
    classes = held.values.shape[1]
    if method == "none":
        return Calibrator("none", classes), prepared.messages
    scaler = SCALERS[method]()
    messages = prepared.messages + fit_quietly(scaler, prepared.log_probs, held.labels)
    # Its curves end at 0: what was never seen would be ruled out.
    smoothing = 1 / (len(held.labels) + 1) if method == "isotonic" else 0.0
    return Calibrator(method, classes, scaler, prepared.uniform, smoothing), messages


def _fit_harmless(method: str, held: Held, prepared: Prepared) -> tuple[Calibrator, list[str]]:
    """The method fitted on everything, or nothing where that is better."""
    found, messages = _fit(method, held, prepared)
    nothing = _losses(Calibrator("none", found.classes), held).mean()
    if not float(_losses(found, held).mean()) <= float(nothing):
        return Calibrator("none", found.classes), messages
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
    found: Tensor = calibrator.scaler(values).log_softmax(1)
    if not calibrator.smoothing:
        return found
    share = math.log(calibrator.smoothing / calibrator.classes)
    return torch.logaddexp(found + math.log1p(-calibrator.smoothing), found.new_tensor(share))


def _losses(calibrator: Calibrator, held: Held) -> Tensor:
    return -_own(_log_probabilities(calibrator, held), held.labels)


def _own(values: Tensor, labels: Tensor) -> Tensor:
    """What each row has for its label, (N,)."""
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
            confidence, predicted = log_probs.max(1)
            sure[name][0][part == fold] = confidence.exp()
            sure[name][1][part == fold] = (predicted == inside.labels).double()
    return losses, sure


def _row(
    losses: dict[str, Tensor], name: str, sure: tuple[Tensor, Tensor], labels: Tensor
) -> dict[str, float]:
    """nll and ece of a method, and how far it is from the best, paired."""
    best = min(losses, key=lambda each: float(losses[each].mean()))
    difference = losses[name] - losses[best]
    error = float(difference.std()) / math.sqrt(len(labels))
    return {
        "nll": float(losses[name].mean()),
        "ece": float(ece_of_confidences(*sure, _BINS)),
        "above_best": float(difference.mean()),
        "standard_error": error,
    }


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
        return chosen, f"no method is measurably better than doing nothing ({value})"
    if chosen == best:
        return chosen, f"least {value}, {without}"
    return chosen, (
        f"{value}, {without}; {best} with {table[best]['nll']:.4f} is not better by more than a "
        "standard error, and has more to go wrong"
    )


def _zero_labels(held: Held) -> int:
    """Labels that were given probability 0."""
    if not held.are_probs:
        return 0
    return int((_own(held.values, held.labels) == 0).sum())
