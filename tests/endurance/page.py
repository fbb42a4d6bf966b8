"""The figures of the recorded campaign in docs/reliability.md: python -m tests.endurance.page"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
RESULT = ROOT / "benchmarks" / "results" / "endurance.json"
BEGIN, END = "<!-- figures of the campaign -->\n", "<!-- end -->\n"
WHAT = {
    "losses": "calls of losses, with their gradients",
    "metrics": "calls of metrics, whole and in batches",
    "smoothing": "maps through the smoothing layer",
    "kernels": "the same three under sanitizers",
    "files": "damaged or hostile files",
    "pages": "pages of hostile names in Chromium",
    "studies": "drawn studies",
    "kills": "processes killed, frozen, without room or clock",
    "load": "studies of 200 runs, audits, 100,000 steps of a loss",
}


def with_figures(text: str, result: dict[str, Any]) -> str:
    """The page with the table as the record has it."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{_table(result)}{END}{after}"


def _table(result: dict[str, Any]) -> str:
    fields = {name: result["fields"][name] for name in WHAT if name in result["fields"]}
    lines = ["| field | cases | what a case is | minutes | open failures |"]
    lines.append("|---|---|---|---|---|")
    for name, each in fields.items():
        minutes, failures = each["seconds"] / 60, len(each["failures"])
        lines.append(
            f"| `{name}` | {each['cases']:,} | {WHAT[name]} | {minutes:.0f} | {failures} |"
        )
    seconds = sum(each["seconds"] for each in fields.values())
    commits = list(dict.fromkeys(each["commits"][-1] for each in fields.values()))
    machine = result["machine"]
    lines += [
        "",
        f"{seconds / 3600:.1f} hours in all, on {machine['processor']} with PyTorch "
        f"{machine['torch'].partition('+')[0]} and kernels at level {machine['kernels']};",
        f"the last pieces at commit {', '.join(commits)}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the page."""
    text = with_figures(PAGE.read_text(encoding="utf-8"), json.loads(RESULT.read_text()))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
