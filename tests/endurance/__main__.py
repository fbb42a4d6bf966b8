"""Run: python -m tests.endurance --minutes 30 [--only losses --only metrics] [--first 0] [--append]

Each field gets an equal share of the time. Writes benchmarks/results/endurance.json (cases,
failures, machine, commits) and ends with 1 where a promise was broken, with the smallest example
that breaks it. Trial N of a field is always the same: `--only FIELD --first N` repeats it.
`--append` goes on where the recorded campaign stopped, from the trial that failed where one did,
and adds to its figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from rich.progress import Progress

from sfumato.ops.library import kernel_level
from tests.endurance.campaign import Attack, Record, run_campaign
from tests.endurance.files import FILES
from tests.endurance.kernels import KERNELS
from tests.endurance.kills import KILLS
from tests.endurance.load import LOAD, ROWS
from tests.endurance.losses import LOSSES
from tests.endurance.metrics import SCORES
from tests.endurance.pages import PAGES
from tests.endurance.smoothing import MAPS
from tests.endurance.studies import STUDIES

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "endurance.json"
ATTACKS: dict[str, Attack] = {
    each.name: each for each in (LOSSES, SCORES, MAPS, FILES, PAGES, STUDIES, KERNELS, KILLS, LOAD)
}


def main() -> int:
    """Attack, write what was found, and say it."""
    given = _arguments()
    LOAD.rows = given.rows
    chosen = {name: ATTACKS[name] for name in given.only or ATTACKS}
    kept = read_records(given.out) if given.append else {}
    records = {name: kept.get(name) or Record(next=given.first) for name in chosen}
    warnings.simplefilter("ignore")  # PyTorch's, on the speed of its own transforms
    with Progress() as bar:
        tasks = {name: bar.add_task(name, total=None) for name in chosen}

        def tell(name: str, record: Record) -> None:
            bar.update(tasks[name], description=f"{name}: {record.cases:,} cases")

        run_campaign(chosen, records, seconds=60 * given.minutes, tell=tell)
    commit = _commit()
    for record in records.values():
        record.commits = [*(each for each in record.commits if each != commit), commit]
    write_records(given.out, {**kept, **records})
    failures = [(name, each) for name, record in records.items() for each in record.failures]
    for name, failure in failures:
        print(f"\n{name}, trial {failure['number']}:\n{failure['example']}", file=sys.stderr)
    print(", ".join(f"{name} {record.cases:,}" for name, record in records.items()), "cases")
    print(f"{len(records) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.endurance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", action="append", choices=sorted(ATTACKS), default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--append", action="store_true", help="go on with the recorded campaign")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the audit under load")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()


def read_records(path: Path) -> dict[str, Record]:
    """The fields of a recorded campaign; none where there is no such file."""
    if not path.exists():
        return {}
    fields = json.loads(path.read_text())["fields"]
    return {name: Record.from_json(each) for name, each in fields.items()}


def write_records(path: Path, records: dict[str, Record]) -> None:
    content = {
        "machine": {
            "processor": platform.machine(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "kernels": kernel_level(),
        },
        "fields": {name: record.as_json() for name, record in records.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
