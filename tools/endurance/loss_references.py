"""Every loss once more, in float64 and as plainly as its equation is written: the one oracle.

Nothing of `sfumato` is used. The tests of each loss, `tests/contracts/test_losses.py` and the
stress test compare values and gradients with `reference`. A function of `REFERENCES` takes the
logits z (M, C) of the entries that count, their targets q (M, C) and options, and gives `Parts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

Options = dict[str, Any]
IGNORED = -100


class Parts(NamedTuple):
    """A loss before its reduction.

    Attributes:
        fit: the fidelity of each entry, (M,).
        penalty: what is added to it, (M,) or a number; its mean is over the entries.
        weight: of each entry in the mean of the fidelity, (M,); None for 1.
        kinks: distances that must not be near 0, where rounding decides the derivative.
    """

    fit: Tensor
    penalty: Tensor | float = 0.0
    weight: Tensor | None = None
    kinks: tuple[Tensor, ...] = ()


Equation = Callable[[Tensor, Tensor, Options], Parts]
REFERENCES: dict[str, Equation] = {}


def oracle(equation: Equation) -> Equation:
    """Make an equation the oracle of the loss of that name."""
    REFERENCES[equation.__name__] = equation
    return equation


def _log_probs(z: Tensor) -> Tensor:
    return z.log_softmax(1)


def _cross_entropy(z: Tensor, q: Tensor, options: Options) -> tuple[Tensor, Tensor | None]:
    weight = options.get("class_weight")
    amount, classes = options.get("smoothing", 0.0), z.shape[1]
    if options.get("smoothing_over", "all") == "all":
        q = (1 - amount) * q + amount / classes
    else:
        q = q * (1 - amount) + (1 - q) * amount / (classes - 1)
    log_p = _log_probs(z)
    costs = -torch.where(q == 0, 0.0, q * torch.where(q == 0, 0.0, log_p))
    if weight is None:
        return costs.sum(1), None
    return (costs * weight).sum(1), weight


def _fidelity(z: Tensor, q: Tensor, options: Options) -> Parts:
    fit, weight = _cross_entropy(z, q, options)
    is_hard = bool(((q == 0) | (q == 1)).all()) and options.get("is_hard", True)
    if weight is not None and is_hard:
        return Parts(fit, weight=weight[q.argmax(1)])
    return Parts(fit)


@oracle
def cross_entropy(z: Tensor, q: Tensor, options: Options) -> Parts:
    return _fidelity(z, q, options)


@oracle
def focal(z: Tensor, q: Tensor, options: Options) -> Parts:
    return _focal(z, q, options, torch.full((len(z),), options.get("gamma", 3.0)).to(z))


@oracle
def flsd(z: Tensor, q: Tensor, options: Options) -> Parts:
    p, gamma = z.softmax(1).detach(), options.get("gamma", 3.0)
    if options.get("rule", "released") == "paper":
        read = p.amax(1)
        exponent = torch.where(read < 0.2, 5.0, gamma)
        kinks = (read - 0.2,)
    else:
        read = (p * q).sum(1)
        exponent = torch.where(read < 0.2, 5.0, torch.where(read < 0.5, 3.0, gamma))
        kinks = (read - 0.2, read - 0.5)
    return _focal(z, q, options, exponent.to(z))._replace(kinks=kinks)


def _focal(z: Tensor, q: Tensor, options: Options, exponent: Tensor) -> Parts:
    log_p = (_log_probs(z) * q).sum(1)
    # Where p is 1 in this precision the power has no derivative, but its product with log p does.
    miss = -torch.expm1(log_p)
    miss = torch.where(miss == 0, 1.0, miss)
    values = -(miss**exponent) * log_p
    weight = options.get("class_weight")
    if weight is None:
        return Parts(values)
    mine = weight[q.argmax(1)]
    return Parts(values * mine, weight=mine)


@oracle
def ecp(z: Tensor, q: Tensor, options: Options) -> Parts:
    log_p = _log_probs(z)
    entropy = (log_p.exp() * log_p).sum(1)
    return _fidelity(z, q, options)._replace(
        penalty=options.get("weight", 0.1) * entropy / z.shape[1]
    )


@oracle
def mbls(z: Tensor, q: Tensor, options: Options) -> Parts:
    distance = z.amax(1, keepdim=True) - z - options.get("margin", 10.0)
    penalty = options.get("weight", 0.1) * distance.relu().mean(1)
    return _fidelity(z, q, options)._replace(penalty=penalty, kinks=(distance,))


@oracle
def maxsup(z: Tensor, q: Tensor, options: Options) -> Parts:
    penalty = options.get("weight", 0.1) * (z.amax(1) - z.mean(1))
    return _fidelity(z, q, options)._replace(penalty=penalty)


@oracle
def acls(z: Tensor, q: Tensor, options: Options) -> Parts:
    margin, form = options.get("margin", 10.0), options.get("form", "paper")
    condition = options.get("condition", "margin")
    power = 1 if options.get("smoothing", "adaptive") == "constant" else 2

    def cost(distance: Tensor) -> Tensor:
        return (distance.relu() if condition == "margin" else distance) ** power

    top, low = z.amax(1, keepdim=True), z.amin(1)
    below = top.detach() - z - margin
    others = cost(below).scatter(1, z.argmax(1, keepdim=True), 0.0).sum(1)
    if form == "released":
        kink = top.squeeze(1) - margin
        first = torch.where(z == top, cost(z - margin), 0.0).sum(1)
    else:
        kink = top.squeeze(1) - (low.detach() if form == "gradient" else low) - margin
        first = cost(kink)
    share = options.get("other_weight", 0.01) / (z.shape[1] - 1)
    penalty = options.get("predicted_weight", 0.1) * first + share * others
    if form == "gradient" and power == 2:
        penalty = penalty / 2
    if condition == "ranking":
        known, confidence = options["extra"], z.softmax(1).amax(1).detach()
        lead, gap = known - known.roll(-1), confidence - confidence.roll(-1)
        penalty = torch.where(lead * gap < 0, penalty, 0.0)
    kinks = (kink,) if power == 2 else (kink, below)
    # Its `smoothing` is no amount.
    return _fidelity(z, q, {**options, "smoothing": 0.0})._replace(penalty=penalty, kinks=kinks)


@oracle
def mdca(z: Tensor, q: Tensor, options: Options) -> Parts:
    gap = z.softmax(1).mean(0) - q.mean(0)
    penalty = options.get("weight", 1.0) * gap.abs().mean()
    kink = torch.where(gap == 0, 1e-9, 100 * gap)  # thirds are 0 apart in one precision only
    return _fidelity(z, q, options)._replace(penalty=penalty, kinks=(kink,))


@oracle
def mmce(z: Tensor, q: Tensor, options: Options) -> Parts:
    p, predicted = z.softmax(1).amax(1), z.argmax(1)
    right = (predicted == q.argmax(1)).to(z)
    apart = p[:, None] - p[None]
    kernel = torch.exp(-apart.abs() / 0.4)
    pairs = 100 * apart[~torch.eye(len(z), dtype=torch.bool)].detach()
    pairs = torch.where(pairs == 0, 1e-9, pairs)  # equal, but not in another order of summation
    fidelity = _fidelity(z, q, options)._replace(kinks=(pairs,))
    if not options.get("weighted", False):
        gap = right - p
        penalty = (gap @ kernel @ gap) / len(z) ** 2
        return fidelity._replace(penalty=options.get("weight", 1.0) * penalty)
    sizes = right * right.sum().clamp(min=1) + (1 - right) * (1 - right).sum().clamp(min=1)
    signed = torch.where(right > 0, 1 - p, -p) / sizes
    square = signed @ kernel @ signed
    penalty = options.get("weight", 1.0) * square.clamp(min=0).sqrt()
    return fidelity._replace(penalty=penalty, kinks=(pairs, 100 * square.detach()))


@oracle
def cpc(z: Tensor, q: Tensor, options: Options) -> Parts:
    classes, label = z.shape[1], q.argmax(1)
    first, second = z.new_zeros(len(z)), z.new_zeros(len(z))
    for k in range(classes):
        is_label = label == k
        mine = z.gather(1, label[:, None]).squeeze(1)
        contest = torch.nn.functional.logsigmoid(mine - z[:, k])
        first = first - torch.where(is_label, 0.0, contest) / (classes - 1)
        for other in range(classes):
            if classes < 3:  # there is no pair
                continue
            is_out = is_label | (label == other)
            contest = torch.nn.functional.logsigmoid(z[:, k] - z[:, other]) / 2
            second = second - torch.where(is_out, 0.0, contest) / ((classes - 1) * (classes - 2))
    penalty = options.get("discrimination_weight", 0.1) * first
    penalty = penalty + options.get("exclusion_weight", 1.0) * second
    return _fidelity(z, q, options)._replace(penalty=penalty)


@oracle
def crl(z: Tensor, q: Tensor, options: Options) -> Parts:
    known, kind = options["extra"], options.get("confidence", "softmax")
    p = z.softmax(1)
    if kind == "softmax":
        confidence = p.amax(1)
    elif kind == "margin":
        two = p.topk(2, 1).values
        confidence = two[:, 0] - two[:, 1]
    else:
        confidence = (p * _log_probs(z)).sum(1) / math.log(z.shape[1])
    lead, gap = known - known.roll(-1), confidence - confidence.roll(-1)
    hinge = lead.abs() - lead.sign() * gap
    penalty = torch.where(lead == 0, 0.0, hinge.relu()) * options.get("weight", 1.0)
    kinks = (torch.where(lead == 0, 1.0, hinge),) if len(z) > 1 else ()
    return _fidelity(z, q, options)._replace(penalty=penalty, kinks=kinks)


@oracle
def cape(z: Tensor, q: Tensor, options: Options) -> Parts:
    known, log_p = options["extra"], _log_probs(z)
    top = log_p.argmax(1, keepdim=True)
    others = log_p.scatter(1, top, -torch.inf).logsumexp(1)
    values = -known * log_p.gather(1, top).squeeze(1) - (1 - known) * others
    return _fidelity(z, q, options)._replace(penalty=options.get("weight", 1.0) * values)


@oracle
def normalised_cross_entropy(z: Tensor, q: Tensor, options: Options) -> Parts:
    log_p = _log_probs(z)
    mean = log_p.mean(1, keepdim=True)
    half = (mean - log_p) / 2
    tiny = half.abs() < 1e-3
    safe = torch.where(tiny, 1.0, half).abs()
    ratio = torch.where(
        tiny, half**2 / 6 - half**4 / 180, safe + torch.log(-torch.expm1(-2 * safe) / (2 * safe))
    )
    normaliser = ((mean + log_p) / 2 + ratio).logsumexp(1)
    return _fidelity(z, q, options)._replace(penalty=normaliser)


@oracle
def dual_focal(z: Tensor, q: Tensor, options: Options) -> Parts:
    log_p, own = _log_probs(z), (z * q).sum(1, keepdim=True)
    is_below = z < own
    following = torch.where(is_below, z, -torch.inf).amax(1)
    is_there = is_below.any(1)
    second = torch.where(is_there, torch.where(is_there, following, 0.0) - z.logsumexp(1), 0.0)
    log_own = (log_p * q).sum(1)
    miss = -torch.expm1(log_own) + torch.where(is_there, second.exp(), 0.0)
    return Parts(-_power(miss, options.get("gamma", 5.0)) * log_own)


@oracle
def bsce(z: Tensor, q: Tensor, options: Options) -> Parts:
    log_p, norm = _log_probs(z), options.get("norm", 2)
    # Not 1 - p, which has lost the last places where p is nearly 1.
    apart = torch.where(q == 1, -torch.expm1(log_p), q - log_p.exp())
    distance = apart.abs().sum(1) if norm == 1 else apart.square().sum(1)
    weight = _power(distance, options.get("gamma", 2.0) / norm)
    weight = weight.detach() if options.get("stop_gradient", True) else weight
    has_kinks = norm == 1 and not options["is_hard"]
    return Parts(-weight * (q * log_p).sum(1), kinks=(apart,) if has_kinks else ())


@oracle
def adafocal(z: Tensor, q: Tensor, options: Options) -> Parts:
    log_p = (_log_probs(z) * q).sum(1)
    gammas, edges = options.get("gammas", torch.ones(1)), options.get("edges", torch.zeros(0))
    above = log_p.detach().exp().unsqueeze(1) - edges
    gamma = gammas.to(z)[(above >= 0).sum(1)]
    inverse = (1 + log_p.exp()) ** gamma.abs()
    values = -torch.where(gamma < 0, inverse, _power(-torch.expm1(log_p), gamma.abs())) * log_p
    return Parts(values, kinks=(above,))


@oracle
def nacl(z: Tensor, q: Tensor, options: Options) -> Parts:
    apart = z - options["around"]
    penalty = options.get("weight", 0.1) * apart.abs().mean(1)
    # Both sides are known to the last places.
    return _fidelity(z, q, options)._replace(penalty=penalty, kinks=(1000 * apart,))


@oracle
def cals(z: Tensor, q: Tensor, options: Options) -> Parts:
    rho, margin = options.get("rho", 1.0), options.get("margin", 10.0)
    multipliers = options.get("multipliers", torch.full(z.shape[1:], 1e-6)).to(z)
    constraint = (z.amax(1, keepdim=True) - z) / margin - 1
    active = (multipliers + rho * constraint).clamp(min=0)
    penalty = ((active**2 - multipliers**2) / (2 * rho)).sum(1)
    return _fidelity(z, q, options)._replace(penalty=penalty)


@oracle
def online_label_smoothing(z: Tensor, q: Tensor, options: Options) -> Parts:
    if "soft_labels" not in options:
        return _fidelity(z, q, options)
    weight = options.get("weight", 0.5)
    target = weight * q + (1 - weight) * options["soft_labels"][q.argmax(1)]
    return Parts(-(target * _log_probs(z)).sum(1))


def _power(base: Tensor, exponent: float | Tensor) -> Tensor:
    """base^exponent, held constant at 0, where it may have no derivative."""
    return torch.where(
        base == 0, torch.zeros_like(base) ** exponent, torch.where(base == 0, 1.0, base) ** exponent
    )


def reference(
    name: str, logits: Tensor, target: Tensor, *, reduction: str = "mean", **options: Any
) -> Tensor:
    """Return the value of a loss; options are those of its function, and those of `parts_of`."""
    parts, valid = parts_of(name, logits, target, **options)
    return reduced(parts, reduction, valid)


def penalty_of(
    name: str,
    logits: Tensor,
    target: Tensor | None = None,
    *,
    reduction: str = "mean",
    **options: Any,
) -> Tensor:
    """Return what a loss adds to its fidelity."""
    if target is None:
        target = torch.zeros(logits.shape[:1] + logits.shape[2:], dtype=torch.int64)
    parts, valid = parts_of(name, logits, target, **options)
    return reduced(Parts(torch.zeros_like(parts.fit), parts.penalty), reduction, valid)


def parts_of(
    name: str,
    logits: Tensor,
    target: Tensor,
    *,
    extra: Tensor | None = None,
    ignore_index: int = IGNORED,
    **options: Any,
) -> tuple[Parts, Tensor]:
    """Return a loss before its reduction, and which entries count, (N, ...).

    Args:
        name: a key of `REFERENCES`.
        logits: (N, C, ...) in float64.
        target: class indices (N, ...), or soft targets like `logits`.
        extra: correctness or accuracy of each entry (N, ...), for the losses that need it.
        ignore_index: class index to skip.
        options: those of the loss.
    """
    classes, is_soft = logits.shape[1], target.is_floating_point()
    if is_soft:
        targets = target.double().movedim(1, -1)
        valid = torch.ones(targets.shape[:-1], dtype=torch.bool)
    else:
        valid = target != ignore_index
        targets = torch.nn.functional.one_hot(target.where(valid, 0), classes).double()
    rows = logits.movedim(1, -1)[valid]
    if not len(rows):
        return Parts(rows.sum(1)), valid
    options = {**options, "is_hard": not is_soft, "around": _means_around(targets, valid)[valid]}
    if extra is not None:
        options["extra"] = extra[valid]
    return REFERENCES[name](rows, targets[valid], options), valid


def stands_at_kink(parts: Parts, near: float) -> bool:
    """True where rounding may decide the derivative."""
    return any(bool(((each.abs() < near) & (each != 0)).any()) for each in parts.kinks)


def reduced(found: Parts, reduction: str, valid: Tensor) -> Tensor:
    """Reduce a loss as its function does."""
    fit, penalty = found.fit, found.penalty
    if reduction == "none":
        values = torch.zeros(valid.shape, dtype=torch.float64)
        return values.masked_scatter(valid, fit + penalty)
    if reduction == "sum" or not len(fit):
        return (fit + penalty).sum()
    if found.weight is None:
        return (fit + penalty).mean()
    return fit.sum() / found.weight.sum() + (penalty + torch.zeros_like(fit)).mean()


def _means_around(values: Tensor, valid: Tensor) -> Tensor:
    """Means of (N, ..., C) over the neighbours that count, 3 in each of the dimensions between."""
    counted = valid.unsqueeze(-1).double()
    both = torch.cat([values * counted, counted], -1)
    dimensions = range(1, valid.ndim)
    wide = torch.nn.functional.pad(both, (0, 0) + (1, 1) * len(dimensions))
    total = torch.zeros_like(both)
    for offsets in product(range(3), repeat=len(dimensions)):
        moved = wide
        for dimension, offset in zip(dimensions, offsets, strict=True):
            moved = moved.narrow(dimension, offset, both.shape[dimension])
        total += moved
    return total[..., :-1] / total[..., -1:]
