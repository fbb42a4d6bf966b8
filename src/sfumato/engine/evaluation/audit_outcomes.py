"""What an audit needs of each prediction: how sure, whether right, how likely the label."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfumato.engine.runs.prediction_rows import AnyPredictions, ConfidenceFile, PredictionFile
from sfumato.metrics.scored_samples import Samples, score


class Outcomes(NamedTuple):
    """One entry for each prediction that counts.

    Args:
        confidence: probability of the predicted class.
        correct: whether the predicted class is the label.
        log_likelihood: of the label; None where only confidences are known.
        squared_error: distance from the one-hot label; None where only confidences are known.
        predicted: number of the predicted class; None where it is unknown.
        label: number of the true class; None where it is unknown.
        unit: what is independent of other units: None for each prediction, else its image.
        row: position of the prediction in its file.
        place: position of the label map that a pixel is of; None where each row is a prediction.
    """

    confidence: Tensor
    correct: Tensor
    log_likelihood: Tensor | None
    squared_error: Tensor | None
    predicted: Tensor | None
    label: Tensor | None
    unit: Tensor | None
    row: Tensor
    place: Tensor | None = None

    def samples(self) -> Samples:
        """As the metrics take them; a likelihood that is unknown is 0."""
        likelihood = self.log_likelihood
        if likelihood is None:
            likelihood = torch.zeros_like(self.confidence)
        return Samples(self.confidence, self.correct, likelihood)


def outcomes(file: AnyPredictions) -> Outcomes:
    """Of all predictions of a file that was read, and so is valid."""
    if isinstance(file, ConfidenceFile):
        rows = torch.arange(len(file)) if file.rows is None else file.rows
        unit = units_of(file)
        return Outcomes(file.confidence, file.correct, None, None, file.predicted, None, unit, rows)
    return _of_distributions(file)


def units_of(file: ConfidenceFile) -> Tensor | None:
    """Number of the image of each prediction, (N,); None where no image has several.

    Of predictions without labels nothing is known that images could share.
    """
    if file.images is None or not file.is_labelled:
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(file.images))}
    if len(numbers) == len(file):
        return None
    return torch.tensor([numbers[name] for name in file.images])


def _of_distributions(file: PredictionFile) -> Outcomes:
    values, labels = file.predictions, file.labels
    rows = torch.arange(len(file)) if file.rows is None else file.rows
    place = None
    if values.ndim == 2 and values.stride(0) == 1 and len(values) > 1:
        # A plane for each class, as tables are read: seen as one image of N pixels.
        values, labels = values.T.unsqueeze(0), labels.unsqueeze(0)
    elif values.ndim > 2:
        place = torch.arange(len(labels)).view(-1, *[1] * (labels.ndim - 1)).expand_as(labels)
    from_logits = file.logits is not None
    found = score(values, labels, from_logits=from_logits, ignore_index=file.void, validate=False)
    probs = values.softmax(1) if from_logits else values
    counts = labels != file.void
    chosen = slice(None) if bool(counts.all()) else counts.flatten()
    label = labels.flatten()[chosen]
    place = None if place is None else place.flatten()[chosen]
    squares = probs.square().sum(1).flatten()[chosen]
    return Outcomes(
        confidence=found.confidence.clamp(max=1),  # sums may be off by a rounding
        correct=found.correct,
        log_likelihood=found.log_likelihood,
        squared_error=squares.sub_(found.log_likelihood.exp(), alpha=2).add_(1),
        predicted=_predicted(values, label, found.correct, chosen),
        label=label,
        unit=place,
        row=rows if place is None else rows[place],
        place=place,
    )


def _predicted(values: Tensor, label: Tensor, correct: Tensor, chosen: slice | Tensor) -> Tensor:
    """The first class with the largest value, of each entry that counts, (M,).

    Where a prediction is right that is the label, so only the wrong ones are looked at again.
    """
    wrong = (~correct).nonzero().flatten()
    rows = values.movedim(1, 0).flatten(1)  # (C, entries)
    rows = rows[:, wrong] if isinstance(chosen, slice) else rows[:, chosen][:, wrong]
    top = rows.amax(0)
    first = torch.zeros_like(wrong)
    for number in range(len(rows) - 1, -1, -1):  # passes: `argmax` over this axis is far slower
        first.masked_fill_(rows[number] == top, number)
    return label.index_put((wrong,), first)
