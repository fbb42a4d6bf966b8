"""Measurements on a trained network or on saved predictions."""
