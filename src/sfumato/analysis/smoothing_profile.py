"""Label smoothing that a loss amounts to, read off its gradient, and the samples it acts on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato._core.checks import (
    check_floating,
    check_integer,
    check_number,
    to_float64,
)
from sfumato._core.plots import new_figure, open_axes
from sfumato.analysis.batches import LossFunction, check_scalar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Of products and sums of probabilities in float64, far above rounding and below any effect.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class SmoothingProfile:
    """The smoothing of one sample's label by a loss while its predicted class pulls ahead.

    Attributes:
        lead: (S,), logit of the predicted class minus the next one.
        confidence: (S,), probability of the predicted class.
        logits: (S, C), the swept logits; the predicted class is the last.
        one_hot: (C,), the label q.
        smoothing: (S, C), f(z_j) C(z_j) of Eq. (8): positive takes from the label of the predicted
            class and adds to the labels of the others.
        active: (S, C) bool, the indicator C(z_j).
    """

    lead: Tensor
    confidence: Tensor
    logits: Tensor
    one_hot: Tensor
    smoothing: Tensor
    active: Tensor

    @property
    def effective_target(self) -> Tensor:
        """(S, C), the label that cross entropy would need for the same gradient: q_j -/+ f C."""
        sign = torch.ones_like(self.one_hot)
        sign[-1] = -1
        return self.one_hot + sign * self.smoothing


def smoothing_profile(
    loss: LossFunction,
    *,
    num_classes: int = 10,
    max_lead: float = 20.0,
    num_steps: int = 80,
    other_logits: Tensor | None = None,
    label: int | None = None,
    companions: tuple[Tensor, Tensor] | None = None,
    is_penalty: bool = False,
) -> SmoothingProfile:
    """Smoothing function and indicator of a loss as the confidence sweeps from low to high.

    Every regularised loss has the gradient of cross entropy with another label (Eq. 8):

        dL/dz_j = p_j - (q_j - f(z_j) C(z_j))    for the predicted class
        dL/dz_j = p_j - (q_j + f(z_j) C(z_j))    for the others

    so autograd gives the product f C of any loss, and C is where it isn't zero.

    Args:
        loss: `loss(logits, target)` with mean reduction, built in or your own.
        num_classes: C, at least 2.
        max_lead: the predicted logit goes from the largest other logit to this much above it.
        num_steps: number of points on the way; the tie at the start isn't one of them.
        other_logits: (C - 1,), logits of the other classes; evenly spaced over [-2, 0] if None.
        label: the true class; None for the predicted one, which is the last class.
        companions: (logits, target) of further samples of the batch, for losses that compare the
            samples of a batch. The gradient is multiplied by the batch size.
        is_penalty: whether `loss` is a penalty alone, without cross entropy.

    Example:
        >>> from functools import partial
        >>> from sfumato.labels.cross_entropy import cross_entropy_loss
        >>> profile = smoothing_profile(partial(cross_entropy_loss, smoothing=0.1), num_classes=4)
        >>> profile.smoothing[0]  # 0.1 / 4 to each other class, 0.1 (1 - 1 / 4) from its own
        tensor([0.0250, 0.0250, 0.0250, 0.0750], dtype=torch.float64)

    Reference:
        ACLS, Eq. (6)-(8) and Table 2.
    """
    check_integer("num_classes", num_classes, low=2)
    check_integer("num_steps", num_steps, low=1)
    check_number("max_lead", max_lead, low=0.0, open_low=True)
    predicted = num_classes - 1
    label = predicted if label is None else label
    check_integer("label", label, low=0, high=predicted)
    others = _other_logits(other_logits, num_classes)
    lead = torch.linspace(max_lead / num_steps, max_lead, num_steps, dtype=torch.float64)
    top = others.max() + lead
    logits = torch.cat([others.expand(num_steps, -1), top.unsqueeze(1)], 1)
    target = torch.tensor([label])
    beside, labels = companions or (logits[:0], target[:0])
    labels = torch.cat([target, labels.to(target)])
    rows = []
    for row in logits:
        batch = torch.cat([row[None], beside.to(row)])
        rows.append(_regularising(loss, batch, labels, is_penalty)[:1] * len(batch))
    smoothing = -torch.cat(rows)  # Eq. (8), j != predicted
    smoothing[:, predicted] *= -1  # Eq. (8), j = predicted
    return SmoothingProfile(
        lead=lead,
        confidence=logits.softmax(1)[:, predicted],
        logits=logits,
        one_hot=F.one_hot(target[0], num_classes).double(),
        smoothing=smoothing,
        active=smoothing.abs() > _TOLERANCE,
    )


def active_share(
    loss: LossFunction,
    logits: Tensor,
    target: Tensor,
    *,
    is_penalty: bool = False,
    ignore_index: int = -100,
) -> float:
    """Share of the samples of a batch on which the regulariser of a loss has a gradient.

    A penalty that is active on few samples regularises little: Fig. 3 finds 15 % under the ranking
    condition late in training and 95 % under the margin condition. It is 0 without valid entries.

    Args:
        loss, is_penalty: as in `smoothing_profile`.
        logits: (N, C) or (N, C, d1, ...), such as the predictions on the training set.
        target: class indices (N, d1, ...).
        ignore_index: class index of entries that don't count.

    Example:
        >>> from sfumato.labels.mbls import mbls_loss
        >>> logits = torch.tensor([[12.0, 0.0], [4.0, 0.0], [0.0, 15.0], [3.0, 3.5]])
        >>> active_share(mbls_loss, logits, torch.tensor([0, 0, 1, 1]))
        0.5

    Reference:
        ACLS, section 4.3 and Fig. 3.

    Differs:
        Fig. 3 counts samples whose penalty is zero; here the gradient counts, which is what
        acts, and which a sample can also get through its partner in a pair.
    """
    check_floating("logits", logits)
    valid = target != ignore_index
    if not bool(valid.any()):
        return 0.0
    gradient = _regularising(loss, logits, target, is_penalty, ignore_index)
    strength = gradient.abs().amax(1) * valid.sum()
    return float((strength[valid] > _TOLERANCE).double().mean())


def plot_smoothing_profile(profiles: Mapping[str, SmoothingProfile]) -> Figure:
    """One column per loss: what it takes and gives along the sweep, and the label it ends with.

    Above, f C of the predicted class and of the others over the lead of the predicted logit; below,
    the effective label of an overconfident sample (the end of the sweep) beside the given one.

    Reference:
        ACLS, Fig. 1.
    """
    figure = new_figure(2.9 * len(profiles) + 0.8, 5.6, profiles=profiles)
    axes = figure.subplots(2, len(profiles), squeeze=False)
    for column, (title, profile) in enumerate(profiles.items()):
        axes[0, column].set_title(title)
        _draw_functions(axes[0, column], profile)
        _draw_labels(axes[1, column], profile)
    for axis, label in zip(axes[:, 0], ("smoothing f(z) C(z)", "label"), strict=True):
        axis.set_ylabel(label)
        axis.legend(fontsize="small", loc="best")
    return figure


def _draw_functions(axis: Axes, profile: SmoothingProfile) -> None:
    lead, smoothing = profile.lead.numpy(), profile.smoothing.numpy()
    others = smoothing[:, :-1]
    axis.axhline(0.0, color="0.8", linewidth=0.8)
    axis.fill_between(
        lead, others.min(1), others.max(1), color="tab:blue", alpha=0.35, label="other classes"
    )
    axis.plot(lead, others.mean(1), color="tab:blue")
    axis.plot(lead, smoothing[:, -1], color="tab:red", label="predicted class")
    ticks = torch.linspace(0, len(lead) - 1, 4).long().tolist()
    axis.set_xticks(lead[ticks], [f"{lead[i]:.3g}\n{profile.confidence[i]:.4f}" for i in ticks])
    axis.set_xlabel("lead in logits\nconfidence", fontsize="small")
    axis.tick_params(labelsize="small")


def _draw_labels(axis: Axes, profile: SmoothingProfile) -> None:
    effective, given = profile.effective_target[-1].numpy(), profile.one_hot.numpy()
    classes = range(len(given))
    colors = ["tab:blue"] * (len(given) - 1) + ["tab:red"]
    axis.axhline(0.0, color="0.8", linewidth=0.8)
    axis.bar(classes, effective, color=colors, alpha=0.75, label="effective")
    axis.bar(classes, given, fill=False, edgecolor="black", linestyle="--", label="given")
    axis.set_xticks(classes)
    axis.set_xlabel("class, the last is predicted", fontsize="small")
    axis.tick_params(labelsize="small")


def _regularising(
    loss: LossFunction,
    logits: Tensor,
    target: Tensor,
    is_penalty: bool,
    ignore_index: int = -100,
) -> Tensor:
    """Gradient of a penalty, or of what a loss adds to cross entropy."""
    gradient = _gradient(loss, logits, target)
    if not is_penalty:
        gradient -= _gradient(partial(F.cross_entropy, ignore_index=ignore_index), logits, target)
    return gradient


def _gradient(loss: LossFunction, logits: Tensor, target: Tensor) -> Tensor:
    logits = logits.detach().double().requires_grad_()
    with torch.enable_grad():
        value = loss(logits, target)
    # A penalty that is off everywhere is a constant, which has no graph.
    if not check_scalar(value).requires_grad:
        return torch.zeros_like(logits)
    return torch.autograd.grad(value, logits)[0].detach().clone()


def _other_logits(other_logits: Tensor | None, num_classes: int) -> Tensor:
    if other_logits is None:
        return torch.linspace(-2.0, 0.0, num_classes - 1, dtype=torch.float64)
    check_floating("other_logits", other_logits)
    if other_logits.shape != (num_classes - 1,):
        raise ValueError(
            f"other_logits must have shape ({num_classes - 1},), one for each class but the "
            f"predicted one, got {tuple(other_logits.shape)}"
        )
    return other_logits.double()


@dataclass(frozen=True)
class RegulariserValues:
    """Values that a regulariser adds to the loss of each sample.

    Attributes:
        values: (N,), 0 where it does nothing.
    """

    values: Tensor

    def __post_init__(self) -> None:
        check_floating("values", self.values)
        if self.values.ndim != 1 or not len(self.values):
            raise ValueError(
                f"values must be (N,), one for each sample, got {tuple(self.values.shape)}"
            )

    @property
    def inactive(self) -> float:
        """Share of samples on which it does nothing."""
        return float(to_float64(self.values == 0).mean())


def plot_regularisers(
    found: Mapping[str, RegulariserValues], *, upper: float = 0.1, bins: int = 20
) -> Figure:
    """Histograms of values clipped into [0, upper], with the share of samples left alone."""
    check_number("upper", upper, low=0.0, open_low=True)
    check_integer("bins", bins, low=1)
    figure = new_figure(3.4 * len(found) + 0.4, 3.0, found=found)
    from matplotlib.ticker import PercentFormatter

    axes = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for axis, (title, each) in zip(axes, found.items(), strict=True):
        counts = to_float64(each.values).cpu().clamp(0, upper).histc(bins, 0, upper)
        left = [number * upper / bins for number in range(bins)]
        shares = (counts / len(each.values)).tolist()
        bars = {"align": "edge", "color": "#3b6ea5", "edgecolor": "white", "lw": 0.6}
        axis.bar(left, shares, upper / bins, **bars)
        axis.set_title(f"{title}\nnothing for {each.inactive:.1%}", fontsize="medium")
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        open_axes(axis, xlabel="value of the regulariser", xlim=(0, upper))
    axes[0].set_ylabel("share of samples")
    return figure
