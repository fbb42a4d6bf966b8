"""Bootstrap intervals of any metric, and of the difference between two models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato._core.checks import check_integer, check_number

_CHUNK = 1_000_000
_CELLS = 16_000
_UPPER = {"nll": math.inf, "entropy": math.inf, "brier": 2.0}
_UPPER |= {"nll_calibration": math.inf, "nll_refinement": math.inf}
_UPPER |= {"brier_calibration": 2.0, "brier_refinement": 2.0}


class Comparison(NamedTuple):
    """A metric of two models on the same samples; difference = second - first.

    The models differ where the interval (low, high) of the difference excludes zero.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float


def bootstrap_interval(
    metric: Callable[..., Tensor],
    *tensors: Tensor,
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    """Interval of `metric(*tensors)` over resamples, with replacement, of the first axis.

    The quantiles of the resampled values are moved so that their mean is the measured value:
    a resample has more label noise than the sample, so its calibration error is larger, and plain
    quantiles may even exclude the measured value. The interval is for what the metric is, on
    average, on test sets of this size.

    Args:
        metric: function of the tensors that returns a scalar.
        tensors: predictions, targets, ...; resampled together along axis 0, so that images of a
            segmentation stay whole.
        resamples: number of resamples.
        level: probability that the interval is to cover.
        generator: source of randomness.

    Example:
        >>> from sfumato.metrics import accuracy
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).repeat(50, 1)
        >>> target = torch.tensor([0, 1] * 40 + [1, 0] * 10)
        >>> generator = torch.Generator().manual_seed(0)
        >>> low, high = bootstrap_interval(accuracy, probs, target, generator=generator)
        >>> low < 0.8 < high
        True
    """
    draw = _index_draws(tensors, resamples, level, generator)
    values = torch.stack([metric(*(t[i] for t in tensors)) for i in draw])
    return centred_interval(values, float(metric(*tensors)), level=level)


def paired_difference(
    metric: Callable[[Tensor, Tensor], Tensor],
    first: Tensor,
    second: Tensor,
    target: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> Comparison:
    """`metric(second, target) - metric(first, target)`, with an interval from shared resamples.

    Both models are resampled together: what is hard for both cancels, and the interval is narrower
    than that of two separate ones.

    Args:
        metric: function of predictions and target that returns a scalar.
        first: predictions of the first model.
        second: predictions of the second model on the same samples.
        target: class indices.
        resamples: number of resamples.
        level: probability that the interval is to cover.
        generator: source of randomness.

    Example:
        >>> from sfumato.metrics import accuracy
        >>> first = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).repeat(50, 1)
        >>> target = torch.tensor([0, 1] * 40 + [1, 0] * 10)
        >>> result = paired_difference(accuracy, first, first.flip(1), target, resamples=100)
        >>> round(result.difference, 4), result.high < 0
        (-0.6, True)
    """
    draw = _index_draws((first, second, target), resamples, level, generator)
    pairs = [(metric(first[i], target[i]), metric(second[i], target[i])) for i in draw]
    draws = torch.stack([b - a for a, b in pairs])
    before, after = float(metric(first, target)), float(metric(second, target))
    low, high = centred_interval(draws, after - before, level=level)
    return Comparison(before, after, after - before, low, high)


def centred_interval(
    draws: Tensor,
    value: float,
    *,
    level: float,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[float, float]:
    """Quantiles of `draws`, moved so that their mean is `value`, kept inside `bounds`."""
    draws = draws[~draws.isnan()]
    if not len(draws) or math.isnan(value):
        return math.nan, math.nan
    tail = (1 - level) / 2
    low = float(torch.quantile(draws, tail, interpolation="lower"))
    high = float(torch.quantile(draws, 1 - tail, interpolation="higher"))
    shift = value - float(draws.mean())
    if math.isfinite(shift):
        low, high = low + shift, high + shift
    return max(low, bounds[0]), min(high, bounds[1])


def intervals_of(
    values: Mapping[str, float], draws: Mapping[str, Tensor], *, level: float = 0.95
) -> dict[str, tuple[float, float]]:
    """`<name>_interval` of each metric that was resampled, inside the metric's bounds."""
    return {
        f"{name}_interval": centred_interval(
            drawn, values[name], level=level, bounds=(0.0, _UPPER.get(name, 1.0))
        )
        for name, drawn in draws.items()
    }


def draw_in_parts(
    units: int,
    resamples: int,
    *,
    generator: torch.Generator | None,
    device: torch.device | None = None,
) -> Iterator[Tensor]:
    """`draw_weights` of all resamples, a few (R, U) at a time, so that they fit the memory.

    The parts depend on the numbers of units and of resamples only: generators that start from the
    same state give the same resamples to everything that is measured on them.
    """
    step = max(1, _CHUNK // max(units, _CELLS))
    for start in range(0, resamples, step):
        yield draw_weights(
            units,
            min(step, resamples - start),
            generator=generator,
            device=torch.device("cpu") if device is None else device,
        )


def draw_weights(
    units: int, resamples: int, *, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """How often each of `units` is drawn in each resample, (R, U), float64; rows sum to U."""
    source = generator.device if generator is not None else device
    drawn = torch.randint(units, (resamples, units), generator=generator, device=source)
    drawn += torch.arange(resamples, device=source).unsqueeze(1) * units
    counts = torch.bincount(drawn.flatten(), minlength=resamples * units)
    return counts.view(resamples, units).to(device=device, dtype=torch.float64)


def check_resampling(units: int, resamples: int, level: float) -> None:
    """Raise unless there is something to resample."""
    check_integer("resamples", resamples, low=1)
    check_number("level", level, low=0.0, high=1.0, open_low=True)
    if units < 2:
        raise ValueError(
            f"resamples need at least 2 samples (images, for dense predictions), got {units}. "
            "Pass resamples=0 to leave the intervals out."
        )


def _index_draws(
    tensors: tuple[Tensor, ...], resamples: int, level: float, generator: torch.Generator | None
) -> list[Tensor]:
    units = len(tensors[0]) if tensors else 0
    check_resampling(units, resamples, level)
    if any(len(t) != units for t in tensors):
        raise ValueError(f"tensors must have one length, got {[len(t) for t in tensors]}")
    device = tensors[0].device
    source = generator.device if generator is not None else device
    return [
        torch.randint(units, (units,), generator=generator, device=source).to(device)
        for _ in range(resamples)
    ]
