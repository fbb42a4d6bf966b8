"""Scores of strange inputs, from the passes that predict, and how well they tell these."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import like_input, to_float64, to_float64_device
from sfumato.engine.evaluation.context import Context, Method
from sfumato.engine.evaluation.splits import Replicates, describe_units
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
    energy_score,
    generalised_entropy_score,
    maximum_logit_score,
    maximum_probability_score,
)

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

    Features are means over the passes of a network, those of an ensemble's members side by side.
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
    """Each network that a prediction passes through, and how often."""
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
        """Return the module whose rows `fit` takes."""
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
        """Take over the scores of a set."""
        self.scores[name] = torch.from_numpy(arrays["scores"])
        self.shrinkage = float(arrays["shrinkage"])

    def measure(self, name: str, test: Predictions) -> dict[str, Any]:
        """Metrics of every score, for the test set against the strange one `name`."""
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
    right = test.logits.argmax(1) == test.labels
    evaluation = OODEvaluation(known, unknown, right)
    values: dict[str, Any] = evaluation.measure()
    if not replicates.resamples:
        return values
    check_resampling(min(evaluation.sizes), replicates.resamples, 0.95)
    inside, outside = evaluation.sizes
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
