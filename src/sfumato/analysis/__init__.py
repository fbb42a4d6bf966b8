"""Why smoothing works: spectra, landscapes, profiles."""

from sfumato.analysis.smoothing_profile import (
    SmoothingProfile,
    active_share,
    plot_smoothing_profile,
    smoothing_profile,
)

__all__ = ["SmoothingProfile", "active_share", "plot_smoothing_profile", "smoothing_profile"]
