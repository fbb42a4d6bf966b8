"""Keep a study's numbers as one small JSON file.

Run: python studies/collect.py FOLDER studies/results/NAME.json
Every table of docs/results.md comes from such a file; reliability bins are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sfumato.report import read_study

LEFT_OUT = ("reliability",)


def collect(folder: Path) -> dict[str, Any]:
    results = read_study(folder)
    runs = [
        {"method": method.name, "seed": run.seed, "metrics": _small(run.metrics)}
        for method in results.methods
        for run in method.runs
        if run.metrics.get("test")
    ]
    return {"study": results.study, "runs": runs}


def as_text(content: dict[str, Any]) -> str:
    """JSON with one run a line."""
    runs = ",\n".join(json.dumps(run) for run in content["runs"])
    return f'{{"study": {json.dumps(content["study"])},\n"runs": [\n{runs}\n]}}\n'


def _small(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _small(item) for key, item in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [_small(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


if __name__ == "__main__":
    source, target = (Path(argument) for argument in sys.argv[1:3])
    target.write_text(as_text(collect(source)))
