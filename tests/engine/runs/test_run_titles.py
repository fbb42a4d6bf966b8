"""A run keeps its title in its study, wherever its files lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfumato.engine.evaluation.analyses import find_runs
from sfumato.engine.runs.directory import title_of_run


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study whose folder of runs is a link to elsewhere."""
    folder, disk = tmp_path / "study", tmp_path / "disk"
    for path in (folder, disk / "abc"):
        path.mkdir(parents=True)
    (folder / "runs").symlink_to(disk)
    (disk / "abc" / "config.yaml").touch()
    entry = {"method": "smooth", "seed": 3, "run": "abc"}
    (folder / "study.json").write_text(json.dumps({"runs": [entry]}))
    return folder


def test_linked_folder_of_runs(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert title_of_run(study / "runs" / "abc") == "smooth, seed 3"
    assert list(find_runs([study / "runs" / "abc"])[0]) == ["smooth, seed 3"]
    monkeypatch.chdir(study / "runs" / "abc")
    assert title_of_run(Path()) == "abc"  # the shell has left the link behind


def test_linked_run(tmp_path: Path) -> None:
    run = tmp_path / "study" / "runs" / "abc"
    run.mkdir(parents=True)
    entry = {"method": "smooth", "seed": 3, "run": "abc"}
    (tmp_path / "study" / "study.json").write_text(json.dumps({"runs": [entry]}))
    (tmp_path / "best").symlink_to(run)
    assert title_of_run(tmp_path / "best") == "smooth, seed 3"
    assert title_of_run(tmp_path / "study") == "study"
