"""What a plain `pip install sfumato` can do: the extras of pyproject.toml are hidden here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = {"lightning-fabric": "lightning_fabric", "pyyaml": "yaml", "scikit-learn": "sklearn"}
PLAIN = [
    "analysis",
    "augment",
    "corruptions",
    "data",
    "features",
    "functional",
    "inputs",
    "labels",
    "metrics",
    "models",
    "predictions",
]
HIDE = """
import sys

class Without:
    # Finders that find neither the modules nor, as torchmetrics asks, the distributions.
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        hidden = name.split(".")[0] in MODULES
        return None if hidden else self.finder.find_spec(name, path, target)
    def find_distributions(self, context):
        look = getattr(self.finder, "find_distributions", None)
        return [] if look is None or context.name in DISTRIBUTIONS else look(context)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9-]", requirement)[0] for requirement in requirements}


def _extras() -> list[str]:
    groups = PROJECT["optional-dependencies"]
    extras = ("study", "ray", "timm", "huggingface", "export", "test")
    named = set().union(*(_names(groups[extra]) for extra in extras))
    return sorted(named - _names(PROJECT["dependencies"]) - {"sfumato", "pytest", "pytest-xdist"})


def _run(code: str) -> subprocess.CompletedProcess[str]:
    hidden = _extras()
    names = f"DISTRIBUTIONS = {hidden!r}; MODULES = {[MODULES.get(n, n) for n in hidden]!r}"
    program = f"{names}\n{HIDE}\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_built_in_data_loads() -> None:
    done = _run(
        "from sfumato.data import load_data, load_detection_data\n"
        "sizes = dict(train=10, validation=5, test=5)\n"
        "print(len(load_data({'name': 'scenes', **sizes}).train))\n"
        "print(len(load_detection_data({'name': 'scene_objects', **sizes}).train.images))\n"
    )
    assert (done.stdout, done.stderr) == ("10\n10\n", "")


def test_every_public_name_of_the_plain_packages_loads() -> None:
    done = _run(
        "import importlib\n"
        f"for module in {PLAIN!r}:\n"
        "    content = importlib.import_module(f'sfumato.{module}')\n"
        "    for name in content.__all__: getattr(content, name)\n"
    )
    assert done.stderr == ""


def test_help_passes_over_what_needs_an_extra() -> None:
    done = _run(
        "import inspect, sfumato\n"
        "print(*[name for name, _ in inspect.getmembers(sfumato, inspect.ismodule)])\n"
        "sfumato.study"
    )
    found = done.stdout.split()
    assert set(PLAIN) <= set(found)
    assert "study" not in found
    assert "AttributeError: sfumato.study needs" in done.stderr
    assert "pip install 'sfumato[study]'" in done.stderr


def test_command_says_what_to_install() -> None:
    done = _run("import runpy; runpy.run_module('sfumato', run_name='__main__')")
    assert done.returncode == 1
    assert done.stderr == (
        "error: the command line needs typer: python3 -m pip install 'sfumato[study]'\n"
    )
