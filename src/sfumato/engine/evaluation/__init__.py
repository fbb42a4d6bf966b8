"""What is measured on a trained network or on saved predictions."""
