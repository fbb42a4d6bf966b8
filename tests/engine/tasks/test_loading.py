"""What a plan says of images in files, and that it decodes few of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sfumato.data.files import FileTensor
from sfumato.data.loader import VARIABLE
from sfumato.engine import RunConfig, parse
from sfumato.engine.timing import ImageLoading, Rehearsal

CLASSES, EACH = 4, 250


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """As ILSVRC has them: train/ with a folder for each class, larger than what is trained on."""
    for part, count in (("train", EACH), ("test", 100)):
        for number in range(CLASSES):
            folder = tmp_path / part / f"n{number:08}"
            folder.mkdir(parents=True)
            Image.new("RGB", (24, 20), (number, 9, 9)).save(folder / "0.JPEG")
            content = (folder / "0.JPEG").read_bytes()
            for place in range(1, count):
                (folder / f"{place}.JPEG").write_bytes(content)
    return tmp_path


def test_a_plan_decodes_few_files(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    data = {"name": "folder", "root": str(photos), "size": 16, "validation": 100}
    content: dict[str, Any] = {
        "data": {**data, "in_memory": False},
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "augment": "resized_crop",
        "standardise": {"mean": [0.5] * 3, "std": [0.5] * 3},
        "train": {"epochs": 2, "batch_size": 64},
        "evaluate": {"resamples": 0, "corruptions": ["contrast"], "severities": [1]},
    }
    decoded = []
    read = FileTensor._read

    def counted(self: FileTensor, number: int, expected: tuple[int, ...]) -> Any:
        decoded.append(number)
        return read(self, number, expected)

    monkeypatch.setattr(FileTensor, "_read", counted)
    costs = Rehearsal().costs(parse(RunConfig, content))
    reading = costs.reading
    assert reading is not None
    assert (reading.images, reading.steps, reading.workers) == (900, 14, 2)
    size = (photos / "train" / "n00000000" / "0.JPEG").stat().st_size
    assert reading.bytes_per_epoch == pytest.approx(size * (900 + 100), rel=0.05)
    assert reading.memory == 3 * 64 * 3 * 16 * 16  # one batch in the making, two that wait
    assert costs.epoch > reading.seconds > 0  # a processor does both
    assert costs.evaluation > 0
    assert 0 < len(decoded) < 300  # of 1,400


def test_a_set_in_memory_reads_nothing() -> None:
    content = {
        "data": {"name": "scenes", "train": 64, "validation": 20, "test": 30, "size": 16},
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "train": {"epochs": 1, "batch_size": 32},
        "evaluate": {"resamples": 0},
    }
    found = Rehearsal().costs(parse(RunConfig, content)).reading
    assert found == ImageLoading(64, 2, 0, 64 * 3 * 16 * 16, 0, 0.0)
