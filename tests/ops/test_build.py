"""Compiling at installation, which may fail but must not stop it."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(root: Path) -> dict[str, Any]:
    hook = load().KernelHook(str(root), {}, None, None, str(root), "wheel")
    data: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", data)
    return data


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been run; every command fails."""
    seen: list[list[str]] = []

    def fail(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        return subprocess.CompletedProcess(command, 1, "", "refused")

    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(subprocess, "run", fail)
    return seen


@pytest.mark.parametrize(
    ("value", "first"), [("env -u A cc", ["env", "-u", "A", "cc"]), ("", ["cc"])]
)
def test_compiler_of_the_environment(
    value: str,
    first: list[str],
    tmp_path: Path,
    commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CC", value)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    (tmp_path / "src/sfumato/ops").mkdir(parents=True)
    assert build(tmp_path) == {"artifacts": []}
    assert commands
    assert all(command[: len(first)] == first for command in commands)


def test_no_compiler(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert build(tmp_path) == {"artifacts": []}
    assert not commands


def test_folder_that_cannot_be_written(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("tempfile.TemporaryDirectory", _refuse)
    assert build(tmp_path) == {"artifacts": []}


def _refuse(**options: Any) -> None:
    raise PermissionError("read-only file system")
