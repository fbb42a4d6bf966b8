"""The analyses of `sfumato analyse`: what each measures on a trained network, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sfumato import analysis
from sfumato.engine.evaluation.shown_analyses import (
    draw_maps,
    measure_covariance,
    measure_maps,
    measure_regulariser,
)
from sfumato.engine.evaluation.subject import FULL_EFFORT, Effort, Subject
from sfumato.features import Smooth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ANALYSES", "FULL_EFFORT", "Analysis", "Effort", "Subject", "key_numbers"]

_SHARPNESS_RADIUS = 0.5


@dataclass(frozen=True)
class Analysis:
    """One kind of analysis: what it measures on each network, and how that is drawn.

    Attributes:
        name: of its figure file and its key in `analysis.json`.
        caption: what to look for.
        measure: the result for one network; None where the question does not arise.
        draw: all results in one figure.
        of_training: whether it is about the loss of the training, which its caption then names.
    """

    name: str
    caption: str
    measure: Callable[[Subject, Effort], Any]
    draw: Callable[[Mapping[str, Any]], Figure]
    of_training: bool = False


def _of_images(
    measure: Callable[[Subject, Effort], Any],
) -> Callable[[Subject, Effort], Any]:
    """An analysis of maps, a question that does not arise for texts."""

    def measured(subject: Subject, effort: Effort) -> Any:
        texts = subject.loader.dataset.vocabulary is not None
        return None if texts else measure(subject, effort)

    return measured


def _spectrum(subject: Subject, effort: Effort) -> analysis.HessianSpectrum:
    return analysis.hessian_max_spectrum(
        subject.network,
        subject.batches,
        subject.loss,
        weight_decay=subject.weight_decay,
        batches=effort.spectrum_batches,
        generator=_generator(),
    )


def _density(subject: Subject, effort: Effort) -> analysis.HessianDensity:
    return analysis.hessian_density(
        subject.network,
        subject.batches,
        subject.loss,
        weight_decay=subject.weight_decay,
        probes=effort.density_probes,
        generator=_generator(),
    )


def _landscape(subject: Subject, effort: Effort) -> analysis.LossLandscape:
    return analysis.loss_landscape(
        subject.network,
        subject.batches,
        subject.loss,
        points=effort.points,
        weight_decay=subject.weight_decay,
        batches=effort.landscape_batches,
    )


def _deviation(subject: Subject, effort: Effort) -> analysis.FeatureDeviation:
    return analysis.feature_deviation(
        subject.network, subject.loader, batches=1, generator=_generator()
    )


def _fourier(subject: Subject, effort: Effort) -> analysis.FeatureSpectrum:
    return analysis.feature_spectrum(
        subject.network, subject.loader, batches=2, generator=_generator()
    )


def _variance(subject: Subject, effort: Effort) -> analysis.LossVariance | None:
    if not subject.is_stochastic:
        return None
    sizes = [size for size in (1, 2, 5, 10, 20) if 2 * size <= effort.passes]
    return analysis.loss_variance(
        subject.network,
        subject.loader,
        sizes=sizes,
        passes=effort.passes,
        batches=1,
        generator=_generator(),
    )


def _response(subject: Subject, effort: Effort) -> analysis.FrequencyResponse | None:
    layers = [module for module in subject.network.modules() if isinstance(module, Smooth)]
    return analysis.frequency_response(layers[0]) if layers else None


ANALYSES = (
    Analysis(
        "hessian_spectrum",
        "Largest Hessian eigenvalue of each mini-batch. Large values make training unstable, "
        "negative ones mean a saddle.",
        _spectrum,
        analysis.plot_hessian_spectra,
        of_training=True,
    ),
    Analysis(
        "hessian_density",
        "How all eigenvalues are spread. A flat loss keeps them near zero.",
        _density,
        analysis.plot_hessian_densities,
        of_training=True,
    ),
    Analysis(
        "loss_landscape",
        "Loss along two random directions as long as the filters, the same for all networks. Wide "
        "and smooth is better.",
        _landscape,
        analysis.plot_loss_landscapes,
        of_training=True,
    ),
    Analysis(
        "feature_deviation",
        "How much feature maps vary, by depth. A smoothing layer takes the variation down.",
        _of_images(_deviation),
        analysis.plot_feature_deviations,
    ),
    Analysis(
        "feature_spectrum",
        "Fourier amplitude of the feature maps at the ends of the stages. Smoothing removes high "
        "frequencies.",
        _of_images(_fourier),
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
        _of_images(measure_covariance),
        analysis.plot_feature_covariances,
    ),
    Analysis(
        "activation_maps",
        "Where the networks look in the first test images (Grad-CAM++ of the predicted class), "
        "with boxes where the data has them, and their three highest probabilities.",
        _of_images(measure_maps),
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


def key_numbers(subject: Subject, found: Mapping[str, Any]) -> dict[str, float]:
    """What of the results fits in a table."""
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
        subject.network,
        subject.batches,
        subject.loss,
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
