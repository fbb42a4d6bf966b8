"""Tasks of runs, one file each: classify, segment, detect; and ensembles of finished runs."""
