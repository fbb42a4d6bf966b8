"""The versions that `.ci/run` tests as the oldest are the lower bounds of pyproject.toml."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[1]
COMPANIONS = {"click", "pyparsing"}  # not required by us, pinned beside those that need them


def _lower_bounds() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"]]
    for extra in ("study", "ray", "timm", "huggingface", "export", "test"):
        listed += [each for each in extras[extra] if not each.startswith("sfumato[")]
    bounds = {}
    for requirement in listed:
        found = re.fullmatch(r"([a-z-]+)>=([0-9.]+)(;.*)?", requirement)
        assert found, f"{requirement} needs a lower bound and nothing else"
        bounds[found[1]] = found[2]
    return bounds


def _release(version: str) -> str:
    """2.12 and 2.12.0 are the same release."""
    return re.sub(r"(\.0)+$", "", version)


def test_pins_are_the_lower_bounds() -> None:
    lines = (ROOT / ".ci" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    ours = {name: _release(pin) for name, pin in pins.items() if name not in COMPANIONS}
    assert ours == {name: _release(bound) for name, bound in _lower_bounds().items()}
