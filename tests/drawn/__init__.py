"""Study files drawn at random over the whole schema: what `check` accepts must run."""
