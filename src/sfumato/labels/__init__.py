"""Smoothing the targets: soft labels, and losses whose gradient acts like one."""
