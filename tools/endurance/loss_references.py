"""Every loss once more, entry by entry in float64 and as plainly as its equation is written.

Nothing of `sfumato` is used. A reference takes the logits z (M, C) of the entries that count, their
targets q (M, C) and what the drawn options say, and gives `Parts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Options = dict[str, Any]


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


def cross_entropy(z: Tensor, q: Tensor, options: Options) -> Parts:
    return _fidelity(z, q, options)


def focal(z: Tensor, q: Tensor, options: Options) -> Parts:
    return _focal(z, q, options, torch.full((len(z),), options.get("gamma", 3.0)).to(z))


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


def ecp(z: Tensor, q: Tensor, options: Options) -> Parts:
    log_p = _log_probs(z)
    entropy = (log_p.exp() * log_p).sum(1)
    return _fidelity(z, q, options)._replace(
        penalty=options.get("weight", 0.1) * entropy / z.shape[1]
    )


def mbls(z: Tensor, q: Tensor, options: Options) -> Parts:
    distance = z.amax(1, keepdim=True) - z - options.get("margin", 10.0)
    penalty = options.get("weight", 0.1) * distance.relu().mean(1)
    return _fidelity(z, q, options)._replace(penalty=penalty, kinks=(distance,))


def maxsup(z: Tensor, q: Tensor, options: Options) -> Parts:
    penalty = options.get("weight", 0.1) * (z.amax(1) - z.mean(1))
    return _fidelity(z, q, options)._replace(penalty=penalty)


def acls(z: Tensor, q: Tensor, options: Options) -> Parts:
    margin, form = options.get("margin", 10.0), options.get("form", "paper")
    top, low = z.amax(1), z.amin(1)
    others = (top.detach().unsqueeze(1) - z - margin).relu().square().sum(1)
    if form == "released":
        is_top = z == top.unsqueeze(1)
        first = torch.where(is_top, (z - margin).relu().square(), 0.0).sum(1)
        kink = top - margin
    else:
        kink = top - (low.detach() if form == "gradient" else low) - margin
        first = kink.relu().square()
    share = options.get("other_weight", 0.01) / (z.shape[1] - 1)
    penalty = options.get("predicted_weight", 0.1) * first + share * others
    if form == "gradient":
        penalty = penalty / 2
    return _fidelity(z, q, options)._replace(penalty=penalty, kinks=(kink,))


def mdca(z: Tensor, q: Tensor, options: Options) -> Parts:
    gap = z.softmax(1).mean(0) - q.mean(0)
    penalty = options.get("weight", 1.0) * gap.abs().mean()
    kink = torch.where(gap == 0, 1e-9, 100 * gap)  # thirds are 0 apart in one precision only
    return _fidelity(z, q, options)._replace(penalty=penalty, kinks=(kink,))


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


def cape(z: Tensor, q: Tensor, options: Options) -> Parts:
    known, log_p = options["extra"], _log_probs(z)
    top = log_p.argmax(1, keepdim=True)
    others = log_p.scatter(1, top, -torch.inf).logsumexp(1)
    values = -known * log_p.gather(1, top).squeeze(1) - (1 - known) * others
    return _fidelity(z, q, options)._replace(penalty=options.get("weight", 1.0) * values)


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


def dual_focal(z: Tensor, q: Tensor, options: Options) -> Parts:
    log_p, own = _log_probs(z), (z * q).sum(1, keepdim=True)
    is_below = z < own
    following = torch.where(is_below, z, -torch.inf).amax(1)
    is_there = is_below.any(1)
    second = torch.where(is_there, torch.where(is_there, following, 0.0) - z.logsumexp(1), 0.0)
    log_own = (log_p * q).sum(1)
    miss = -torch.expm1(log_own) + torch.where(is_there, second.exp(), 0.0)
    return Parts(-_power(miss, options.get("gamma", 5.0)) * log_own)


def bsce(z: Tensor, q: Tensor, options: Options) -> Parts:
    log_p, norm = _log_probs(z), options.get("norm", 2)
    # Not 1 - p, which has lost the last places where p is nearly 1.
    apart = torch.where(q == 1, -torch.expm1(log_p), q - log_p.exp())
    distance = apart.abs().sum(1) if norm == 1 else apart.square().sum(1)
    weight = _power(distance, options.get("gamma", 2.0) / norm)
    weight = weight.detach() if options.get("stop_gradient", True) else weight
    has_kinks = norm == 1 and not options["is_hard"]
    return Parts(-weight * (q * log_p).sum(1), kinks=(apart,) if has_kinks else ())


def adafocal(z: Tensor, q: Tensor, options: Options) -> Parts:
    log_p = (_log_probs(z) * q).sum(1)
    gammas, edges = options.get("gammas", torch.ones(1)), options.get("edges", torch.zeros(0))
    above = log_p.detach().exp().unsqueeze(1) - edges
    gamma = gammas.to(z)[(above >= 0).sum(1)]
    inverse = (1 + log_p.exp()) ** gamma.abs()
    values = -torch.where(gamma < 0, inverse, _power(-torch.expm1(log_p), gamma.abs())) * log_p
    return Parts(values, kinks=(above,))


def nacl(z: Tensor, q: Tensor, options: Options) -> Parts:
    apart = z - options["around"]
    penalty = options.get("weight", 0.1) * apart.abs().mean(1)
    # Both sides are known to the last places.
    return _fidelity(z, q, options)._replace(penalty=penalty, kinks=(1000 * apart,))


def cals(z: Tensor, q: Tensor, options: Options) -> Parts:
    rho, margin = options.get("rho", 1.0), options.get("margin", 10.0)
    multipliers = options.get("multipliers", torch.full(z.shape[1:], 1e-6)).to(z)
    constraint = (z.amax(1, keepdim=True) - z) / margin - 1
    active = (multipliers + rho * constraint).clamp(min=0)
    penalty = ((active**2 - multipliers**2) / (2 * rho)).sum(1)
    return _fidelity(z, q, options)._replace(penalty=penalty)


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


REFERENCES: dict[str, Callable[[Tensor, Tensor, Options], Parts]] = {
    "acls": acls,
    "adafocal": adafocal,
    "bsce": bsce,
    "cals": cals,
    "cape": cape,
    "cpc": cpc,
    "crl": crl,
    "cross_entropy": cross_entropy,
    "dual_focal": dual_focal,
    "ecp": ecp,
    "flsd": flsd,
    "focal": focal,
    "maxsup": maxsup,
    "mbls": mbls,
    "mdca": mdca,
    "mmce": mmce,
    "nacl": nacl,
    "normalised_cross_entropy": normalised_cross_entropy,
    "online_label_smoothing": online_label_smoothing,
}
