"""Predict and measure every pixel, frame by frame and in constant memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import float64_device, to_float64, to_float64_device
from sfumato._core.files import write_atomically
from sfumato._core.statistics import bin_index
from sfumato._core.text import Bar
from sfumato.augment import Sample
from sfumato.data import ArrayDataset, TensorLoader
from sfumato.engine.config.sections import TemporalConfig
from sfumato.engine.evaluation.context import Context, LogProbabilities, log_probabilities
from sfumato.engine.fabric import Fabric
from sfumato.engine.training.predict import predict_batches, sum_over_processes
from sfumato.metrics import confidence_map
from sfumato.metrics.calibration import error_of_bins
from sfumato.metrics.evaluate import check_resampling, draw_weights, intervals_of
from sfumato.metrics.groups import Groups, mass_bins, score
from sfumato.metrics.scores import (
    accuracy_at_coverage_of_groups,
    augrc,
    aurc,
)
from sfumato.predictions import MCDropout, TemporalSmoother

NO_VOID = -100

# Cells of the ranking: confidences by -log(1 - p), which tells .9999 from .99999, in steps of 1/16.
RANKS = 256
RANKS_PER_UNIT = 16


@dataclass
class PixelSums:
    """Sums of dense predictions, a row for each unit that resamples draw as a whole."""

    num_classes: int
    # Left out of `foreground_ece`, which is not measured without any.
    background: tuple[int, ...] = ()
    void: int = NO_VOID
    num_bins: int = 15
    rows: dict[int, Tensor] = field(default_factory=dict)
    _last: tuple[int, Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """Number of sums in a row."""
        return sum(self._parts)

    @property
    def _parts(self) -> list[int]:
        """Lengths of the parts of a row: likelihood, bins, ranks, confusion, frames."""
        bins, ranks = 3 * self.num_bins, 3 * RANKS
        return [1, bins, bins, ranks, ranks, self.num_classes**2, 4]

    def add(self, logits: Tensor, labels: Tensor, unit: int = 0) -> None:
        """Add frames (N, C, H, W) with labels (N, H, W) to a unit."""
        logits, labels = to_float64_device(logits), to_float64_device(labels)
        found = score(logits, labels, from_logits=True, ignore_index=self.void)
        known = labels != self.void
        target, predicted = labels[known], logits.argmax(1)[known]
        foreground = ~torch.isin(target, labels.new_tensor(self.background))
        pairs = target * self.num_classes + predicted
        parts = (
            -found.log_likelihood.double().sum().reshape(1),
            self._bins(found.confidence, found.correct),
            self._bins(found.confidence[foreground], found.correct[foreground]),
            _ranks(found.confidence, found.correct),
            _ranks(found.confidence[foreground], found.correct[foreground]),
            torch.bincount(pairs, minlength=self.num_classes**2).double(),
            torch.zeros(4, device=logits.device, dtype=torch.float64),
        )
        row = torch.cat(parts).cpu()
        self.rows[unit] = self.rows[unit] + row if unit in self.rows else row

    def add_frame(self, logits: Tensor, labels: Tensor, unit: int, stream: int | None) -> None:
        """Add one frame (1, C, H, W), and compare it with the one before of the same stream."""
        self.add(logits, labels, unit)
        if stream is None:
            return
        predicted = logits.argmax(1)
        if self._last is not None and self._last[0] == stream:
            _, before, labels_before = self._last
            known = (labels != self.void) & (labels_before != self.void)
            same = (labels == labels_before) & known
            agree = predicted == before
            counts = [int(agree.sum()), agree.numel(), int(same.sum()), int(known.sum())]
            self.rows[unit][-4:] += torch.tensor(counts)
        self._last = (stream, predicted, labels)

    def as_dict(self) -> dict[str, list[float]]:
        return {str(unit): row.tolist() for unit, row in self.rows.items()}

    def restore(self, rows: Mapping[str, Sequence[float]]) -> PixelSums:
        self.rows = {
            int(unit): torch.tensor(row, dtype=torch.float64) for unit, row in rows.items()
        }
        return self

    def total(self) -> Tensor:
        return torch.stack(list(self.rows.values())).sum(0)

    def measure(self, sums: Tensor) -> dict[str, Tensor]:
        """Every metric for sums (..., K); NaN where there is nothing to measure.

        Those of the ranking hold up to the order inside its cells. `consistency`, Eq. (38) for
        every pixel, is the share that keeps the class of the frame before; `label_consistency`
        that of the labels, which a perfect prediction would have.
        """
        parts = sums.split(self._parts, -1)
        nll, every, foreground, ranks, foreground_ranks, confusion, frames = parts
        matrix = confusion.unflatten(-1, (self.num_classes, self.num_classes))
        overlap, total = matrix.diagonal(dim1=-2, dim2=-1), confusion.sum(-1)
        iou = overlap / (matrix.sum(-1) + matrix.sum(-2) - overlap)
        found = {
            "accuracy": overlap.sum(-1) / total,
            "nll": nll[..., 0] / total,
            "ece": self._ece(every),
            "aece": self._aece(ranks),
            "mean_iou": iou.nanmean(-1),
            "aurc": aurc.of_groups(_groups(ranks)),
            "augrc": augrc.of_groups(_groups(ranks)),
            "accuracy_at_80": accuracy_at_coverage_of_groups(_groups(ranks), 0.8),
            "consistency": frames[..., 0] / frames[..., 1],  # Eq. (38)
            "label_consistency": frames[..., 2] / frames[..., 3],
        }
        if self.background:
            found["foreground_ece"] = self._ece(foreground)
            found["foreground_aece"] = self._aece(foreground_ranks)
        return found

    def resample(self, resamples: int, *, generator: torch.Generator) -> dict[str, Tensor]:
        """Every metric of resamples of the units that could be measured on all, (R,) each."""
        table = torch.stack(list(self.rows.values()))
        check_resampling(len(table), resamples, 0.95)
        drawn = self.measure(
            draw_weights(len(table), resamples, generator=generator, device=table.device) @ table
        )
        return {name: drawn[name] for name in self.values()}

    def values(self) -> dict[str, float]:
        """The metrics that there is something to measure for."""
        found = {name: float(value) for name, value in self.measure(self.total()).items()}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def summary(
        self, *, classes: Sequence[str], draws: Mapping[str, Tensor] | None = None
    ) -> dict[str, Any]:
        """All metrics, their intervals from resampled ones, IoU by class, reliability bins."""
        values, units = self.values(), len(self.rows)
        _, every, *_, confusion, _ = self.total().split(self._parts)
        bins, matrix = every.view(3, self.num_bins), confusion.view(self.num_classes, -1)
        overlap = matrix.diagonal()
        iou = (overlap / (matrix.sum(0) + matrix.sum(1) - overlap)).tolist()
        return {
            **values,
            **intervals_of(values, draws or {}, units=units, one_each=False),
            "pixels": int(matrix.sum()),
            "units": units,
            "class_iou": dict(zip(classes, iou, strict=True)),
            "reliability": {
                "counts": bins[0].long().tolist(),
                "confidence": (bins[2] / bins[0]).tolist(),
                "accuracy": (bins[1] / bins[0]).tolist(),
            },
        }

    def _bins(self, confidence: Tensor, correct: Tensor) -> Tensor:
        return _sums(bin_index(confidence, self.num_bins), confidence, correct, self.num_bins)

    def _ece(self, bins: Tensor) -> Tensor:
        count, correct, confidence = bins.unflatten(-1, (3, self.num_bins)).unbind(-2)
        return (confidence - correct).abs().sum(-1) / count.sum(-1)

    def _aece(self, ranks: Tensor) -> Tensor:
        """In bins of equal mass, made of whole cells of the ranking."""
        error = error_of_bins(mass_bins(_groups(ranks), self.num_bins), "l1")
        return error.where(ranks[..., :RANKS].sum(-1) > 0, torch.nan)


def _ranks(confidence: Tensor, correct: Tensor) -> Tensor:
    depth = -torch.log1p(-confidence.double())
    cell = (depth * RANKS_PER_UNIT).clamp_(max=RANKS - 1).long()
    return _sums(cell, confidence, correct, RANKS)


def _sums(cell: Tensor, confidence: Tensor, correct: Tensor, cells: int) -> Tensor:
    """Count, number of correct ones and sum of confidences in each cell, (3 `cells`,)."""
    columns = (torch.ones_like(confidence), correct, confidence)
    return torch.cat([torch.bincount(cell, each.double(), minlength=cells) for each in columns])


def _groups(ranks: Tensor) -> Groups:
    """The ranking as groups; the confidences of correct ones, which nothing needs, are 0."""
    count, correct, confidence = ranks.unflatten(-1, (3, RANKS)).unbind(-2)
    depth = torch.arange(1, RANKS + 1, dtype=ranks.dtype, device=ranks.device) / RANKS_PER_UNIT
    return Groups(count, correct, confidence, torch.zeros_like(count), -torch.expm1(-depth))


MAPS = 3
_STREAMS_TO_DRAW_FROM = 10
# Pixels of a folded batch of dropout samples; more don't fit a CPU's caches.
_FOLDED_PIXELS = 64 * 64 * 64


def measure_pixels(
    model: nn.Module,
    loader: TensorLoader,
    fabric: Fabric,
    bar: Bar,
    *,
    note: Callable[[Tensor, Tensor], None] | None = None,
) -> dict[str, float]:
    """Accuracy, NLL, ECE and mean IoU of a split, gathered from all processes.

    NaN where a logit is not finite. `note` is called with logits and labels of every batch.
    """
    sums = sums_for(loader.dataset)
    finite = torch.ones((), device=fabric.device)

    def take(output: Tensor, label: Tensor) -> None:
        logits = output.float()
        if bool(torch.isfinite(logits).all()):
            sums.add(logits, label)
            if note is not None:
                note(logits, label)
        else:
            finite.zero_()

    predict_batches(model, ((batch["image"], batch["label"]) for batch in loader), take, bar)
    # A process without images has no rows, and must take part all the same.
    total = sums.total() if sums.rows else torch.zeros(sums.length, dtype=torch.float64)
    device = float64_device(fabric.device)
    gathered = torch.cat([total.to(device), to_float64(1 - finite).reshape(1)])
    gathered = sum_over_processes(gathered, fabric).cpu()
    names = ("accuracy", "nll", "ece", "mean_iou")
    if float(gathered[-1]):
        return dict.fromkeys(names, float("nan"))
    found = sums.measure(gathered[:-1])
    return {name: float(found[name]) for name in names}


def sums_for(dataset: ArrayDataset, num_bins: int = 15) -> PixelSums:
    """Empty sums for the classes of a data set."""
    void = NO_VOID if dataset.void is None else dataset.void
    return PixelSums(dataset.num_classes, dataset.background, void, num_bins)


@dataclass(frozen=True)
class PixelEvaluator:
    """Predicts frame after frame as a run's `predict` section says, and measures them."""

    context: Context

    def sums(self, name: str, dataset: ArrayDataset, *, maps: Path | None = None) -> PixelSums:
        """Predict a split; its sums by stream, or by frame where there are under ten streams.

        Frames of one video are alike: intervals over frames of a few videos are too narrow.
        """
        streams = 0 if dataset.stream is None else len(dataset.stream.unique())
        by_stream = streams >= _STREAMS_TO_DRAW_FROM
        sums = sums_for(dataset, self.context.bins[0])
        # About as many, evenly spread.
        shown = {(2 * number + 1) * len(dataset) // (2 * MAPS) for number in range(MAPS)}
        smooth = smooth_streams(self.context.config.predict.temporal, dataset)
        positions = itertools.count()

        def take(output: Tensor, batch: Sample) -> None:
            for place in range(len(output)):
                position = next(positions)
                frame = {key: value[place : place + 1] for key, value in batch.items()}
                logits = smooth(output[place : place + 1].float(), frame)  # (1, C, H, W)
                stream = None if "stream" not in frame else int(frame["stream"])
                unit = stream if stream is not None and by_stream else position
                sums.add_frame(logits, frame["label"], unit, stream)
                if maps is not None and position in shown:
                    picture = dataset.images[position]
                    _write_map(maps / f"{name}-{position:04d}.png", picture, logits, frame, sums)

        loader = self.context.loader(dataset)
        with self.context.progress(f"predicting {name}", len(loader)) as bar:
            batches = ((batch["image"], batch) for batch in loader)
            predict_batches(self._predictor(dataset), batches, take, bar)
        return sums

    def _predictor(self, dataset: ArrayDataset) -> nn.Module:
        samples, network = self.context.config.predict.mc_dropout, self.context.plain
        if samples is None:
            return network
        pixels = dataset.images.shape[2] * dataset.images.shape[3]
        at_once = max(1, _FOLDED_PIXELS // pixels)
        return LogProbabilities(MCDropout(network, samples, max_batch=at_once))


def smooth_streams(
    temporal: TemporalConfig | None, dataset: ArrayDataset
) -> Callable[[Tensor, dict[str, Tensor]], Tensor]:
    """A function from a frame's logits to those of its mean over past frames of its stream."""
    if temporal is None:
        return lambda logits, frame: logits
    if dataset.stream is None:
        raise ValueError(
            "predict.temporal needs frames of a video in order, and this data set has single "
            "images: use data: scene_streams or camvid, or leave temporal out"
        )
    smoother = TemporalSmoother(temporal.length, temporal.decay)
    current: list[int] = []

    def smooth(logits: Tensor, frame: dict[str, Tensor]) -> Tensor:
        stream = int(frame["stream"])
        if current != [stream]:
            smoother.reset()
            current[:] = [stream]
        return log_probabilities(smoother(logits.softmax(1)))

    return smooth


def _write_map(
    path: Path, picture: Tensor, logits: Tensor, batch: dict[str, Tensor], sums: PixelSums
) -> None:
    label = batch["label"][0].cpu()
    figure = confidence_map(
        logits[0].softmax(0).cpu(),
        label,
        image=picture,
        num_bins=sums.num_bins,
        ignore_index=sums.void,
    )
    write_atomically(path, lambda temporary: figure.savefig(temporary, bbox_inches="tight"))
