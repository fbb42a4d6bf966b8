"""Smoothing the images: mollification, its schedules, and what they do to an image.

`MollifySample` is a torchvision transform and loads on first use: all else costs torch only.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from sfumato._core.exports import on_first_use as _on_first_use, public_names as _public_names
from sfumato.inputs.copies import AveragedCopies as AveragedCopies
from sfumato.inputs.figures import (
    plot_dct_change as plot_dct_change,
    plot_information as plot_information,
    plot_label_densities as plot_label_densities,
    plot_mollification as plot_mollification,
)
from sfumato.inputs.mollify import (
    Mollify as Mollify,
    blur_label_decay as blur_label_decay,
    blur_scale as blur_scale,
    dct as dct,
    dct_change as dct_change,
    diffuse as diffuse,
    dissipate as dissipate,
    heat_blur as heat_blur,
    information_label_decay as information_label_decay,
    information_ratio as information_ratio,
    label_density as label_density,
    noise_label_decay as noise_label_decay,
)

if _TYPE_CHECKING:
    from sfumato.inputs.sample_transform import MollifySample as MollifySample

_HOMES = {"MollifySample": "sample_transform"}
__all__ = [*_HOMES, *_public_names(globals())]
__getattr__, __dir__ = _on_first_use(__name__, _HOMES, globals())
