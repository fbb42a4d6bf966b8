"""`title_of_run`: what a run is called in its study."""

from __future__ import annotations

import os
from pathlib import Path

from sfumato._core.files import read_json


def title_of_run(path: Path) -> str:
    """`method, seed 0` where the study's index names the run, else the directory's name.

    Either may be a link: the folder of runs, to a larger disk, or the run, to where it is needed.
    """
    for place in (Path(os.path.abspath(path)), path.resolve()):
        index = place.parent.parent / "study.json"
        entries = read_json(index)["runs"] if index.exists() else []
        for entry in entries:
            if entry["run"] == place.name:
                return f"{entry['method']}, seed {entry['seed']}"
    return Path(os.path.abspath(path)).name
