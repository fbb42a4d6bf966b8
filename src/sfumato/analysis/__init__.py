"""Why smoothing works: spectra, landscapes, profiles."""

from sfumato.analysis.attention.activation_maps import (
    ActivationMaps,
    class_activation_map,
    grad_cam,
    grad_cam_plus_plus,
)
from sfumato.analysis.attention.figures import overlay_maps, plot_activation_maps
from sfumato.analysis.attention.localisation import Localisation, localisation_scores
from sfumato.analysis.curvature.density import HessianDensity, hessian_density
from sfumato.analysis.curvature.figures import (
    eigenvalue_outliers,
    plot_hessian_densities,
    plot_hessian_spectra,
)
from sfumato.analysis.curvature.sharpness import ExpectedSharpness, expected_sharpness
from sfumato.analysis.curvature.spectrum import HessianSpectrum, hessian_max_spectrum
from sfumato.analysis.feature_maps.covariance import (
    FeatureCovariance,
    feature_covariance,
    plot_feature_covariances,
)
from sfumato.analysis.feature_maps.deviation import (
    FeatureDeviation,
    feature_deviation,
    plot_feature_deviations,
)
from sfumato.analysis.feature_maps.frequency_response import (
    FrequencyResponse,
    frequency_response,
    plot_frequency_responses,
)
from sfumato.analysis.feature_maps.spectrum import (
    FeatureSpectrum,
    feature_spectrum,
    plot_feature_spectra,
)
from sfumato.analysis.feature_maps.taps import stage_blocks, stage_ends
from sfumato.analysis.landscape.directions import filter_direction
from sfumato.analysis.landscape.figures import plot_loss_landscapes
from sfumato.analysis.landscape.surface import LossLandscape, loss_landscape
from sfumato.analysis.loss_variance import LossVariance, loss_variance, plot_loss_variances
from sfumato.analysis.regulariser import RegulariserValues, plot_regularisers
from sfumato.analysis.smoothing_profile import (
    SmoothingProfile,
    active_share,
    plot_smoothing_profile,
    smoothing_profile,
)

__all__ = [
    "ActivationMaps",
    "ExpectedSharpness",
    "FeatureCovariance",
    "FeatureDeviation",
    "FeatureSpectrum",
    "FrequencyResponse",
    "HessianDensity",
    "HessianSpectrum",
    "Localisation",
    "LossLandscape",
    "LossVariance",
    "RegulariserValues",
    "SmoothingProfile",
    "active_share",
    "class_activation_map",
    "eigenvalue_outliers",
    "expected_sharpness",
    "feature_covariance",
    "feature_deviation",
    "feature_spectrum",
    "filter_direction",
    "frequency_response",
    "grad_cam",
    "grad_cam_plus_plus",
    "hessian_density",
    "hessian_max_spectrum",
    "localisation_scores",
    "loss_landscape",
    "loss_variance",
    "overlay_maps",
    "plot_activation_maps",
    "plot_feature_covariances",
    "plot_feature_deviations",
    "plot_feature_spectra",
    "plot_frequency_responses",
    "plot_hessian_densities",
    "plot_hessian_spectra",
    "plot_loss_landscapes",
    "plot_loss_variances",
    "plot_regularisers",
    "plot_smoothing_profile",
    "smoothing_profile",
    "stage_blocks",
    "stage_ends",
]
