"""All metrics of all bootstrap resamples at once: sums over samples as matrix products.

A resample is a row of weights, how often each unit was drawn. Every metric is a function of
weighted sums, so a thousand resamples are a few products (R, U) x (U, ...), and then the same
kernels that compute the metric of the whole sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.metrics.brier import squared_errors
from sfumato.metrics.calibration import error_of_bins
from sfumato.metrics.classwise import (
    class_bin_index,
    class_gaps,
    class_mass_gaps,
    class_mass_index,
)
from sfumato.metrics.confidence import (
    accuracy_of_groups,
    average_of_groups,
    overconfidence_of_groups,
    underconfidence_of_groups,
)
from sfumato.metrics.fine_cells import cell_edges, cell_index, cells_per_unit
from sfumato.metrics.histogram import Groups, group_by_value, mass_bins, width_bins
from sfumato.metrics.intervals import draw_in_parts
from sfumato.metrics.score_split import SCORES, split_of_losses, sum_losses
from sfumato.metrics.scored_samples import Samples, flat_rows, score
from sfumato.metrics.selective import (
    accuracy_at_coverage_of_groups,
    augrc_of_groups,
    aurc_of_groups,
)

_IMPOSSIBLE = -1e300


def metrics_of_groups(groups: Groups, num_bins: int) -> dict[str, Tensor]:
    """The metrics that need only confidence and correctness, each (...)."""
    bins = width_bins(groups, num_bins)
    return {
        "accuracy": accuracy_of_groups(groups),
        "ece": error_of_bins(bins, "l1"),
        "aece": error_of_bins(mass_bins(groups, num_bins), "l1"),
        "mce": error_of_bins(bins, "max"),
        "overconfidence": overconfidence_of_groups(groups),
        "underconfidence": underconfidence_of_groups(groups),
        "average_confidence": average_of_groups(groups),
        "aurc": aurc_of_groups(groups),
        "augrc": augrc_of_groups(groups),
        "accuracy_at_80": accuracy_at_coverage_of_groups(groups, 0.8),
    }


class Evaluation:
    """Predictions ready to be measured, whole or resampled.

    Args:
        predictions: logits or probabilities, (N, C) or (N, C, d1, ...).
        target: class indices, (N,) or (N, d1, ...).
        from_logits: what `predictions` are.
        num_bins: bins of the calibration errors.
        ignore_index: label of entries that count for nothing.
        validate: check the values.
        splits: also what takes many passes: NLL and Brier score split into calibration and
            refinement, and the classwise ACE.
    """

    def __init__(
        self,
        predictions: Tensor,
        target: Tensor,
        *,
        from_logits: bool,
        num_bins: int,
        ignore_index: int,
        validate: bool,
        splits: bool = False,
    ) -> None:
        self.num_bins = num_bins
        self.samples = score(
            predictions,
            target,
            from_logits=from_logits,
            ignore_index=ignore_index,
            validate=validate,
        )
        self.rows, self.labels = flat_rows(
            predictions,
            target,
            from_logits=from_logits,
            ignore_index=ignore_index,
            validate=False,
        )
        self.splits = splits
        # Of logits the parts are exact where a probability is too small for its precision.
        self.scores = self.rows
        if splits and from_logits:
            self.scores, _ = flat_rows(
                predictions,
                target,
                from_logits=True,
                ignore_index=ignore_index,
                validate=False,
                softmax=False,
            )
        self.from_logits = from_logits
        self.one_each = target.ndim == 1
        self.unit = self._units(target, ignore_index)
        self.num_units = len(self.labels) if self.one_each else len(target)

    def _units(self, target: Tensor, ignore_index: int) -> Tensor:
        """What is drawn together: the sample, or for dense predictions the whole image."""
        if self.one_each:
            return torch.arange(len(self.labels), device=target.device)
        image = torch.arange(len(target), device=target.device)
        image = image.view(-1, *[1] * (target.ndim - 1)).expand_as(target)
        return image[target.long() != ignore_index]

    def measure(self) -> dict[str, float]:
        """Every metric of the whole sample."""
        numbers = metrics_of_groups(group_by_value(self.samples), self.num_bins)
        numbers["nll"] = -self.samples.log_likelihood.double().mean()
        numbers["brier"] = squared_errors(self.rows, self.labels).mean()
        gaps = class_gaps(self.rows, self.labels, self.num_bins)
        total = torch.tensor(float(len(self.labels)))
        numbers["classwise_ece"] = gaps.abs().sum() / total / len(gaps)
        if self.splits:
            gaps = class_mass_gaps(self.rows, self.labels, self.num_bins)
            numbers["classwise_ace"] = gaps.abs().sum() / total / len(gaps)
            numbers |= _parts(self.sum_losses(None, 1)[0] / total)
        return {name: float(value) for name, value in numbers.items()}

    def sum_losses(self, unit: Tensor | None, num_units: int) -> Tensor:
        """`sum_losses` of `score_split`, (U, 2, 33)."""
        return sum_losses(
            self.scores,
            self.labels,
            are_logits=self.from_logits,
            unit=unit,
            num_units=num_units,
        )

    def resample(self, resamples: int, *, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Every metric of every resample, (R,) each.

        Two evaluations of the same samples see the same resamples if their generators start
        from the same state.
        """
        sums = _UnitSums(self)
        weights = draw_in_parts(
            self.num_units, resamples, generator=generator, device=self.labels.device
        )
        parts = [sums.measure(part) for part in weights]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class _UnitSums:
    """Sums over each unit, from which the sums over any resample are one product away."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.num_bins = evaluation.num_bins
        self.unit, self.num_units = evaluation.unit, evaluation.num_units
        self.one_each = evaluation.one_each
        self._group(evaluation.samples)
        unit = None if evaluation.one_each else evaluation.unit
        self.scores = ScoreSums(evaluation, unit, evaluation.num_units)

    def _group(self, samples: Samples) -> None:
        """Groups of equal confidence; of one fine cell where units are images of many pixels."""
        if self.one_each:
            known = samples.confidence.nan_to_num(nan=0.0)
            self.upper, member = torch.unique(known, return_inverse=True)
            self.values = self.upper.double()
        else:
            cells = cells_per_unit(self.num_bins)
            confidence = samples.confidence.double()
            cell = cell_index(confidence, cells, dtype=samples.confidence.dtype)
            seen, member, count = torch.unique(cell, return_inverse=True, return_counts=True)
            self.upper = cell_edges(cells, cell.device)[seen + 1]
            sums = confidence.new_zeros(len(seen)).index_add_(0, member, confidence)
            self.values = sums / count
        shape, correct = (len(self.upper), self.num_units), samples.correct.double()
        self.count = sparse(member, self.unit, torch.ones_like(correct), shape)
        self.correct = sparse(member, self.unit, correct, shape)

    def measure(self, weights: Tensor) -> dict[str, Tensor]:
        """Every metric of the resamples `weights`, (R,) each."""
        drawn = weights.T.contiguous()  # (U, R)
        count, correct = (
            torch.sparse.mm(m, drawn).T.contiguous() for m in (self.count, self.correct)
        )
        groups = Groups(count, correct, count * self.values, correct * self.values, self.upper)
        return {**metrics_of_groups(groups, self.num_bins), **self.scores.measure(weights)}


class ScoreSums:
    """Sums over each unit for the metrics that need more than the confidence.

    Args:
        evaluation: the predictions.
        unit: what each sample belongs to, (M,); None where every sample is a unit of its own.
        num_units: number of units U.
    """

    def __init__(self, evaluation: Evaluation, unit: Tensor | None, num_units: int) -> None:
        self.num_bins, self.num_units = evaluation.num_bins, num_units
        # An infinite loss times a weight of zero would be NaN.
        likelihood = evaluation.samples.log_likelihood.double().clamp(min=_IMPOSSIBLE)
        brier = squared_errors(evaluation.rows, evaluation.labels)
        scores = torch.stack([torch.ones_like(brier), likelihood, brier], 1)
        self.scores = self._by_unit(scores, unit)  # (U, 3)
        self._class_bins(evaluation.rows, evaluation.labels, unit)
        self.losses: Tensor | None = None
        if evaluation.splits:
            places = torch.arange(num_units, device=brier.device) if unit is None else unit
            self.losses = evaluation.sum_losses(places, num_units).flatten(1)  # (U, 66)
            self.mass_gaps = _mass_gaps(evaluation, places, num_units)

    def measure(self, weights: Tensor) -> dict[str, Tensor]:
        """nll, brier, their parts and the classwise errors of the resamples, (R,) each."""
        total, likelihood, brier = (weights @ self.scores).unbind(1)
        parts: dict[str, Tensor] = {}
        if self.losses is not None:
            losses = weights @ self.losses / total.unsqueeze(1)
            gaps = (weights.to(self.mass_gaps.dtype) @ self.mass_gaps).abs_().sum(1).double()
            classes = self.class_total.shape[1]
            parts = {
                **_parts(losses.unflatten(1, (2, -1))),
                "classwise_ace": gaps / total / classes,
            }
        return {
            **parts,
            "nll": torch.where(likelihood > _IMPOSSIBLE / 2, -likelihood / total, torch.inf),
            "brier": brier / total,
            "classwise_ece": self._classwise(weights) / total,
        }

    def _class_bins(self, rows: Tensor, labels: Tensor, unit: Tensor | None) -> None:
        """Gaps of each class in each bin above the first; the first follows from the total.

        With many classes nearly all probabilities are in the first bin, so this is sparse.
        """
        gap = rows.double()
        gap = gap.scatter_add(1, labels.unsqueeze(1), -torch.ones_like(gap[:, :1]))
        self.class_total = self._by_unit(gap, unit)  # (U, C)
        member = class_bin_index(rows, self.num_bins)
        sample, column = ((member % self.num_bins) > 0).nonzero(as_tuple=True)
        self.class_gap = sparse(
            member[sample, column],
            sample if unit is None else unit[sample],
            gap[sample, column],
            (rows.shape[1] * self.num_bins, self.num_units),
        )

    def _by_unit(self, values: Tensor, unit: Tensor | None) -> Tensor:
        if unit is None:
            return values
        return values.new_zeros(self.num_units, values.shape[1]).index_add_(0, unit, values)

    def _classwise(self, weights: Tensor) -> Tensor:
        drawn = weights.T.contiguous()  # (U, R)
        above = torch.sparse.mm(self.class_gap, drawn).view(-1, self.num_bins, drawn.shape[1])
        first = (weights @ self.class_total).T - above.sum(1)  # (C, R)
        return (above.abs().sum(1) + first.abs()).mean(0)


def _mass_gaps(evaluation: Evaluation, unit: Tensor, num_units: int) -> Tensor:
    """Sums of p - 1[y = c] over each unit, class and equal-mass bin, (U, C B), float32.

    The edges of the bins stay those of the whole sample, so that a resample is one product.
    """
    rows, labels = evaluation.rows, evaluation.labels
    size = rows.shape[1] * evaluation.num_bins
    gaps = torch.zeros(num_units * size, dtype=torch.float32, device=rows.device)
    if len(rows):
        values = rows.float()
        values = values.scatter_add(1, labels.unsqueeze(1), -torch.ones_like(values[:, :1]))
        member = class_mass_index(rows, evaluation.num_bins) + unit.unsqueeze(1) * size
        gaps.index_add_(0, member.flatten(), values.flatten())
    return gaps.view(num_units, size)


def _parts(losses: Tensor) -> dict[str, Tensor]:
    """Calibration and refinement of both scores, of mean losses (..., 2, 33)."""
    found: dict[str, Tensor] = {}
    for name, each in zip(SCORES, losses.unbind(-2), strict=True):
        parts = split_of_losses(each)
        found[f"{name}_calibration"] = parts.calibration
        found[f"{name}_refinement"] = parts.refinement
    return found


def sparse(row: Tensor, column: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Sparse matrix in which entries of the same place add up."""
    indices = torch.stack([row, column])
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False).coalesce()
