"""Smoothing the feature maps: Prob, Blur, Smooth, and their insertion into any model."""
