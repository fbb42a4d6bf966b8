"""The preview is a picture on disk with the rows that it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

from sfumato.data.scenes import preview


def test_writes_a_picture(tmp_path: Path) -> None:
    path = preview(tmp_path / "scenes.png", columns=6, size=16)
    picture = matplotlib.image.imread(path)
    height, width, _ = picture.shape
    assert path == tmp_path / "scenes.png"
    assert height > 1500
    assert width > 1000
    colourful = (picture[..., :3].max(-1) - picture[..., :3].min(-1)) > 0.3
    assert 0.05 < colourful.mean() < 0.6


def test_more_columns_make_it_wider(tmp_path: Path) -> None:
    pictures = [
        matplotlib.image.imread(preview(tmp_path / f"{n}.png", columns=n, size=16)) for n in (6, 8)
    ]
    assert pictures[0].shape[0] == pictures[1].shape[0]
    assert pictures[0].shape[1] < pictures[1].shape[1]


def test_importing_scenes_does_not_import_matplotlib() -> None:
    code = "import sys, sfumato.data.scenes; print('matplotlib' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ending of path must be one of \['.png', '.pdf', '.svg'"):
        preview(tmp_path / "scenes.txt")
    with pytest.raises(ValueError, match="path must be in a folder that exists"):
        preview(tmp_path / "absent" / "scenes.png")
    with pytest.raises(ValueError, match="columns must be at least 6 and at most 20, got 2"):
        preview(tmp_path / "scenes.png", columns=2)
