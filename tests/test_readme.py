"""The README's two commands are the ones that are run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_commands_install_by_extras_that_exist() -> None:
    readme_command = runpy.run_path(str(ROOT / ".ci" / "readme_command.py"))["readme_command"]
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML, 3.10 does not")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert readme_command("quickstart").endswith("sfumato quickstart")
    assert readme_command("test").endswith("pytest")
    assert '".[study]"' in readme_command("quickstart")
    assert '".[test]"' in readme_command("test")
    assert {"study", "ray", "export", "test", "dev"} <= extras.keys()


def test_ci_runs_the_readme_command() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "readme_command.py test" in script
    assert "ruff check" in script
    assert "mypy" in script
