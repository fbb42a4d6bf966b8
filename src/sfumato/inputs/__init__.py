"""Smoothing the images: diffusion noise and heat blur, with labels smoothed to match."""
