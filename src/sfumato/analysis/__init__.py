"""Analyses of why smoothing works: spectra, landscapes, profiles."""

from sfumato._core.exports import public_names as _public_names
from sfumato.analysis.attention import (
    ActivationMaps as ActivationMaps,
    class_activation_map as class_activation_map,
    grad_cam as grad_cam,
    grad_cam_plus_plus as grad_cam_plus_plus,
    localisation_scores as localisation_scores,
    plot_activation_maps as plot_activation_maps,
)
from sfumato.analysis.curvature import (
    HessianDensity as HessianDensity,
    LossVariance as LossVariance,
    expected_sharpness as expected_sharpness,
    hessian_density as hessian_density,
    hessian_max_spectrum as hessian_max_spectrum,
    loss_variance as loss_variance,
    plot_hessian_densities as plot_hessian_densities,
    plot_hessian_spectra as plot_hessian_spectra,
    plot_loss_variances as plot_loss_variances,
)
from sfumato.analysis.feature_maps import (
    FeatureCovariance as FeatureCovariance,
    FeatureDeviation as FeatureDeviation,
    FeatureSpectrum as FeatureSpectrum,
    FrequencyResponse as FrequencyResponse,
    feature_covariance as feature_covariance,
    feature_deviation as feature_deviation,
    feature_spectrum as feature_spectrum,
    frequency_response as frequency_response,
    plot_feature_covariances as plot_feature_covariances,
    plot_feature_deviations as plot_feature_deviations,
    plot_feature_spectra as plot_feature_spectra,
    plot_frequency_responses as plot_frequency_responses,
    stage_blocks as stage_blocks,
    stage_ends as stage_ends,
)
from sfumato.analysis.lanczos import HessianSpectrum as HessianSpectrum
from sfumato.analysis.landscape import (
    LossLandscape as LossLandscape,
    loss_landscape as loss_landscape,
    plot_loss_landscapes as plot_loss_landscapes,
)
from sfumato.analysis.smoothing_profile import (
    RegulariserValues as RegulariserValues,
    active_share as active_share,
    plot_regularisers as plot_regularisers,
    plot_smoothing_profile as plot_smoothing_profile,
    smoothing_profile as smoothing_profile,
)

__all__ = _public_names(globals())
