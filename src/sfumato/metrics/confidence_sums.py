"""A confidence histogram of fixed size, as sums: add samples, add up sums, read groups.

Counts and sums of confidences of every fine cell, apart for wrong and correct predictions, and the
log likelihood with its square: 0.5 MB however many predictions come. Sums of parts add up to the
sums of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.metrics.fine_cells import cell_edges, cell_index, cell_lines, num_cells
from sfumato.metrics.histogram import Groups
from sfumato.metrics.scored_samples import Samples
from sfumato.ops.histogram import can_deposit, deposit


def empty_sums(cells: int) -> Tensor:
    """(2 G + 1, 2) zeros, for `cells` as given by `cells_per_unit`."""
    return torch.zeros(2 * num_cells(cells) + 1, 2, dtype=torch.float64)


def add_samples(sums: Tensor, samples: Samples, cells: int) -> None:
    """Add predictions to their cells, in place.

    Raises:
        ValueError: a confidence is NaN.
    """
    if can_deposit(samples.confidence, sums):
        lines = cell_lines(cells, samples.confidence.dtype)
        deposit(*samples, slope=lines.slope, start=lines.start, sums=sums)
        return
    if lost := int(samples.confidence.isnan().sum()):
        raise ValueError(
            f"confidences must be numbers in [0, 1], got NaN or less than 0 for {lost} of them"
        )
    confidence, likelihood = samples.confidence.double(), samples.log_likelihood.double()
    cell = cell_index(confidence, cells, dtype=samples.confidence.dtype)
    cell = torch.add(samples.correct, cell, alpha=2)
    # Count and confidence as one complex number: one pass over the cells instead of two.
    pairs = torch.complex(torch.ones_like(confidence), confidence)
    torch.view_as_complex(sums).index_add_(0, cell, pairs)
    sums[-1, 0].add_(likelihood.sum())
    sums[-1, 1].add_(likelihood.dot(likelihood))


def groups_of_sums(sums: Tensor, cells: int) -> Groups:
    """The cells that hold predictions, ascending, as the exact functions see them."""
    table = _table(sums)
    seen = table[:, :, 0].sum(1) > 0
    upper = cell_edges(cells, table.device)[1:]
    (wrong, wrong_sum), (correct, correct_sum) = table[seen].permute(1, 2, 0)
    return Groups(wrong + correct, correct, wrong_sum + correct_sum, correct_sum, upper[seen])


def counts_of_sums(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Wrong and correct predictions in every cell, empty ones too, (G,) each."""
    wrong, correct = _table(sums)[:, :, 0].unbind(1)
    return wrong, correct


def _table(sums: Tensor) -> Tensor:
    """(G, wrong or correct, count or confidence)."""
    return sums[:-1].view(-1, 2, 2)


def resample_groups(groups: Groups, resamples: int, generator: torch.Generator | None) -> Groups:
    """Counts drawn anew, (R, G), Poisson; confidences follow at the means of their cells."""
    wrong, correct = groups.wrong, groups.correct
    mean_wrong = (groups.confidence - groups.confidence_correct) / wrong.clamp(min=1)
    mean_correct = groups.confidence_correct / correct.clamp(min=1)
    new_wrong = torch.poisson(wrong.expand(resamples, -1), generator=generator)
    new_correct = torch.poisson(correct.expand(resamples, -1), generator=generator)
    confidence_correct = new_correct * mean_correct
    return Groups(
        count=new_wrong + new_correct,
        correct=new_correct,
        confidence=new_wrong * mean_wrong + confidence_correct,
        confidence_correct=confidence_correct,
        upper=groups.upper,
    )
