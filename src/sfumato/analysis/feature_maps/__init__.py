"""What is in feature maps: variance over samples and depth, spectra, response to frequencies."""
