"""The folder on which a study is planned before its images are there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from sfumato.data import load_folder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow  # the imports of the benchmark
def test_a_stand_in_has_the_layout_of_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    make = runpy.run_path(str(BENCHMARKS / "stand_in.py"))["make_stand_in"]
    root = tmp_path / "sets" / "imagenet"
    make(root, train=70, val=20, classes=5, width=32, height=24)
    data = load_folder(root=root, size=16, validation=10, in_memory=False)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [60, 10, 20]
    assert len(data.classes) == 5
    assert data.train.images[:2].shape == (2, 3, 16, 16)
    with pytest.raises(FileExistsError, match="is not empty"):
        make(root, train=1, val=1, classes=1)
