"""What is measured: accuracy, likelihood, calibration, selective classification."""
