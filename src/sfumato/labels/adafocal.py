"""AdaFocal: a focal exponent for each confidence, set by the calibration of the validation set."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sfumato._core.checks import check_floating, check_integer, check_number
from sfumato.labels._entries import LossModule, Reduction, prepare_entries, reduce_entries
from sfumato.labels.correctness import bin_means, gather_columns
from sfumato.labels.focal import power_of_miss
from sfumato.ops.softmax import LEAST_LOG


def adafocal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gammas: Tensor | None = None,
    edges: Tensor | None = None,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Focal loss with an exponent for each bin of the label's probability, inverse where negative.

        L = -(1 - p_y)^g log p_y       where g >= 0, the exponent of the bin that p_y is in
        L = -(1 + p_y)^|g| log p_y     where g < 0

    Focal loss lowers confidence where the network is overconfident, inverse focal loss raises it.

    Args:
        target: class indices (N, d1, ...); soft targets have no p_y and are refused.
        gammas: (B,), the exponents; None for one bin with exponent 1.
        edges: (B - 1,), where one bin ends and the next begins, ascending.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> target, edges = torch.tensor([0, 0]), torch.tensor([0.5])
        >>> adafocal_loss(logits, target, gammas=torch.tensor([-1.0, 3.0]), edges=edges)
        tensor(1.1903)

    Reference:
        Ghosh, Schaaf and Gormley, "AdaFocal: Calibration-aware Adaptive Focal Loss", NeurIPS 2022.

    Differs:
        The released code sums over the batch; the mean is taken here.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index, soft=False)
    softmax = entries.softmax()
    miss = -torch.expm1(softmax.label.clamp(min=LEAST_LOG))
    # One bin of exponent 1 needs no search for the bin.
    if gammas is None:
        return reduce_entries(miss * -softmax.label, softmax, reduction)
    edges = _checked_edges(gammas, edges)
    bins = torch.bucketize(softmax.label.detach().exp(), edges.to(softmax.label), right=True)
    gamma = gammas.to(softmax.label)[bins]
    # Inverse focal loss, 1 + p, rewards certainty where the bin is underconfident.
    base = torch.where(gamma < 0, 2 - miss, miss)
    values = power_of_miss(base, gamma.abs(), least=0.0) * -softmax.label
    return reduce_entries(values, softmax, reduction)


class AdaFocalLoss(LossModule, function=adafocal_loss):
    """`adafocal_loss` whose exponents follow the calibration of the validation set.

    After each epoch call `note_validation(logits, target)` with each batch of the validation set,
    then `end_epoch()`. The noted confidences are cut into bins of equal size, and the exponent of a
    bin grows with its gap between mean confidence C and accuracy A:

        g <- g exp(rate (C - A)) for g > 0,   g exp(-rate (C - A)) for g < 0

    clipped to [gamma_min, gamma_max]; where |g| falls below `switch` it changes sign. Save the
    state dict with the checkpoint.

    Args:
        num_bins: B, number of bins.
        gamma: exponent of all bins in the first epoch, at least `switch`.
        gamma_min: least exponent, at most -switch.
        gamma_max: largest exponent, at least `gamma`.
        switch: where focal loss becomes inverse focal loss and back, above 0.
        rate: lambda, how fast exponents follow the gap, at least 0.

    Example:
        >>> loss = AdaFocalLoss(num_bins=1)
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
        >>> loss.note_validation(logits, torch.tensor([0, 1]))  # 88 % sure and half of them right
        >>> loss.end_epoch()
        >>> loss.gammas
        tensor([1.4635])

    Reference:
        Ghosh, Schaaf and Gormley 2022; defaults as released.

    Differs:
        Bins hold whole numbers of samples; the released code interpolates their edges, and its
        lowest bin leaves out the least confident sample.
    """

    takes_soft_targets: ClassVar[bool] = False
    is_of_single_entries: ClassVar[bool] = True
    gamma_min: float
    gamma_max: float
    switch: float
    rate: float
    gammas: Tensor
    edges: Tensor

    def __init__(
        self,
        *,
        num_bins: int = 15,
        gamma: float = 1.0,
        gamma_min: float = -2.0,
        gamma_max: float = 20.0,
        switch: float = 0.2,
        rate: float = 1.0,
        class_dim: int = 1,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(locals())
        check_integer("num_bins", num_bins, low=1)
        check_number("switch", switch, low=0.0, open_low=True)
        check_number("gamma", gamma, low=switch)
        check_number("gamma_max", gamma_max, low=gamma)
        check_number("gamma_min", gamma_min, high=-switch)
        check_number("rate", rate, low=0.0)
        self.register_buffer("gammas", torch.full((num_bins,), float(gamma)))
        self.register_buffer("edges", torch.arange(1, num_bins) / num_bins)
        self._noted: list[Tensor] = []

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return adafocal_loss(
            logits, target, gammas=self.gammas, edges=self.edges, **self._options()
        )

    @torch.no_grad()
    def note_validation(self, logits: Tensor, target: Tensor) -> None:
        """Note confidence and correctness of validation predictions, (N, C, ...) and (N, ...)."""
        entries = self.entries(logits, target, soft=False)
        softmax = entries.softmax(wants_predicted=True)
        rows = torch.stack([softmax.top.exp(), (softmax.predicted == entries.indices).to(logits)])
        valid = slice(None) if softmax.valid is None else softmax.valid.flatten()
        self._noted.append(rows.flatten(1)[:, valid].float().to(self.gammas.device))

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Move bins and exponents to what was noted; call it once after each epoch."""
        if not self._noted:
            raise RuntimeError(
                "AdaFocalLoss follows the validation set: call note_validation(logits, target) "
                "with its predictions before end_epoch()"
            )
        # All processes must move the same exponents, so each sees the whole validation set.
        confidence, correct = gather_columns(torch.cat(self._noted, 1))
        self._noted = []
        if not len(confidence):  # all entries were ignored
            return
        order = confidence.argsort(stable=True)
        gaps, _ = bin_means((confidence - correct)[order], len(self.gammas))
        moved = self.gammas * torch.exp(self.gammas.sign() * self.rate * gaps)
        # Near exponent 0 both losses are nearly cross entropy: the sign changes at little cost.
        turned = torch.where(moved.abs() < self.switch, -moved.sign() * self.switch, moved)
        self.gammas.copy_(turned.clamp(self.gamma_min, self.gamma_max))
        # The first sample of each bin but the lowest, rounded up as the bins are.
        bins = len(self.gammas)
        firsts = (torch.arange(1, bins, device=order.device) * len(order) + bins - 1) // bins
        self.edges.copy_(confidence[order][firsts.clamp(max=len(order) - 1)])


def _checked_edges(gammas: Tensor, edges: Tensor | None) -> Tensor:
    check_floating("gammas", gammas)
    edges = gammas.new_zeros(0) if edges is None else edges
    check_floating("edges", edges)
    if gammas.ndim != 1 or edges.shape != (len(gammas) - 1,):
        raise ValueError(
            "edges must hold one number less than gammas, where one bin ends and the next begins; "
            f"got edges of shape {tuple(edges.shape)} for gammas of shape {tuple(gammas.shape)}"
        )
    return edges
