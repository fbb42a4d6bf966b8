"""Smoothing the feature maps: Prob, Blur, Smooth, and their insertion into any model."""

from sfumato.features.adaptive_blur_pool import AdaptiveBlurPool
from sfumato.features.blur_pool import BlurPool, MaxBlurPool, add_blur_pool
from sfumato.features.blurring import Blur, Padding, blur_features
from sfumato.features.clipping import ClippedFeatures
from sfumato.features.dropout_model import add_dropout
from sfumato.features.probability import Prob, ProbKind, bound_features
from sfumato.features.smooth_model import add_smoothing
from sfumato.features.smoothing import Smooth, smooth_features
from sfumato.features.summary import model_summary
from sfumato.predictions.training_ensemble import mean_log_probability

__all__ = [
    "AdaptiveBlurPool",
    "Blur",
    "BlurPool",
    "ClippedFeatures",
    "MaxBlurPool",
    "Padding",
    "Prob",
    "ProbKind",
    "Smooth",
    "add_blur_pool",
    "add_dropout",
    "add_smoothing",
    "blur_features",
    "bound_features",
    "mean_log_probability",
    "model_summary",
    "smooth_features",
]
