"""The progress bar of runs, which is that of everything else."""

from sfumato._core.progress import Bar, progress_bar

__all__ = ["Bar", "progress_bar"]
