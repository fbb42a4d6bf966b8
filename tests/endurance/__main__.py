"""Run: python -m tests.endurance --minutes 30 [--only losses --only metrics] [--first 0]

Each field gets an equal share of the time. Writes benchmarks/results/endurance.json (cases,
failures, machine, commit) and ends with 1 where a promise was broken, with the smallest example
that breaks it. Trial N of a field is always the same: `--only FIELD --first N` repeats it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from sfumato.ops.library import kernel_level
from tests.endurance.campaign import Attack, Record, run_campaign
from tests.endurance.files import FILES
from tests.endurance.kernels import KERNELS
from tests.endurance.kills import KILLS
from tests.endurance.losses import LOSSES
from tests.endurance.metrics import SCORES
from tests.endurance.smoothing import MAPS

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "endurance.json"
ATTACKS: dict[str, Attack] = {
    each.name: each for each in (LOSSES, SCORES, MAPS, FILES, KERNELS, KILLS)
}


def main() -> int:
    """Attack, write what was found, and say it."""
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", action="append", choices=sorted(ATTACKS), default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    chosen = {name: ATTACKS[name] for name in given.only or ATTACKS}
    warnings.simplefilter("ignore")  # PyTorch's, on the speed of its own transforms
    with Progress() as bar:
        tasks = {name: bar.add_task(name, total=None) for name in chosen}

        def tell(name: str, record: Record) -> None:
            bar.update(tasks[name], description=f"{name}: {record.cases:,} cases")

        found = run_campaign(chosen, seconds=60 * given.minutes, first=given.first, tell=tell)
    _write(given.out, found, given.first)
    failures = [(name, each) for name, field in found.items() for each in field["failures"]]
    for name, failure in failures:
        print(f"\n{name}, trial {failure['number']}:\n{failure['example']}", file=sys.stderr)
    print(", ".join(f"{name} {field['cases']:,}" for name, field in found.items()), "cases")
    print(f"{len(found) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


def _write(path: Path, found: dict[str, Any], first: int) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    content = {
        "commit": commit,
        "machine": {
            "processor": platform.machine(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "kernels": kernel_level(),
        },
        "first": first,
        "fields": found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
