"""The loss over a plane of weights around a trained network."""
