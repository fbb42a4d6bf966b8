"""CaPE-bin: confidences are trained towards the empirical accuracy of their bin.

Reference: Liu et al., "Deep Probability Estimation", ICML 2022; compared with in the ACLS
supplement, Table B: samples are assigned to bins by confidence, and the accuracy of a bin is the
target of its members.
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
from sfumato.labels.correctness import check_index, check_one_index_each, gather_columns
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

    with p_top the probability of the predicted class and a_n the accuracy. The least value is the
    entropy of a_n, reached at p_top = a_n; log(1 - p_top) comes from the other logits, so that
    certain predictions keep a finite value and gradient.

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets; tells only which entries are ignored.
        accuracy: (N, d1, ...) in [0, 1], NaN where none is known yet: those entries contribute 0.
        class_dim, ignore_index: dimension of the classes in `logits`; class index to skip.
        reduction: "mean" of the entries that are not skipped, "sum" or "none".

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> cape_penalty(logits, torch.tensor([0]), torch.tensor([0.7]))
        tensor(0.7269)

    Reference:
        ACLS supplement, section S3; bins and cross entropy as released.

    Differs:
        The released code is binary (probability of class 1, share of class 1 in the bin); with
        C classes the event is "the prediction is right", as the supplement describes it.
    """
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    accuracy = _checked_accuracy(accuracy, entries)
    plain = entries.plain()
    return reduce_entries(_penalty(plain, accuracy), plain, reduction)


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
        logits: (N, C) or (N, C, d1, ...).
        target: class indices (N, d1, ...) or soft targets shaped like `logits`.
        accuracy: (N, d1, ...) in [0, 1], NaN where none is known yet.
        weight: of the penalty.
        class_dim, ignore_index: dimension of the classes in `logits`; class index to skip.
        reduction: "mean" of the entries that are not skipped, "sum" or "none".

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> cape_loss(logits, torch.tensor([0]), torch.tensor([0.7]))
        tensor(0.8539)

    Reference:
        ACLS supplement, Table B.

    Differs:
        The released code alternates, one epoch of the penalty alone in every six and cross
        entropy in the others; call `cape_penalty` in those epochs for that schedule.
    """
    check_number("weight", weight, low=0.0)
    entries = prepare_entries(logits, target, class_dim, ignore_index)
    accuracy = _checked_accuracy(accuracy, entries)
    plain = entries.plain()
    return reduce_entries(_loss_values(plain, accuracy, weight), plain, reduction)


class BinAccuracy(KeepsPrecision):
    """The accuracy of each training sample's confidence bin, for `cape_loss`.

    `record` notes confidence and correctness of samples; `refresh` sorts all that are noted by
    confidence, cuts them into bins of equal size and gives every member the accuracy of its bin.
    All of it is in buffers and so in the state dict; under torch.distributed every process notes
    what all processes saw.

    Args:
        num_samples: size of the training set.
        num_bins: number of bins; 10 as released.
        gathers: whether `record` notes what all processes saw. False where each process is handed
            the samples of all.

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

    def __init__(self, num_samples: int, *, num_bins: int = 10, gathers: bool = True) -> None:
        super().__init__()
        check_integer("num_samples", num_samples, low=1)
        check_integer("num_bins", num_bins, low=1)
        self.num_bins = num_bins
        self.gathers = gathers
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
        bins = torch.arange(len(order), device=order.device) * self.num_bins // max(1, len(order))
        correct = self.corrects[order]
        total = correct.new_zeros(self.num_bins).index_add(0, bins, correct)
        members = torch.bincount(bins, minlength=self.num_bins).clamp(min=1)
        self.accuracies[order] = (total / members)[bins]

    def end_epoch(self) -> None:
        """Refresh; a training loop calls it once after each epoch."""
        self.refresh()

    def accuracy(self, index: Tensor) -> Tensor:
        """Accuracy of the bin of each sample, NaN before the first `refresh` that knew it."""
        check_index(index, len(self.accuracies))
        return self.accuracies[index.to(self.accuracies.device, torch.long)]


class CaPELoss(LossModule):
    """`cape_loss` with its own `BinAccuracy`; call it with the data set indices of the batch.

    In training mode each call notes confidence and correctness of its samples, after the accuracies
    of their bins were read. Call `loss.bins.end_epoch()` after each epoch, and save the state dict
    with the checkpoint. Plain cross entropy in the first epoch.

    Args:
        num_samples: size of the training set.
        num_bins: number of bins.
        weight: of the penalty.
        class_dim, ignore_index: dimension of the classes in `logits`; class index to skip.
        reduction: "mean" of the entries that are not skipped, "sum" or "none".

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
        accuracy = _checked_accuracy(known, entries)
        plain = entries.plain()
        if self.training:
            self._record(plain, entries, index)
        values = _loss_values(plain, accuracy, self.weight)
        return reduce_entries(values, plain, self.reduction)

    def _record(self, plain: PlainSoftmax, entries: Entries, index: Tensor) -> None:
        log_top, predicted = plain.log_probs.detach().max(1)
        right, index = predicted == entries.indices, index.to(predicted.device)
        confidence = log_top.exp()
        # NaN says "no news": the ignored entry keeps what an earlier batch noted.
        if plain.valid is not None:
            confidence = confidence.where(plain.valid, torch.nan)
        self.bins.record(index, confidence, right)


def _loss_values(plain: PlainSoftmax, accuracy: Tensor, weight: float) -> Tensor:
    return weight * _penalty(plain, accuracy) - plain.label


def _penalty(plain: PlainSoftmax, accuracy: Tensor) -> Tensor:
    """The distance of the confidence from the accuracy."""
    log_top, predicted = plain.log_probs.max(1, keepdim=True)
    others = plain.log_probs.scatter(1, predicted, -torch.inf)
    # Relative to the second class: logsumexp of huge negative numbers has a coarse gradient.
    second = others.detach().amax(1, keepdim=True)
    log_rest = (others - second).logsumexp(1) + second.squeeze(1)  # log(1 - p_top)
    # NaN times 0 is NaN, so unknown accuracies are replaced before they are masked.
    known = ~accuracy.isnan()
    share = torch.where(known, accuracy, torch.zeros_like(accuracy))
    return -(share * log_top.squeeze(1) + (1 - share) * log_rest) * known


def _checked_accuracy(accuracy: Tensor, entries: Entries) -> Tensor:
    return checked_for_each("accuracy", accuracy, entries, hint="Pass bins.accuracy(index)")
