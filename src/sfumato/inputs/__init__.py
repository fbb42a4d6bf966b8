"""Smoothing the images: mollification, its schedules, and what they do to an image.

Augmentations are in `sfumato.augment` and measures of objects in `sfumato.labels`; their names
stay importable from here. `MollifySample` is a torchvision transform and loads on first use: all
else costs torch only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sfumato._core.beta import sample_beta
from sfumato.augment import (
    RECIPES,
    AugMix,
    AutoAugment,
    Geometry,
    RandAugment,
    Recipe,
    TrivialAugment,
    cutmix,
    mixup,
    repeat_samples,
    ricap,
    split_copies,
)
from sfumato.inputs.copies import AveragedCopies
from sfumato.inputs.figures import (
    plot_dct_change,
    plot_information,
    plot_label_densities,
    plot_mollification,
)
from sfumato.inputs.heat import dissipate, heat_blur, heat_kernel
from sfumato.inputs.information import information_label_decay, information_ratio, png_sizes
from sfumato.inputs.label_densities import label_density
from sfumato.inputs.mollify import Mollify, MollifyDetails
from sfumato.inputs.noise import diffuse
from sfumato.inputs.schedules import blur_label_decay, blur_scale, noise_label_decay
from sfumato.inputs.spectrum import dct, dct_change
from sfumato.labels.objectness import (
    ObjectnessLabel,
    box_objectness,
    mask_objectness,
    window_objectness,
)

if TYPE_CHECKING:
    from sfumato.inputs.sample_transform import MollifySample

__all__ = [
    "RECIPES",
    "AugMix",
    "AutoAugment",
    "AveragedCopies",
    "Geometry",
    "Mollify",
    "MollifyDetails",
    "MollifySample",
    "ObjectnessLabel",
    "RandAugment",
    "Recipe",
    "TrivialAugment",
    "blur_label_decay",
    "blur_scale",
    "box_objectness",
    "cutmix",
    "dct",
    "dct_change",
    "diffuse",
    "dissipate",
    "heat_blur",
    "heat_kernel",
    "information_label_decay",
    "information_ratio",
    "label_density",
    "mask_objectness",
    "mixup",
    "noise_label_decay",
    "plot_dct_change",
    "plot_information",
    "plot_label_densities",
    "plot_mollification",
    "png_sizes",
    "repeat_samples",
    "ricap",
    "sample_beta",
    "split_copies",
    "window_objectness",
]


def __getattr__(name: str) -> Any:
    if name == "MollifySample":
        return import_module("sfumato.inputs.sample_transform").MollifySample
    raise AttributeError(f"module 'sfumato.inputs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
