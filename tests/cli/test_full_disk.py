"""A disk without room: one line that names the file, and nothing half-written is left.

A limit on the size of files stands for it, which the system enforces without a disk of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.report.conftest import write_study

resource = pytest.importorskip("resource", reason="no limits on this system")
CALLS = """
import contextlib, io, json, resource, sys
from sfumato.cli import main
# Some versions of these write a file when they are imported.
import matplotlib.font_manager, sfumato.study

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
for arguments in json.loads(sys.argv[2]):
    sys.argv = ["sfumato", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([status, said.getvalue()]), flush=True)
"""


def _written(folder: Path) -> None:
    numbers = np.random.default_rng(0)
    labels = np.arange(60) % 3
    np.savez(folder / "p.npz", logits=numbers.normal(size=(60, 3)), labels=labels)
    images = numbers.integers(0, 255, size=(20, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "t.npz", images=images, labels=labels[:20], classes=np.array(list("abc")))
    for name in ("photos/a", "photos/b"):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            Image.fromarray(images[number]).save(folder / name / f"{number}.png")
    write_study(folder, {"plain": 0.0, "smooth": 0.02}, name="study")


def test_every_command_that_writes(tmp_path: Path) -> None:
    _written(tmp_path)
    calls = {
        "out/new.yaml": ["new", "x", "--data", "photos"],
        "out/s.json": ["schema"],
        "out/scenes.png": ["list", "--preview", "scenes"],
        "out/audit": ["audit", "p.npz", "--resamples", "5", "--quiet"],
        "out/page": ["report", "study"],
        "out/table.csv": ["report", "study", "--format", "csv"],
        "out/c.json": ["calibrate", "p.npz", "--folds", "2", "--methods", "temperature"],
    }
    (tmp_path / "out").mkdir()
    commands = [[*call, "--out", out] for out, call in calls.items()]
    for layout in ("arrays", "folders"):
        commands.append(["corrupt", "t.npz", f"out/{layout}", "--layout", layout, "--quiet"])
    done = subprocess.run(
        [sys.executable, "-c", CALLS, "300", json.dumps(commands)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ends) == len(commands), done.stderr
    for command, (status, said) in zip(commands, ends, strict=True):
        *progress, said = said.splitlines()
        assert (status, len(progress)) == (2, command[0] == "calibrate"), (command, progress, said)
        assert said.startswith("error: out/"), said
        assert "no room on the disk (" in said
        assert "kB are left); free some, or write elsewhere" in said
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not left


def test_a_library_that_can_not_be_imported_for_want_of_room(tmp_path: Path) -> None:
    """The message must not import it a second time."""
    code = """
import errno, sys
from sfumato.cli import main

class Full:
    def find_spec(self, name, path=None, target=None):
        if name in ("sfumato.study.schema", "sfumato.engine.config.sections"):
            raise OSError(errno.EFBIG, "File too large")

sys.meta_path.insert(0, Full())
sys.argv = ["sfumato", "schema"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert done.stderr == "error: File too large: free some room, or write elsewhere\n"


def test_standard_output_without_room() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no device without room on this system")
    with full.open("w") as room:
        done = subprocess.run(
            [sys.executable, "-m", "sfumato", "schema"], stdout=room, stderr=-1, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "error: No space left on device: free some room, or write elsewhere\n"
