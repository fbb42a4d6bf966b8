"""Smoothing the outputs: ensembles over weights and over time, temperature scaling."""
