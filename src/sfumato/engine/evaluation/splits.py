"""Metrics of a split, whole and resampled, before and after a temperature."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sfumato._core.files import write_arrays, write_json
from sfumato._core.seeds import fold_seed
from sfumato._core.statistics import bin_index
from sfumato.data import ArrayDataset
from sfumato.data.files import FileTensor
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import EvaluateConfig, PredictConfig, TrainConfig
from sfumato.engine.runs.directory import Predictions, RunDirectory
from sfumato.metrics import calibration_floor, relative_confidence, reliability
from sfumato.metrics.evaluate import Evaluation, check_resampling, draw_in_parts, intervals_of
from sfumato.predictions import LogitNormaliser, TemperatureScaler


@dataclass(frozen=True)
class PlainSections:
    """Sections of a configuration for a network that no run has trained."""

    predict: PredictConfig
    evaluate: EvaluateConfig
    train: TrainConfig = field(default_factory=TrainConfig)
    seed: int = 0


# What decides how something is predicted and measured.
Sections = RunConfig | PlainSections


FILE = "replicates.npz"
_LABELS_AT_A_TIME = 1024


@dataclass(frozen=True)
class Replicates:
    """Collects `<split>.<metric>`, float32 (R,), and `<split>.units`, what the split consists of.

    Two runs may be subtracted replicate by replicate where their units and R agree.
    """

    resamples: int
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def generator(self, units: int, *stream: str) -> torch.Generator:
        """Draws that depend on the number of units, of resamples and on the named stream alone."""
        seed = fold_seed(0, "replicates", units, self.resamples, *stream)
        return torch.Generator().manual_seed(seed)

    def add(self, split: str, units: str, draws: Mapping[str, Tensor]) -> None:
        for name, values in draws.items():
            self.arrays[f"{split}.{name}"] = values.float().cpu().numpy()
        self.arrays[f"{split}.units"] = np.array(units)

    def write(self, folder: Path) -> None:
        """Write the file, where anything was resampled."""
        if self.arrays:
            write_arrays(folder / FILE, self.arrays)


def describe_units(count: int, labels: Tensor | FileTensor) -> str:
    """Number of units and a digest of their labels, such as `2000-ab12cd34`."""
    digest = hashlib.sha256()
    for part in labels.split(_LABELS_AT_A_TIME):
        numbers = part.detach().cpu().to(torch.int64).contiguous().numpy().astype("<i8")
        digest.update(numbers.tobytes())
    return f"{count}-{digest.hexdigest()[:8]}"


BINS = 15
_CHEAP = 2_000_000  # logits up to which the parts of the scores are measured, too
Value = TypeVar("Value", float, Tensor)
_OF_BINS = ("ece", "aece", "mce")


def measure_split(
    found: Predictions,
    *,
    posterior: Tensor | None = None,
    replicates: Replicates | None = None,
    split: str = "test",
    names: Collection[str] | None = None,
    bins: Sequence[int] = (BINS,),
) -> dict[str, Any]:
    """Metrics of predictions and, where they are resampled, their intervals."""
    probs, units = found.logits.softmax(1), len(found.labels)
    evaluation = partial(
        Evaluation, found.logits, found.labels, from_logits=True, ignore_index=-100, validate=True
    )
    splits = names is None and found.logits.numel() <= _CHEAP
    evaluations = {n: evaluation(num_bins=n, splits=splits and n == bins[0]) for n in bins}
    # Relative confidence is Eq. (40) of the spatial smoothing paper.
    relative = relative_confidence(probs, found.labels).double()
    means = [Means({"relative_confidence": relative[:, None]})]
    if posterior is not None:
        means.append(Means.of_truth(probs, posterior, bins[0]))
    values: dict[str, float] = {}
    for count, each in evaluations.items():
        values |= _named(each.measure(), count, bins[0])
    for mean in means:
        values |= {name: float(value) for name, value in mean.measure(None).items()}
    if names is not None:
        further = {f"{name}_{count}" for name in {*_OF_BINS} & {*names} for count in bins[1:]}
        values = {name: value for name, value in values.items() if name in {*names} | further}
    # What a perfectly calibrated network with these confidences would show.
    result = {**values, "ece_floor": float(calibration_floor(probs, num_bins=bins[0]))}
    if replicates is None or not replicates.resamples:
        return result
    check_resampling(units, replicates.resamples, 0.95)
    drawn: dict[str, Tensor] = {}
    for count, each in evaluations.items():
        generator = replicates.generator(units)
        draws = each.resample(replicates.resamples, generator=generator)
        drawn |= _named(draws, count, bins[0])
    for mean in means:
        drawn |= mean.resample(replicates)
    draws = {name: drawn[name] for name in values}
    replicates.add(split, describe_units(units, found.labels), draws)
    return result | intervals_of(values, draws, units=units)


def posterior_of(data: ArrayDataset) -> Tensor | None:
    """True class probabilities in the order of saved predictions, where the data has them."""
    if data.posterior is None:
        return None
    return data.posterior[data.index.argsort(stable=True)].cpu()


def reliability_bins(found: Predictions, num_bins: int = BINS) -> dict[str, list[float]]:
    bins = reliability(found.logits.softmax(1), found.labels, num_bins=num_bins)
    return {
        "counts": bins.counts.tolist(),
        "confidence": bins.confidences.tolist(),
        "accuracy": bins.accuracies.tolist(),
    }


def _named(values: Mapping[str, Value], bins: int, usual: int) -> dict[str, Value]:
    """All of them or, of a further number of bins, what depends on it under names of its own."""
    if bins == usual:
        return dict(values)
    return {f"{name}_{bins}": values[name] for name in _OF_BINS}


@dataclass(frozen=True)
class Means:
    """Metrics that are means over samples, or sums of absolute means, for any resample."""

    # Columns (N, K) by metric, which is the sum of the absolute means of its columns.
    parts: Mapping[str, Tensor]

    @classmethod
    def of_truth(cls, probs: Tensor, posterior: Tensor, bins: int) -> Means:
        """Confidence less the true probability of being right, without bins and in bins."""
        confidence, predicted = probs.max(1)
        expected = posterior.gather(1, predicted.unsqueeze(1)).squeeze(1)
        gap = confidence.double() - expected.double()
        member = bin_index(confidence, bins).unsqueeze(1)
        by_bin = gap.new_zeros(len(gap), bins).scatter_(1, member, gap.unsqueeze(1))
        return cls({"true_calibration_error": gap.abs().unsqueeze(1), "true_ece": by_bin})

    def measure(self, weights: Tensor | None) -> dict[str, Tensor]:
        """Each metric, (R,) for weights (R, N); (1,) for None."""
        if weights is None:
            weights = torch.ones(1, self._units, dtype=torch.float64)
        total = weights.sum(1, keepdim=True)
        return {name: (weights @ part / total).abs().sum(1) for name, part in self.parts.items()}

    def resample(self, replicates: Replicates) -> dict[str, Tensor]:
        """All of them on the resamples that the other metrics see."""
        generator = replicates.generator(self._units)
        weights = draw_in_parts(self._units, replicates.resamples, generator=generator)
        parts = [self.measure(part) for part in weights]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    @property
    def _units(self) -> int:
        return len(next(iter(self.parts.values())))


_OF_RANKS = ("aurc", "augrc", "accuracy_at_80")


def measure_normalised(
    held_out: Predictions, test: Predictions, replicates: Replicates
) -> dict[str, Any]:
    """Selective metrics of the test set when normalised logits say which predictions to keep.

    Label smoothing makes softmax a bad judge of that; a norm of the logits is chosen on held-out
    predictions, softmax included (Xia et al., ICLR 2025).
    """
    scorer = LogitNormaliser().fit(logits=held_out.logits, target=held_out.labels)
    ranked = Predictions(ranked_logits(scorer(test.logits)), test.labels, test.index)
    values = measure_split(ranked, replicates=replicates, split="normalised", names=_OF_RANKS)
    del values["ece_floor"]  # says nothing of ranks
    return values if scorer.order is None else {"order": scorer.order, **values}


def ranked_logits(scores: Tensor) -> Tensor:
    """Logits of the same classes whose largest probability is ordered as the largest score is."""
    highest, predicted = scores.double().max(1, keepdim=True)
    lead = highest + math.log(scores.shape[1])
    return torch.zeros_like(scores, dtype=torch.float64).scatter(1, predicted, lead)


SCALED_SPLITS = {"nll": "scaled", "ece": "scaled_by_ece"}
# What a temperature changes.
SCALED_METRICS = (
    *("nll", "ece", "aece", "aurc", "accuracy_at_80"),
    *("true_calibration_error", "true_ece"),
)


def fitted_scaler(
    held_out: Predictions, method: Literal["nll", "ece"], bins: Sequence[int]
) -> TemperatureScaler:
    """Fit the temperature that suits held-out predictions best, by NLL or by ECE."""
    return TemperatureScaler(method, num_bins=bins[0]).fit(
        logits=held_out.logits, target=held_out.labels
    )


LARGEST_SIDE = 64  # of a thumbnail, in pixels
WORDS = 25  # of a text


def write_mistakes(
    run: RunDirectory, found: Predictions, data: ArrayDataset, *, count: int = 12
) -> None:
    """Write `samples.json`: the most confident wrong predictions, of images or texts."""
    words = data.vocabulary
    if words is None and data.images.shape[1] not in (1, 3):
        return  # no picture that a page could show
    probs = found.logits.double().softmax(1)
    confidence, predicted = probs.max(1)
    wrong = (predicted != found.labels).nonzero().flatten()
    order = wrong[confidence[wrong].argsort(descending=True, stable=True)][:count]
    position = {int(value): place for place, value in enumerate(data.index)}
    samples = []
    for i in order:
        shown = data.images[position[int(found.index[i])]]
        sample = {
            "index": int(found.index[i]),
            "label": data.classes[int(found.labels[i])],
            "predicted": data.classes[int(predicted[i])],
            "confidence": float(confidence[i]),
            "true_confidence": float(probs[i, found.labels[i]]),
        }
        is_text = {} if words is None else {"text": words.decode(shown[:WORDS])}
        samples.append({**sample, **(is_text or {"image": thumbnail(shown)})})
    write_json(run.path / "samples.json", {"samples": samples})


def thumbnail(image: Tensor) -> str:
    """A uint8 image (C, H, W) of 1 or 3 channels as a data address that a page can show."""
    pixels = image.permute(1, 2, 0).cpu().numpy()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=90, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
