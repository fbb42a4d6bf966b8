"""Print a command of the README: the code block behind `<!-- command: NAME -->`."""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def readme_command(name: str) -> str:
    pattern = rf"<!-- command: {re.escape(name)} -->\s*```(?:bash)?\n(.+?)\n```"
    found = re.findall(pattern, README.read_text(encoding="utf-8"), flags=re.DOTALL)
    if len(found) != 1:
        raise SystemExit(f"README.md must hold the command {name!r} once, found {len(found)}")
    return found[0].strip()


if __name__ == "__main__":
    print(readme_command(sys.argv[1]))
