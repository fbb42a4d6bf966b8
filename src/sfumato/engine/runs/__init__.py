"""Runs on disk: directories, logs, environments, networks and predictions read back."""
