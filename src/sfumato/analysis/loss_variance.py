"""Fluctuation of the loss by the size of an ensemble."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_class_indices, check_integer, to_float64
from sfumato._core.plots import new_figure, open_axes
from sfumato._core.seeds import draw_seed
from sfumato.analysis.batches import Batch, read_batches, running, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SHUFFLES = 10


@dataclass(frozen=True)
class LossVariance:
    """Variance of the negative log-likelihood of ensembles over their randomness.

    Attributes:
        sizes: (S,) ensemble sizes N.
        variances: (S,) float64, measured.
        expected: (S,), the 1/N law of Eq. (28) from the variance of single predictions.
        losses: (S,), mean loss of the ensembles.
    """

    sizes: Tensor
    variances: Tensor
    expected: Tensor
    losses: Tensor

    @property
    def slope(self) -> float:
        """Slope of log variance over log size, by least squares; the law says -1."""
        x, y = self.sizes.double().log(), self.variances.log()
        x, y = x - x.mean(), y - y.mean()
        return float((x * y).sum() / x.square().sum())


def loss_variance(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    sizes: Sequence[int] = (1, 2, 5, 10, 20),
    passes: int = 200,
    batches: int | None = None,
    ignore_index: int = -100,
    generator: torch.Generator | None = None,
) -> LossVariance:
    r"""Variance of the loss against ensemble size, and the law that it should follow.

    The loss of an ensemble of N stochastic passes fluctuates less than that of one, and its
    variance is the square of the expected sharpness up to a constant (Eq. 22):

        V[L] = V[ 1/|D| sum_D -log p^(N) ] ~ 1/N * mean(sigma_pred^2 / mu^2) / |D|      (Eq. 28)

    with mean mu and variance sigma_pred^2 of the probability of the true class over the passes.
    The measured variance is that between disjoint groups of N of the passes, averaged over several
    ways to group them: its relative error is about sqrt(2 / passes) at all sizes.

    Args:
        model: a network with dropout, giving logits (B, C) or (B, C, ...).
        loader, batches, generator: as in `hessian_max_spectrum`; targets are class indices.
        sizes: ensemble sizes N.
        passes: number of passes over the data, at least twice the largest size.
        ignore_index: class index of entries that don't count.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 2))
        >>> data = [(torch.ones(16, 8), torch.zeros(16, dtype=torch.int64))]
        >>> found = loss_variance(net, data, sizes=(1, 10), passes=400)
        >>> bool((found.variances[0] / found.variances[1] - 10).abs() < 3)
        True

    Reference:
        Park & Kim 2022, **Eq. (23)-(28)**, Fig. D.3a.

    Differs:
        Eq. (28) is written with one mu and sigma for all samples; here their ratio is averaged.
    """
    for size in sizes:
        check_integer("sizes", size, low=1)
    if len(sizes) == 0:
        raise ValueError("sizes must hold at least one ensemble size, got none")
    check_integer("passes", passes, low=2 * max(sizes))
    probs = []
    with running(model, "sample"), torch.no_grad(), seeded(draw_seed(generator)):
        for batch in read_batches(model, loader, batches):
            probs.append(_true_class_probs(model, batch, passes, ignore_index))
    table = torch.cat(probs, 1)  # (passes, D)
    if table.shape[1] == 0:
        raise ValueError("loader must give at least one entry that is not ignored, got none")
    if bool((table == table[0]).all()):
        raise ValueError(
            "the model has no active dropout, so all passes are the same: insert it with "
            "sfumato.features.add_dropout(model, rate)"
        )
    # Every grouping of the same passes is as good as another: their mean is less noisy.
    shuffles = [torch.randperm(passes, generator=generator) for _ in range(_SHUFFLES)]
    moments = [_mean_and_variance(table, size, shuffles) for size in sizes]
    losses, variances = torch.tensor(moments, dtype=torch.float64).unbind(1)
    single = (table.var(0) / table.mean(0).square()).mean() / table.shape[1]
    numbers = torch.tensor(list(sizes))
    return LossVariance(numbers, variances, expected=single / numbers, losses=losses)  # Eq. (28)


def _mean_and_variance(table: Tensor, size: int, shuffles: list[Tensor]) -> tuple[float, float]:
    """Measure the losses of ensembles of `size` passes."""
    moments = []
    for order in shuffles:
        whole = order[: len(order) // size * size]
        groups = table[whole].unflatten(0, (-1, size)).mean(1)  # (groups, D)
        losses = -groups.clamp_min(torch.finfo(groups.dtype).tiny).log().mean(1)  # Eq. (23)
        moments.append((float(losses.mean()), float(losses.var())))
    means, variances = zip(*moments, strict=True)
    return sum(means) / len(means), sum(variances) / len(variances)


def _true_class_probs(model: nn.Module, batch: Batch, passes: int, ignore_index: int) -> Tensor:
    """Probability of the true class of every valid entry in each pass, (passes, entries)."""
    images, target = batch
    valid = target != ignore_index
    rows = []
    for _ in range(passes):
        logits = model(images)
        check_class_indices("target", target, logits.shape[1], ignore_index=ignore_index)
        chosen = target.where(valid, 0).unsqueeze(1)
        probs = to_float64(logits).softmax(1).to("cpu")
        rows.append(probs.gather(1, chosen.cpu()).squeeze(1)[valid.cpu()])
    return torch.stack(rows)


def plot_loss_variances(variances: Mapping[str, LossVariance]) -> Figure:
    """Measured variances as points and the 1/N law as lines, on logarithmic axes.

    Reference: Park & Kim 2022, Fig. D.3a.
    """
    figure = new_figure(5.0, 3.8, variances=variances)
    axis = figure.subplots()
    for number, (title, found) in enumerate(variances.items()):
        slope = f" (slope {found.slope:.2f})" if len(found.sizes) > 1 else ""
        axis.plot(found.sizes, found.variances, "o", color=f"C{number}", label=title + slope)
        axis.plot(found.sizes, found.expected, "--", color=f"C{number}", linewidth=1)
    axis.plot([], [], "--", color="0.4", linewidth=1, label="1/N law, Eq. (28)")
    axis.set(xscale="log", yscale="log")
    ticks = sorted({int(size) for found in variances.values() for size in found.sizes})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize="small")
    open_axes(axis, xlabel="ensemble size N", ylabel="variance of the loss")
    return figure
