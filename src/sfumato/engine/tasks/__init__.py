"""What a run does, one file for each task, and the rehearsal that says how long it takes."""
