"""Why smoothing works: spectra, landscapes, profiles."""
