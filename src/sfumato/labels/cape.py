"""CaPE-bin: confidences are trained towards the empirical accuracy of their bin.

Reference: Liu et al., "Deep Probability Estimation", ICML 2022; ACLS supplement, Table B.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sfumato._core.checks import (
    KeepsPrecision,
    check_integer,
    check_number,
    to_float64,
)
from sfumato.labels._entries import (
    Entries,
    LossModule,
    Reduction,
    checked_for_each,
    prepare_entries,
    reduce_entries,
)
from sfumato.labels.correctness import bin_means, check_index, check_one_index_each, gather_columns
from sfumato.ops.softmax import PlainSoftmax


def cape_penalty(
    logits: Tensor,
    target: Tensor,
    accuracy: Tensor,
    *,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy between each confidence and the empirical accuracy of its bin.

        L_n = -a_n log p_top - (1 - a_n) log(1 - p_top)

    with p_top the probability of the predicted class and a_n the accuracy; the least value is at
    p_top = a_n. log(1 - p_top) comes from the other logits, which keeps it finite.

    Args:
        target: class indices (N, d1, ...) or soft targets; tells only which entries are ignored.
        accuracy: (N, d1, ...) in [0, 1], NaN where none is known yet: those entries contribute 0.
        logits, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> cape_penalty(logits, torch.tensor([0]), torch.tensor([0.7]))
        tensor(0.7269)

    Reference:
        ACLS supplement, section S3; bins and cross entropy as released.

    Differs:
        The released code is binary; with C classes the event is "the prediction is right", as the
        supplement describes it.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    plain = entries.plain()
    return reduce_entries(_penalty(plain, entries, accuracy), plain, reduction)


def cape_loss(
    logits: Tensor,
    target: Tensor,
    accuracy: Tensor,
    *,
    weight: float = 1.0,
    class_dim: int = 1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross entropy plus `weight` times `cape_penalty`.

    Args:
        accuracy: as in `cape_penalty`.
        weight: of the penalty.
        logits, target, class_dim, ignore_index, reduction: as in `cross_entropy_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> cape_loss(logits, torch.tensor([0]), torch.tensor([0.7]))
        tensor(0.8539)

    Reference:
        ACLS supplement, Table B.

    Differs:
        The released code has the penalty alone in one epoch of six and cross entropy in the others.
    """
    check_number("weight", weight, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    plain = entries.plain()
    return reduce_entries(
        weight * _penalty(plain, entries, accuracy) - plain.label, plain, reduction
    )


class BinAccuracy(KeepsPrecision):
    """The accuracy of each training sample's confidence bin, for `cape_loss`.

    `record` notes confidence and correctness of samples; `refresh` sorts them by confidence, cuts
    them into bins of equal size and gives every member the accuracy of its bin. All of it is in
    buffers, and the same in every process.

    Args:
        num_samples: size of the training set.
        num_bins: number of bins; 10 as released.

    Example:
        >>> bins = BinAccuracy(4, num_bins=2)
        >>> confidence = torch.tensor([0.6, 0.9, 0.5, 0.8])
        >>> bins.record(torch.arange(4), confidence, torch.tensor([True, True, False, True]))
        >>> bins.refresh()
        >>> bins.accuracy(torch.arange(4))
        tensor([0.5000, 1.0000, 0.5000, 1.0000])

    Reference:
        Liu et al. 2022, as released: equal-mass bins over the whole training set.
    """

    confidences: Tensor
    corrects: Tensor
    accuracies: Tensor

    def __init__(self, num_samples: int, *, num_bins: int = 10) -> None:
        super().__init__()
        check_integer("num_samples", num_samples, low=1)
        check_integer("num_bins", num_bins, low=1)
        self.num_bins = num_bins
        self.gathers = True  # False where each process is handed the samples of all
        for name in ("confidences", "corrects", "accuracies"):
            self.register_buffer(name, torch.full((num_samples,), torch.nan))

    @torch.no_grad()
    def record(self, index: Tensor, confidence: Tensor, correct: Tensor) -> None:
        """Note the confidence in [0, 1] and the correctness of the samples `index`.

        A sample whose confidence is NaN keeps what was noted before.
        """
        check_index(index, len(self.confidences))
        if not confidence.shape == correct.shape == index.shape:
            raise ValueError(
                f"confidence and correct must have the shape of index {tuple(index.shape)}, "
                f"got {tuple(confidence.shape)} and {tuple(correct.shape)}"
            )
        columns = [index.flatten(), confidence.flatten(), correct.flatten()]
        device = self.confidences.device
        # float64 holds every index exactly.
        batch = torch.stack([to_float64(column.to(device)) for column in columns])
        index, confidence, correct = gather_columns(batch) if self.gathers else batch
        place, is_known = index.long().to(device), ~confidence.isnan().to(device)
        for noted, values in ((self.confidences, confidence), (self.corrects, correct)):
            noted[place] = values.to(noted).where(is_known, noted[place])

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the accuracies from what is recorded; samples never recorded stay unknown."""
        known = (~self.confidences.isnan()).nonzero().squeeze(1)
        order = known[self.confidences[known].argsort(stable=True)]
        means, bins = bin_means(self.corrects[order], self.num_bins)
        self.accuracies[order] = means[bins]

    def end_epoch(self) -> None:
        """Refresh; a training loop calls it once after each epoch."""
        self.refresh()

    def accuracy(self, index: Tensor) -> Tensor:
        """Accuracy of the bin of each sample, NaN before the first `refresh` that knew it."""
        check_index(index, len(self.accuracies))
        return self.accuracies[index.to(self.accuracies.device, torch.long)]


class CaPELoss(LossModule):
    """`cape_loss` with its own `BinAccuracy`; call it with the data set indices of the batch.

    In training mode each call reads the accuracies of the samples' bins, then notes confidence and
    correctness. Call `loss.bins.end_epoch()` after each epoch, and save the state dict with the
    checkpoint. Plain cross entropy in the first epoch.

    Args:
        num_samples: size of the training set.
        num_bins: number of bins.
        weight: of the penalty.

    Example:
        >>> loss = CaPELoss(num_samples=2, num_bins=1)
        >>> logits, target = torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
        >>> loss(logits, target, torch.tensor([0, 1]))  # cross entropy
        tensor(0.7201)
        >>> loss.bins.end_epoch()
        >>> loss.bins.accuracy(torch.tensor([0, 1]))  # one of two is right
        tensor([0.5000, 0.5000])
    """

    takes_soft_targets: ClassVar[bool] = False
    weight: float

    def __init__(
        self,
        num_samples: int,
        *,
        num_bins: int = 10,
        weight: float = 1.0,
        class_dim: int = 1,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(locals())
        check_number("weight", weight, low=0.0)
        self.bins = BinAccuracy(num_samples, num_bins=num_bins)

    def forward(  # type: ignore[override]  # a history needs the samples' indices
        self, logits: Tensor, target: Tensor, index: Tensor
    ) -> Tensor:
        """Args: logits (N, C, ...), class indices (N, ...), data set indices shaped like them."""
        entries = self.entries(logits, target, soft=False)
        known = self.bins.accuracy(index)
        check_one_index_each(index, entries.shape)
        plain = entries.plain()
        if self.training:
            self._record(plain, entries, index)
        values = self.weight * _penalty(plain, entries, known) - plain.label
        return reduce_entries(values, plain, self.reduction)

    def _record(self, plain: PlainSoftmax, entries: Entries, index: Tensor) -> None:
        log_top, predicted = plain.log_probs.detach().max(1)
        right, index = predicted == entries.indices, index.to(predicted.device)
        confidence = log_top.exp()
        # NaN says "no news": the ignored entry keeps what an earlier batch noted.
        if plain.valid is not None:
            confidence = confidence.where(plain.valid, torch.nan)
        self.bins.record(index, confidence, right)


def _penalty(plain: PlainSoftmax, entries: Entries, accuracy: Tensor) -> Tensor:
    """The distance of the confidence from the accuracy."""
    hint = "Pass bins.accuracy(index)"
    accuracy = checked_for_each("accuracy", accuracy, entries, hint=hint)
    log_top, predicted = plain.log_probs.max(1, keepdim=True)
    others = plain.log_probs.scatter(1, predicted, -torch.inf)
    # Relative to the second class: logsumexp of huge negative numbers has a coarse gradient.
    second = others.detach().amax(1, keepdim=True)
    log_rest = (others - second).logsumexp(1) + second.squeeze(1)  # log(1 - p_top)
    # NaN times 0 is NaN, so unknown accuracies are replaced before they are masked.
    known = ~accuracy.isnan()
    share = torch.where(known, accuracy, torch.zeros_like(accuracy))
    return -(share * log_top.squeeze(1) + (1 - share) * log_rest) * known
