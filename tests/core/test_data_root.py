"""Where data sets lie: relative paths begin in one folder, and runs are named without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sfumato._core.spec import DATA_ROOT, in_data_root, params_in_data_root, resolve
from sfumato.cli import app
from sfumato.data import load_data
from sfumato.engine import RunConfig
from sfumato.engine.config.sections import fingerprint

SPEC = {"name": "npz", "train": "sets/train.npz", "test": "sets/test.npz", "validation": 2}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    (folder / "sets").mkdir(parents=True)
    for part in ("train", "test"):
        images = np.zeros((6, 8, 8, 3), dtype=np.uint8)
        np.savez(folder / "sets" / f"{part}.npz", images=images, labels=np.arange(6) % 2)
    return folder


def _study(folder: Path) -> Path:
    path = folder / "study.yaml"
    data = "{name: npz, train: sets/train.npz, test: sets/test.npz, validation: 2}"
    model = "{name: resnet, depth: 8, width: 2}"
    path.write_text(
        f"name: s\nrecipe: {{data: {data}, model: {model}, train: {{epochs: 1, batch_size: 2}}}}\n"
        "methods: {a: {}}\n"
    )
    return path


def test_relative_paths_begin_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"train\.npz: no such file"):
        load_data(SPEC)
    monkeypatch.setenv(DATA_ROOT, str(root))
    assert len(load_data(SPEC).test) == 6
    assert in_data_root("sets") == root / "sets"
    assert in_data_root(root) == root


def test_only_what_may_be_a_path_is_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*, root: str | Path, column: str, extra: Path | None = None) -> None: ...

    monkeypatch.setenv(DATA_ROOT, str(root))
    source = resolve({"name": "load", "root": "a", "column": "b"}, {"load": load}, "data")
    assert params_in_data_root(source) == {"root": root / "a", "column": "b", "extra": None}


def test_a_run_is_named_without_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"data": SPEC, "model": "resnet"}
    before = fingerprint(RunConfig(**config))
    monkeypatch.setenv(DATA_ROOT, str(root))
    assert fingerprint(RunConfig(**config)) == before


def test_missing_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DATA_ROOT, str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="says where data sets lie"):
        in_data_root("sets")
    monkeypatch.delenv(DATA_ROOT)
    asked = CliRunner().invoke(
        app, ["check", str(_study(tmp_path)), "--data", str(tmp_path / "none")]
    )
    assert asked.exit_code == 2
    assert "no such folder" in " ".join(asked.output.replace("│", " ").split())


@pytest.mark.slow
def test_processes_of_a_study_know_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_ROOT, "")
    study = str(_study(tmp_path))
    missing = CliRunner().invoke(app, ["check", study])
    assert "--data ROOT or SFUMATO_DATA says where else" in str(missing.exception)
    out = str(tmp_path / "out")
    command = ["run", study, "--data", str(root), "--out", out, "--workers", "1", "--quiet"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
