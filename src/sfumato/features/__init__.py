"""Smoothing the feature maps: Prob, Blur, Smooth, and their insertion into any model."""

from sfumato._core.exports import public_names as _public_names
from sfumato.features.blur_pool import (
    AdaptiveBlurPool as AdaptiveBlurPool,
    BlurPool as BlurPool,
    MaxBlurPool as MaxBlurPool,
    add_blur_pool as add_blur_pool,
)
from sfumato.features.clipping import ClippedFeatures as ClippedFeatures
from sfumato.features.insertion import (
    add_dropout as add_dropout,
    add_smoothing as add_smoothing,
    model_summary as model_summary,
)
from sfumato.features.smoothing import (
    Blur as Blur,
    Padding as Padding,
    Prob as Prob,
    Smooth as Smooth,
    blur_features as blur_features,
    bound_features as bound_features,
    smooth_features as smooth_features,
)

__all__ = _public_names(globals())
