"""From a study file to runs to results on disk."""
