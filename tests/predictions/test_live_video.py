"""The live example runs end to end: rendered frames, a folder, weights, and what it can't read."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_file

from sfumato.models import resnet

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "live_video.py"


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *map(str, arguments)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_demo_then_its_own_output_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, weights = tmp_path / "a", tmp_path / "b", tmp_path / "w.safetensors"
    _run(monkeypatch, "--demo", "--limit", "3", "--output", first)
    assert "network is untrained" in capsys.readouterr().out
    assert sorted(path.name for path in first.iterdir()) == ["00000.png", "00001.png", "00002.png"]
    save_file(resnet(8, num_classes=4, width=16).state_dict(), weights)
    options = ("--classes", "4", "--weights", weights, "--segment", "--size", "32")
    _run(monkeypatch, "--frames", first, "--output", second, *options)
    printed = capsys.readouterr().out
    assert "frame 2: mostly class" in printed
    assert "untrained" not in printed
    with Image.open(second / "00002.png") as drawn, Image.open(first / "00002.png") as frame:
        assert drawn.size == frame.size
        assert drawn.tobytes() != frame.tobytes()


def test_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    video = tmp_path / "video.mp4"
    video.touch()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(SystemExit, match="install PyAV"):
        _run(monkeypatch, "--frames", video)
    with pytest.raises(SystemExit, match="neither a folder nor a file"):
        _run(monkeypatch, "--frames", tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="no image"):
        _run(monkeypatch, "--frames", tmp_path / "empty")
