"""Every example runs, as a script of its own: a module that another test imported does not help."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.notebooks import FOLDER, code_cells, run_cells, stored

ROOT = Path(__file__).resolve().parents[1]
# Each script with the settings that make it short, and what its last line says.
EXAMPLES = {
    "deploy_onnx.py": ([], "largest difference between onnxruntime and PyTorch"),
    "lightning_module.py": (["--epochs", "1", "--images", "100"], "validation_nll: "),
    "live_video.py": (["--demo", "--limit", "2", "--output", "frames"], "frame 1: "),
    "plain_pytorch.py": (["--epochs", "1", "--images", "200"], "ACLS"),
    "timm_model.py": ([], "step 4: loss "),
    "transformers_trainer.py": (["--epochs", "1", "--samples", "64"], "ECE of the Trainer"),
    "torchvision_segmentation.py": ([], "ECE over 7680 pixels"),
}
PACKAGES = {
    "deploy_onnx.py": ("onnxruntime", "onnxscript"),
    "lightning_module.py": ("lightning",),
    "timm_model.py": ("timm",),
    "transformers_trainer.py": ("transformers", "accelerate"),
}

# Seconds of imports; half a minute for transformers.
SLOW = {"deploy_onnx.py", "lightning_module.py", "timm_model.py", "transformers_trainer.py"}


def test_every_example_is_listed() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == EXAMPLES.keys()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in EXAMPLES],
)
def test_example_runs(name: str, tmp_path: Path) -> None:
    for package in PACKAGES.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    arguments, last_line = EXAMPLES[name]
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1].startswith(last_line), done.stdout


def test_notebooks_hold_small_outputs() -> None:
    paths = sorted(FOLDER.glob("*.ipynb"))
    assert len(paths) == 4
    for path in paths:
        assert path.stat().st_size < 20_000
        cells = code_cells(json.loads(path.read_text(encoding="utf-8")))
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        assert any(stored(cell) for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top to bottom, in an empty folder; numbers may differ, as those of other processors do."""
    monkeypatch.chdir(tmp_path)
    book = json.loads(path.read_text(encoding="utf-8"))
    printed = run_cells(book)
    assert [len(lines) for lines in printed] == [len(stored(cell)) for cell in code_cells(book)]
