"""Smoothing the images: mollification, its schedules, and the augmentations it goes with.

`MollifySample` is a torchvision transform and loads on first use: all else costs torch only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sfumato.inputs.beta import sample_beta
from sfumato.inputs.copies import repeat_samples, split_copies
from sfumato.inputs.figures import plot_dct_change, plot_information, plot_mollification
from sfumato.inputs.heat import dissipate, heat_blur, heat_kernel
from sfumato.inputs.information import information_label_decay, information_ratio, png_sizes
from sfumato.inputs.mixing import cutmix, mixup, ricap
from sfumato.inputs.mollify import Mollify, MollifyDetails
from sfumato.inputs.noise import diffuse
from sfumato.inputs.objectness import (
    ObjectnessLabel,
    box_objectness,
    mask_objectness,
    window_objectness,
)
from sfumato.inputs.policies import AugMix, AutoAugment, RandAugment, TrivialAugment
from sfumato.inputs.recipes import RECIPES, Geometry, Recipe
from sfumato.inputs.schedules import blur_label_decay, blur_scale, noise_label_decay
from sfumato.inputs.spectrum import dct, dct_change

if TYPE_CHECKING:
    from sfumato.inputs.sample_transform import MollifySample

__all__ = [
    "RECIPES",
    "AugMix",
    "AutoAugment",
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
    "mask_objectness",
    "mixup",
    "noise_label_decay",
    "plot_dct_change",
    "plot_information",
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
