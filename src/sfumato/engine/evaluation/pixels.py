"""Prediction and evaluation of every pixel, frame by frame and in constant memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from sfumato._core.files import write_atomically
from sfumato.data import ArrayDataset, Sample, TensorLoader
from sfumato.engine.config.predict_section import PredictConfig, TemporalConfig
from sfumato.engine.evaluation.pixel_sums import NO_VOID, PixelSums
from sfumato.engine.evaluation.predict import predict_batches
from sfumato.engine.evaluation.stochastic import LogProbabilities, log_probabilities
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.progress import Bar, progress_bar
from sfumato.metrics import confidence_map
from sfumato.predictions import MCDropout, TemporalSmoother

MAPS = 3
_STREAMS_TO_DRAW_FROM = 10
_FOLDED_PIXELS = 64 * 64 * 64
"""Pixels of a folded batch of dropout samples; more don't fit a CPU's caches."""


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
    total = sums.total() if sums.rows else torch.zeros(sums.length, dtype=torch.float64)
    gathered = torch.cat([total.to(fabric.device), (1 - finite).double().reshape(1)])
    gathered = cast(Tensor, fabric.all_reduce(gathered, reduce_op="sum")).cpu()
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
    """Predicts frame after frame as a run's `predict` section says, and measures them.

    Args:
        network: gives logits (N, C, H, W).
        predict: how it predicts.
        mean, std: the standardisation of its images.
        batch_size: frames at a time; it changes no number.
        device: where the network is.
        show: whether to draw progress bars.
        num_bins: bins of the calibration errors.
    """

    network: nn.Module
    predict: PredictConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int
    device: torch.device
    show: bool = False
    num_bins: int = 15

    def sums(self, name: str, dataset: ArrayDataset, *, maps: Path | None = None) -> PixelSums:
        """Predict a split; its sums by stream, or by frame where there are under ten streams.

        Frames of one video are alike, so intervals draw whole streams where there are enough to
        draw from; those over frames of a few videos are narrower than the truth.

        Args:
            name: of the split, for the progress bar and the names of maps.
            dataset: its frames, in order.
            maps: folder to which confidence maps of a few frames are written; None for none.
        """
        streams = 0 if dataset.stream is None else len(dataset.stream.unique())
        by_stream = streams >= _STREAMS_TO_DRAW_FROM
        sums, shown = (
            sums_for(dataset, self.num_bins),
            set(_spread(len(dataset), MAPS) if maps else ()),
        )
        smooth, positions = smooth_streams(self.predict.temporal, dataset), itertools.count()

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

        loader = TensorLoader(
            dataset, self.batch_size, mean=self.mean, std=self.std, device=self.device
        )
        with progress_bar(f"predicting {name}", len(loader), show=self.show) as bar:
            batches = ((batch["image"], batch) for batch in loader)
            predict_batches(self._predictor(dataset), batches, take, bar)
        return sums

    def _predictor(self, dataset: ArrayDataset) -> nn.Module:
        samples = self.predict.mc_dropout
        if samples is None:
            return self.network
        pixels = dataset.images.shape[2] * dataset.images.shape[3]
        at_once = max(1, _FOLDED_PIXELS // pixels)
        return LogProbabilities(MCDropout(self.network, samples, max_batch=at_once))


def smooth_streams(
    temporal: TemporalConfig | None, dataset: ArrayDataset
) -> Callable[[Tensor, dict[str, Tensor]], Tensor]:
    """A function from a frame's logits to those of its mean over past frames of its stream.

    Raises:
        ValueError: the data set doesn't say which frames follow each other.
    """
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


def _spread(total: int, count: int) -> Collection[int]:
    """About `count` positions, evenly spread."""
    return {(2 * number + 1) * total // (2 * count) for number in range(count)}


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
