"""Further test sets: another camera, images without labels, strange inputs and their scores."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import like_input, to_float64, to_float64_device
from sfumato._core.spec import Spec
from sfumato.data import ArrayDataset, DataSplits
from sfumato.data.dataset import UNLABELLED, image_shape
from sfumato.engine.config.build import build_component
from sfumato.engine.evaluation.context import Context, Method
from sfumato.engine.evaluation.splits import (
    Means,
    Replicates,
    describe_units,
    measure_split,
    reliability_bins,
)
from sfumato.engine.runs.directory import Arrays, Predictions
from sfumato.metrics import predictive_entropy
from sfumato.metrics.evaluate import check_resampling, intervals_of
from sfumato.metrics.ood import OODEvaluation
from sfumato.models import HeadFeatures
from sfumato.predictions import (
    DeepEnsemble,
    MahalanobisDistance,
    MCDropout,
    NeighbourDistance,
    TemperatureScaler,
    energy_score,
    generalised_entropy_score,
    maximum_logit_score,
    maximum_probability_score,
)


def load_other(
    spec: Spec, train: ArrayDataset, skipped: dict[str, str] | None = None
) -> ArrayDataset:
    """The test part of another source, with the classes of the set that was trained on.

    Classes that are named by number, as in ImageNet-V2 and in files without names, are those
    numbers; any others must be the same names in the same order.
    """
    found = _load_test(spec, train, skipped)
    return dataclasses.replace(
        found,
        labels=_numbered(found, train.classes) if found.is_labelled else found.labels,
        posterior=found.posterior if found.classes == train.classes else None,
        classes=train.classes,
    )


def load_strange(
    spec: Spec, train: ArrayDataset, skipped: dict[str, str] | None = None
) -> ArrayDataset:
    """The test part of a source whose images are of none of the classes, so without labels."""
    found = _load_test(spec, train, skipped)
    return dataclasses.replace(
        found,
        labels=torch.full((len(found),), UNLABELLED),
        void=UNLABELLED,
        posterior=None,
        classes=train.classes,
    )


def _load_test(spec: Spec, train: ArrayDataset, skipped: dict[str, str] | None) -> ArrayDataset:
    """The test part of a source, whose images a network trained on `train` can take."""
    splits: DataSplits = build_component("data", spec)
    if skipped is not None:
        skipped |= splits.skipped
    found = splits.test
    if not len(found):
        raise ValueError("has no test images: give a test part")
    if found.vocabulary is not None or found.labels.ndim != 1:
        raise ValueError(
            "has texts or segmentation masks; choose a source of images with one label each"
        )
    shapes = [(channels, *size) for channels, size in map(image_shape, (found, train))]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"has images of {shapes[0]} (channels, height, width), and the network is trained on "
            f"{shapes[1]}; a folder takes size: {shapes[1][1]}"
        )
    return found


# By the key of `evaluate` that names the sets.
LOADERS = {"also": load_other, "ood": load_strange}


def _numbered(found: ArrayDataset, expected: tuple[str, ...]) -> Tensor:
    """Labels that count the classes in the order of the training set."""
    names = found.classes
    if names == expected:
        return found.labels[:]
    counted = expected == tuple(map(str, range(len(expected))))
    # Classes that are called 3 and 7 give numbers no place in the training set's order.
    if _are_numbers(names) and (counted or not _are_numbers(expected)):
        numbers = torch.tensor([int(name) for name in names])
        if int(numbers.max()) >= len(expected):
            raise ValueError(
                f"has a class with the number {int(numbers.max())}, and the training set's "
                f"{len(expected)} classes are 0 to {len(expected) - 1}"
            )
        return numbers[found.labels[:]]
    raise ValueError(f"{_difference(names, expected)}; bring its classes to those of the training")


def _are_numbers(names: tuple[str, ...]) -> bool:
    return all(name.isdecimal() for name in names) and len(set(map(int, names))) == len(names)


def _difference(names: tuple[str, ...], expected: tuple[str, ...]) -> str:
    if set(names) == set(expected):
        place = next(i for i, name in enumerate(names) if name != expected[i])
        return (
            f"has the training set's classes in another order: class {place} is {names[place]!r}, "
            f"there {expected[place]!r}"
        )
    missing = [name for name in expected if name not in names][:3]
    unknown = [name for name in names if name not in expected][:3]
    parts = [f"has {len(names)} classes, the training set has {len(expected)}"]
    parts += [f"it lacks {', '.join(missing)}"] if missing else []
    parts += [f"unknown are {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts)


def measure_other(
    found: Predictions,
    *,
    posterior: Tensor | None,
    scaler: TemperatureScaler,
    replicates: Replicates,
    split: str,
    bins: Sequence[int],
) -> dict[str, Any]:
    """The metrics of the test set; without labels, what can be said without them."""
    # Images without labels have labels below 0.
    if bool((found.labels >= 0).all()):
        values = measure_split(
            found, posterior=posterior, replicates=replicates, split=split, bins=bins
        )
        values["reliability"] = reliability_bins(found, bins[0])
    else:
        values = _measure_unlabelled(found.logits, scaler, replicates, split)
    return {**values, "samples": len(found.labels)}


def _measure_unlabelled(
    logits: Tensor, scaler: TemperatureScaler, replicates: Replicates, split: str
) -> dict[str, Any]:
    """Mean confidence and entropy, and the accuracy to expect if calibration carries over.

    The expected accuracy is the mean confidence after the temperature of the validation set. It
    assumes that these images are met as well calibrated as those, which a shift may break.
    """
    probs = logits.softmax(1)
    each = {
        "average_confidence": probs.amax(1),
        "entropy": predictive_entropy(probs),
        "expected_accuracy": scaler(logits).softmax(1).amax(1),
    }
    means = Means({name: value.double().unsqueeze(1) for name, value in each.items()})
    values = {name: float(value) for name, value in means.measure(None).items()}
    if not replicates.resamples:
        return values
    units = len(logits)
    check_resampling(units, replicates.resamples, 0.95)
    draws = means.resample(replicates)
    replicates.add(split, f"{units}-unlabelled", draws)
    return values | intervals_of(values, draws, units=units)


NEIGHBOURS = 50

# Scores of the logits of a prediction, which a temperature changes.
OF_LOGITS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_probability": maximum_probability_score,
    "entropy": lambda logits: predictive_entropy(to_float64(logits).softmax(1)),
    "generalised_entropy": generalised_entropy_score,
}
# The logarithm of a mean probability has no scale: these are means over the passes.
OF_PASSES: dict[str, Callable[[Tensor], Tensor]] = {
    "max_logit": maximum_logit_score,
    "energy": energy_score,
}
DISTANCES = ("nearest_neighbours", "mahalanobis")


class Passes(nn.Module):
    """A predictor whose passes are watched: logits, means over the passes, and features.

    Features of an ensemble's members are side by side.
    """

    def __init__(
        self, context: Context, predictor: nn.Module, layer: str | None, has_features: bool
    ) -> None:
        super().__init__()
        self.predictor = predictor
        self._networks = _networks(context)
        self._heads = [
            HeadFeatures(network, layer) if has_features else None for network, _ in self._networks
        ]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B, C), means (B, 3) of `OF_PASSES` and of the entropy, and features (B, D)."""
        seen: list[list[tuple[int, Tensor, Tensor | None]]] = [[] for _ in self._networks]
        with ExitStack() as stack:
            for place, (network, _) in enumerate(self._networks):
                head = self._heads[place]
                if head is not None:
                    stack.enter_context(head)
                hook = network.register_forward_hook(_note(seen[place], head))
                stack.callback(hook.remove)
            logits = self.predictor(images)
        each = [
            _mean_passes(passes, samples, len(images))
            for passes, (_, samples) in zip(seen, self._networks, strict=True)
        ]
        count = len(OF_PASSES) + 1
        means = torch.stack([values[:, :count] for values in each]).mean(0)
        return logits, means, torch.cat([values[:, count:] for values in each], 1)


def _networks(context: Context) -> list[tuple[nn.Module, int]]:
    averaging = context.averaging
    if averaging is None:
        return [(context.plain, 1)]
    members = averaging.models if isinstance(averaging, DeepEnsemble) else [averaging]
    return [
        (member.model, member.samples) if isinstance(member, MCDropout) else (member, 1)
        for member in members
    ]


def _note(
    seen: list[tuple[int, Tensor, Tensor | None]], head: HeadFeatures | None
) -> Callable[..., None]:
    """Keep what a pass gives; nothing is computed here, where dropout masks may be folded."""

    def note(_: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        features = None
        if head is not None:
            features = head.taken[-1] if head.taken else None
            head.taken.clear()
            if features is None or len(features) != len(logits):
                came = "none" if features is None else f"{tuple(features.shape)}"
                raise ValueError(
                    f"features before the last layer must be one row a prediction, for "
                    f"{len(logits)} predictions got {came}: name another layer, or leave "
                    "distances out"
                )
        seen.append((len(inputs[0]), logits.detach(), features))

    return note


def _mean_passes(seen: list[tuple[int, Tensor, Tensor | None]], samples: int, count: int) -> Tensor:
    """Means over the passes of each image, (B, 3 + D); passes may be folded into the batch."""
    parts, total, done = [], torch.zeros(()), 0
    for batch, logits, features in seen:
        scores = [score(logits) for score in OF_PASSES.values()]
        scores.append(OF_LOGITS["entropy"](logits))
        values = torch.stack(scores, 1)
        if features is not None:
            values = torch.cat([values, to_float64_device(features)], 1)
        passes = len(logits) // batch
        total = total.to(values.device) + values.unflatten(0, (passes, batch)).sum(0)
        done += passes
        if done == samples:
            parts.append(total / samples)
            total, done = torch.zeros(()), 0
    found = torch.cat(parts) if parts else torch.empty(0, 0)
    if len(found) != count:
        raise ValueError(
            f"scores of strange inputs need {samples} passes for each of {count} images, got them "
            f"for {len(found)}: the network must be called once a pass, with images first"
        )
    return found


@dataclass
class Scorer:
    """All scores of an input, the distances fitted on features of training images."""

    context: Context
    has_distances: bool
    # Before which features are taken; None for the last.
    layer: str | None = None
    # Scores of each set by name, in the order of its predictions.
    scores: dict[str, Tensor] = field(default_factory=dict)
    shrinkage: float = 0.0
    _fitted: tuple[NeighbourDistance, MahalanobisDistance] | None = None

    @property
    def names(self) -> list[str]:
        """The scores, in the order of their columns."""
        averaged = self.context.averaging is not None
        found = [*OF_LOGITS, *OF_PASSES, *(["mutual_information"] if averaged else [])]
        return [*found, *(DISTANCES if self.has_distances else ())]

    @property
    def is_fitted(self) -> bool:
        return self._fitted is not None or not self.has_distances

    def training_features(self) -> nn.Module:
        passes = Passes(self.context, self.context.predictor, self.layer, True)
        return Method(passes, lambda images: like_input(passes(images)[2], images))

    def fit(self, features: Tensor, labels: Tensor, num_classes: int) -> None:
        """Fit the distances; few training images have fewer neighbours."""
        neighbours = NeighbourDistance(min(NEIGHBOURS, len(features))).fit(features)
        mahalanobis = MahalanobisDistance(num_classes)
        with warnings.catch_warnings():  # `shrinkage` in the metrics says it
            warnings.simplefilter("ignore", UserWarning)
            mahalanobis.fit(features, labels)
        self._fitted = neighbours, mahalanobis

    def around(self, predictor: nn.Module) -> nn.Module:
        """Give a predictor whose rows are its logits and, from the same passes, the scores."""
        passes = Passes(self.context, predictor, self.layer, self.has_distances)

        def scored(images: Tensor) -> Tensor:
            logits, means, features = passes(images)
            return torch.cat([logits, like_input(self.score(logits, means, features), logits)], 1)

        return Method(passes, scored)

    def score(self, logits: Tensor, means: Tensor, features: Tensor) -> Tensor:
        """Every score, (B, S), where the means are."""
        found = {name: score(logits) for name, score in OF_LOGITS.items()}
        found |= dict(zip(OF_PASSES, means.unbind(1), strict=False))
        found["mutual_information"] = (found["entropy"] - means[:, -1]).clamp_min(0)
        if self._fitted is not None:
            near, far = self._fitted
            distances = (each.score(features).to(means.device) for each in (near, far))
            found |= dict(zip(DISTANCES, distances, strict=True))
        return torch.stack([found[name].double() for name in self.names], 1)

    def split(self, wide: Predictions) -> tuple[Predictions, Arrays]:
        """Predictions without the columns of the scores, and these, to be kept."""
        count = len(self.names)
        logits = wide.logits[:, :-count]
        shrinkage = 0.0 if self._fitted is None else self._fitted[1].shrinkage
        arrays = {
            "scores": wide.logits[:, -count:].cpu().numpy(),
            "shrinkage": torch.tensor(shrinkage).numpy(),
        }
        return Predictions(logits.contiguous(), wide.labels, wide.index), arrays

    def take(self, name: str, arrays: Arrays) -> None:
        self.scores[name] = torch.from_numpy(arrays["scores"])
        self.shrinkage = float(arrays["shrinkage"])

    def measure(self, name: str, test: Predictions) -> dict[str, Any]:
        known, unknown = self.scores["test"].unbind(1), self.scores[name].unbind(1)
        return {
            score: measure_score(
                known[i], unknown[i], test, self.context.replicates, f"ood.{name}.{score}"
            )
            for i, score in enumerate(self.names)
        }


def measure_score(
    known: Tensor, unknown: Tensor, test: Predictions, replicates: Replicates, split: str
) -> dict[str, Any]:
    """Metrics of one score with their intervals; mistakes are those of the predictions `test`."""
    evaluation = OODEvaluation(known, unknown, test.logits.argmax(1) == test.labels)
    values: dict[str, Any] = evaluation.measure()
    if not replicates.resamples:
        return values
    inside, outside = evaluation.sizes
    check_resampling(min(inside, outside), replicates.resamples, 0.95)
    sources = replicates.generator(inside), replicates.generator(outside, "strange")
    draws = evaluation.resample(replicates.resamples, sources)
    replicates.add(split, f"{describe_units(inside, test.labels)}-{outside}", draws)
    return {**values, **intervals_of(values, draws, units=inside + outside)}


def measure_scaled(
    name: str,
    scaler: nn.Module,
    sets: tuple[Predictions, Predictions],
    replicates: Replicates,
    split: str,
) -> dict[str, Any]:
    """Metrics of the scores of logits after a temperature, which ranks inputs anew."""
    known, unknown = (scaler(each.logits) for each in sets)
    return {
        score: measure_score(
            function(known), function(unknown), sets[0], replicates, f"{split}.ood.{name}.{score}"
        )
        for score, function in OF_LOGITS.items()
    }
