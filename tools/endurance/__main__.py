"""Run: python -m tools.endurance --minutes 30 [--only losses --only metrics] [--first 0] [--append]

Each surface gets an equal share of the time. Writes benchmarks/results/endurance.json (cases,
violations, machine, commits) and its table in docs/reliability.md. Ends with 1 where a guarantee
does not hold, with the smallest example. Trial N of a surface is always the same:
`--only SURFACE --first N` repeats it. `--append` goes on where the record stopped, from the trial
that failed where one did, and adds to its figures; `--only` leaves the other records as they are.
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
from tools.endurance.files import FILES
from tools.endurance.kernels import KERNELS
from tools.endurance.kills import KILLS
from tools.endurance.load import LOAD, ROWS
from tools.endurance.losses import LOSSES
from tools.endurance.metrics import SCORES
from tools.endurance.pages import PAGES
from tools.endurance.smoothing import MAPS
from tools.endurance.strangers import STRANGERS
from tools.endurance.studies import STUDIES
from tools.endurance.trials import Record, Surface, run_trials

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "endurance.json"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- figures of the stress test -->\n", "<!-- end -->\n"
WHAT = {
    "losses": "calls of losses, with their gradients",
    "metrics": "calls of metrics, whole and in batches",
    "smoothing": "maps through the smoothing layer",
    "kernels": "the same three under sanitizers",
    "files": "unreadable or hostile files",
    "strangers": "run directories, archives, bombs, models and names from strangers",
    "pages": "pages of hostile names in Chromium",
    "studies": "drawn studies",
    "kills": "processes killed, frozen, without room or clock",
    "load": "studies of 200 runs, audits, 100,000 steps of a loss",
}
SURFACES: dict[str, Surface] = {
    each.name: each
    for each in (LOSSES, SCORES, MAPS, FILES, STRANGERS, PAGES, STUDIES, KERNELS, KILLS, LOAD)
}


def main() -> int:
    """Run the trials, write what was found, and say it."""
    given = _arguments()
    LOAD.rows = given.rows
    chosen = {name: SURFACES[name] for name in given.only or SURFACES}
    kept = read_records(given.out) if given.append or given.only else {}
    resumed = kept if given.append else {}
    records = {name: resumed.get(name) or Record(next=given.first) for name in chosen}
    warnings.simplefilter("ignore")  # PyTorch's, on the speed of its own transforms
    with Progress() as bar:
        tasks = {name: bar.add_task(name, total=None) for name in chosen}

        def tell(name: str, record: Record) -> None:
            bar.update(tasks[name], description=f"{name}: {record.cases:,} cases")

        run_trials(chosen, records, seconds=60 * given.minutes, tell=tell)
    commit = _commit()
    for record in records.values():
        record.commits = [*(each for each in record.commits if each != commit), commit]
    write_records(given.out, {**kept, **records})
    if given.out == RESULT:
        page = with_figures(PAGE.read_text(encoding="utf-8"), json.loads(RESULT.read_text()))
        PAGE.write_text(page, encoding="utf-8")
    failures = [(name, each) for name, record in records.items() for each in record.failures]
    for name, failure in failures:
        print(f"\n{name}, trial {failure['number']}:\n{failure['example']}", file=sys.stderr)
    print(", ".join(f"{name} {record.cases:,}" for name, record in records.items()), "cases")
    print(f"{len(records) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.endurance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", action="append", choices=sorted(SURFACES), default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--append", action="store_true", help="go on with the record")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the audit under load")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()


def read_records(path: Path) -> dict[str, Record]:
    """Read the record of each surface; none where there is no such file."""
    if not path.exists():
        return {}
    surfaces = json.loads(path.read_text())["surfaces"]
    return {name: Record.from_json(each) for name, each in surfaces.items()}


def write_records(path: Path, records: dict[str, Record]) -> None:
    content = {
        "machine": {
            "processor": platform.machine(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "kernels": kernel_level(),
        },
        "surfaces": {name: record.as_json() for name, record in records.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def with_figures(text: str, result: dict[str, Any]) -> str:
    """Return the page with the table of a record."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{_table(result)}{END}{after}"


def _table(result: dict[str, Any]) -> str:
    surfaces = {name: result["surfaces"][name] for name in WHAT if name in result["surfaces"]}
    lines = ["| surface | trials | what a trial is | minutes | open violations |"]
    lines.append("|---|---|---|---|---|")
    for name, each in surfaces.items():
        minutes, failures = each["seconds"] / 60, len(each["failures"])
        lines.append(
            f"| `{name}` | {each['cases']:,} | {WHAT[name]} | {minutes:.0f} | {failures} |"
        )
    if "strangers" in surfaces:
        lines += ["", "Trials of `strangers`, by surface:", "", "| surface | trials |", "|---|---|"]
        lines += [f"| {name} | {count:,} |" for name, count in surfaces["strangers"]["of"].items()]
    seconds = sum(each["seconds"] for each in surfaces.values())
    commits = list(dict.fromkeys(each["commits"][-1] for each in surfaces.values()))
    machine = result["machine"]
    lines += [
        "",
        f"{seconds / 3600:.1f} hours in all, on {machine['processor']} with PyTorch "
        f"{machine['torch'].partition('+')[0]} and kernels at level {machine['kernels']};",
        f"the last trials at commit {', '.join(commits)}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
