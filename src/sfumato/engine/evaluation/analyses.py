"""The analyses of `sfumato analyse`: what each measures, and its picture."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sfumato import analysis
from sfumato._core.evaluation_mode import evaluating
from sfumato._core.seeds import fold_seed
from sfumato.data import TensorLoader
from sfumato.engine.config.build import BatchTransform
from sfumato.engine.config.run_config import RunConfig
from sfumato.features import Smooth
from sfumato.labels import ACLSLoss
from sfumato.labels.acls import acls_penalty
from sfumato.predictions.sampling import average_passes, repeat_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TrainedBatches:
    """Images and targets after augmentation, soft labels, mixing and mollification.

    Every iteration gives the same batches, whatever random numbers were drawn in between.
    """

    loader: TensorLoader
    inputs: BatchTransform | None
    # `TrainedLoss` takes the sample's number from a last column of the targets, and averages the
    # images that are there `passes` times in a row.
    with_index: bool
    passes: int = 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, batch in enumerate(self.loader):
            images, target = batch["image"], batch.get("soft_label", batch["label"])
            if self.inputs is not None:
                with torch.random.fork_rng():
                    torch.manual_seed(fold_seed(0, "analysed batch", number))
                    images, target = self.inputs(images, target)
            if self.with_index:
                index = batch["index"].unsqueeze(1)
                columns = target.unsqueeze(1) if target.ndim == 1 else target.double()
                target = torch.cat([columns, index.to(columns.dtype)], 1)
            yield repeat_images(images, self.passes), target


class TrainedLoss:
    """A run's loss as a function of logits and of a target of `TrainedBatches`."""

    def __init__(self, loss: nn.Module, passes: int = 1) -> None:
        # In evaluation mode it reads a history of samples and never adds to it.
        self.loss = loss.eval()
        self.passes = passes
        self.takes_index = "index" in inspect.signature(loss.forward).parameters

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        value: Tensor
        logits = self.average(logits)
        if not self.takes_index:
            value = self.loss(logits, target)
            return value
        known, index = self.split(target, logits.dtype)
        value = self.loss(logits, known, index=index)
        return value

    def average(self, logits: Tensor) -> Tensor:
        """One row for each target: the logarithm of the mean probability of several passes."""
        return logits if self.passes == 1 else average_passes(logits, self.passes)

    def split(self, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Labels, or probabilities of a dtype, and the samples' numbers where they are known."""
        if not self.takes_index:
            return target, None
        index = target[:, -1].long()
        if target.is_floating_point():
            return target[:, :-1].to(dtype), index
        return target[:, 0], index


def describe_objective(config: RunConfig) -> str:
    """Say in a few words what a run was trained for."""
    said = [f"loss {config.loss['name']}"]
    for key in ("augment", "inputs", "labels"):
        spec = getattr(config, key)
        if spec is not None:
            said.append(f"{key} {spec['name']}")
    if config.objects is not None:
        said.append("objects")
    if config.train.copies is not None:
        said.append(f"{config.train.copies.count} copies")
    if config.train.passes > 1:
        said.append(f"{config.train.passes} passes")
    said.append(f"weight decay {config.train.weight_decay:g}")
    return ", ".join(said)


@dataclass(frozen=True)
class Effort:
    """Amounts of computation; the defaults take about a minute for a small ResNet."""

    # The paper's batch.
    batch_size: int = 128
    # One largest eigenvalue of each.
    spectrum_batches: int = 10
    density_probes: int = 2
    points: int = 11
    landscape_batches: int = 2
    passes: int = 40


FULL_EFFORT = Effort(
    spectrum_batches=100, density_probes=10, points=21, landscape_batches=8, passes=200
)


@dataclass(frozen=True)
class AnalysedRun:
    network: nn.Module
    # Neither mixed nor mollified, with classes; `batches` are as the optimiser saw them.
    loader: TensorLoader
    batches: TrainedBatches
    loss: TrainedLoss
    objective: str
    weight_decay: float
    is_stochastic: bool
    test: TensorLoader

    def of_training(self, measure: Callable[..., Any], **options: Any) -> Any:
        """An analysis of the regularised loss, on batches as the optimiser saw them."""
        decay = {"weight_decay": self.weight_decay}
        return measure(self.network, self.batches, self.loss, **decay, **options)

    def of_maps(self, measure: Callable[..., Any], **options: Any) -> Any:
        """An analysis of maps, a question that does not arise for texts."""
        if self.loader.dataset.vocabulary is not None:
            return None
        return measure(self.network, self.loader, generator=_generator(), **options)


_RADIUS = 4
_SHOWN = 4


@dataclass(frozen=True)
class ShownMaps:
    """Activation maps with the images that they are of."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    boxes: Tensor | None
    found: analysis.ActivationMaps

    def as_numbers(self) -> dict[str, Any]:
        """Content of `analysis.json`: the maps on their own grid, not the pictures."""
        return {
            "module": self.found.module,
            "raw": self.found.raw.tolist(),
            "target": self.found.target.tolist(),
            "probs": self.found.probs.tolist(),
            "labels": self.labels.tolist(),
        }


def measure_covariance(analysed: AnalysedRun, effort: Effort) -> analysis.FeatureCovariance | None:
    """At the end of the first stage, as far around the centre as its maps go."""
    if analysed.loader.dataset.vocabulary is not None:
        return None
    images = analysed.loader.batch(0)["image"]
    name = analysis.stage_ends(analysed.network, images)[0]
    sides: list[int] = []
    handle = analysed.network.get_submodule(name).register_forward_hook(
        lambda _module, _inputs, output: sides.extend(output.shape[2:])
    )
    try:
        with evaluating(analysed.network):
            analysed.network(images[:1])
    finally:
        handle.remove()
    found: analysis.FeatureCovariance = analysed.of_maps(
        analysis.feature_covariance,
        module=name,
        radius=min(_RADIUS, (min(sides) - 1) // 2),
        batches=effort.spectrum_batches,
    )
    return found


def measure_maps(analysed: AnalysedRun, effort: Effort) -> ShownMaps | None:
    if analysed.loader.dataset.vocabulary is not None:
        return None
    standardised, test = analysed.test.batch(0)["image"][:_SHOWN], analysed.test.dataset
    found = analysis.grad_cam_plus_plus(analysed.network, standardised)
    boxes = None if test.boxes is None else test.boxes[:_SHOWN]
    return ShownMaps(test.images[:_SHOWN], test.labels[:_SHOWN], test.classes, boxes, found)


def draw_maps(results: Mapping[str, ShownMaps]) -> Figure:
    """All networks side by side: those that were shown the images of the first."""
    first = next(iter(results.values()))
    same = {
        title: each.found
        for title, each in results.items()
        if torch.equal(each.images, first.images)
    }
    return analysis.plot_activation_maps(
        first.images, same, target=first.labels, classes=first.classes, boxes=first.boxes
    )


def measure_regulariser(analysed: AnalysedRun, effort: Effort) -> analysis.RegulariserValues | None:
    """Measure each sample of some training batches; only ACLS has one that may do nothing."""
    loss = analysed.loss.loss
    if not isinstance(loss, ACLSLoss):
        return None
    values = []
    with evaluating(analysed.network):
        for images, target in islice(analysed.batches, effort.spectrum_batches):
            logits = analysed.loss.average(analysed.network(images))
            known, index = analysed.loss.split(target, logits.dtype)
            correctness = None
            if loss.history is not None and index is not None:
                correctness = loss.history.correctness(index)
            values.append(
                acls_penalty(
                    logits,
                    known,
                    margin=loss.margin,
                    predicted_weight=loss.predicted_weight,
                    other_weight=loss.other_weight,
                    form=loss.form,
                    smoothing=loss.smoothing,
                    condition=loss.condition,
                    correctness=correctness,
                    reduction="none",
                )
            )
    return analysis.RegulariserValues(torch.cat(values))


_SHARPNESS_RADIUS = 0.5


@dataclass(frozen=True)
class Analysis:
    """One kind of analysis: what it measures on each network, and how that is drawn."""

    name: str
    caption: str
    # None where the question does not arise.
    measure: Callable[[AnalysedRun, Effort], Any]
    draw: Callable[[Mapping[str, Any]], Figure]
    # About the loss of the training, which the caption then names.
    of_training: bool = False


def _variance(analysed: AnalysedRun, effort: Effort) -> analysis.LossVariance | None:
    if not analysed.is_stochastic:
        return None
    sizes = [size for size in (1, 2, 5, 10, 20) if 2 * size <= effort.passes]
    return analysis.loss_variance(
        analysed.network,
        analysed.loader,
        sizes=sizes,
        passes=effort.passes,
        batches=1,
        generator=_generator(),
    )


def _response(analysed: AnalysedRun, effort: Effort) -> analysis.FrequencyResponse | None:
    layers = [module for module in analysed.network.modules() if isinstance(module, Smooth)]
    return analysis.frequency_response(layers[0]) if layers else None


ANALYSES = (
    Analysis(
        "hessian_spectrum",
        "Largest Hessian eigenvalue of each mini-batch. Large values make training unstable, "
        "negative ones mean a saddle.",
        lambda run, effort: run.of_training(
            analysis.hessian_max_spectrum,
            batches=effort.spectrum_batches,
            generator=_generator(),
        ),
        analysis.plot_hessian_spectra,
        of_training=True,
    ),
    Analysis(
        "hessian_density",
        "How all eigenvalues are spread. A flat loss keeps them near zero.",
        lambda run, effort: run.of_training(
            analysis.hessian_density, probes=effort.density_probes, generator=_generator()
        ),
        analysis.plot_hessian_densities,
        of_training=True,
    ),
    Analysis(
        "loss_landscape",
        "Loss along two random directions as long as the filters, the same for all networks. Wide "
        "and smooth is better.",
        lambda run, effort: run.of_training(
            analysis.loss_landscape, points=effort.points, batches=effort.landscape_batches
        ),
        analysis.plot_loss_landscapes,
        of_training=True,
    ),
    Analysis(
        "feature_deviation",
        "How much feature maps vary, by depth. A smoothing layer takes the variation down.",
        lambda run, effort: run.of_maps(analysis.feature_deviation, batches=1),
        analysis.plot_feature_deviations,
    ),
    Analysis(
        "feature_spectrum",
        "Fourier amplitude of the feature maps at the ends of the stages. Smoothing removes high "
        "frequencies.",
        lambda run, effort: run.of_maps(analysis.feature_spectrum, batches=2),
        analysis.plot_feature_spectra,
    ),
    Analysis(
        "loss_variance",
        "Variance of the loss of ensembles of stochastic passes, and the 1/N law.",
        _variance,
        analysis.plot_loss_variances,
    ),
    Analysis(
        "frequency_response",
        "What the first smoothing layer lets pass, by frequency.",
        _response,
        analysis.plot_frequency_responses,
    ),
    Analysis(
        "feature_covariance",
        "How alike the points of the first stage's maps are to the one in the middle, over images. "
        "Neighbours say nearly the same, so their mean is an ensemble of similar predictions.",
        measure_covariance,
        analysis.plot_feature_covariances,
    ),
    Analysis(
        "activation_maps",
        "Where the networks look in the first test images (Grad-CAM++ of the predicted class), "
        "with boxes where the data has them, and their three highest probabilities.",
        measure_maps,
        draw_maps,
    ),
    Analysis(
        "regulariser",
        "What the regulariser of ACLS adds to the loss of each training sample, clipped at 0.1, of "
        "networks that were trained with it.",
        measure_regulariser,
        analysis.plot_regularisers,
    ),
)


def key_numbers(analysed: AnalysedRun, found: Mapping[str, Any]) -> dict[str, float]:
    """Pick the results that fit in a table."""
    row: dict[str, float] = {}
    spectrum = found.get("hessian_spectrum")
    if spectrum is not None:
        top = spectrum.eigenvalues[:, 0]
        row["median top eigenvalue"] = float(top.median())
        row["largest eigenvalue"] = float(top.max())
        row["negative share"] = float((top < 0).double().mean())
    if found.get("hessian_density") is not None:
        row["mean eigenvalue"] = found["hessian_density"].mean
    if found.get("loss_landscape") is not None:
        losses = found["loss_landscape"].mean
        middle = losses.shape[0] // 2
        row["loss"] = float(losses[middle, middle])
        row["loss on the rim"] = float(torch.cat([losses[0], losses[-1]]).mean())
    sharpness = analysis.expected_sharpness(
        analysed.network,
        analysed.batches,
        analysed.loss,
        radius=_SHARPNESS_RADIUS,
        samples=20,
        batches=1,
        generator=_generator(),
    )
    row["expected sharpness"] = sharpness.value
    return row


def _generator() -> torch.Generator:
    """The same random vectors and masks for all networks."""
    return torch.Generator().manual_seed(0)
