"""How many images a run left out: in its metrics, under its tables, of every set it used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato.engine import RunConfig, RunDirectory, parse, run
from sfumato.report import compare_methods, read_studies
from sfumato.report.recommendation import note


def photos(root: Path, count: int, bad: int) -> list[str]:
    """Two classes of JPEG files, of which the last ones of the first class are cut short."""
    cut = []
    for name in ("ant", "bee"):
        (root / name).mkdir(parents=True)
        for number in range(count):
            path = root / name / f"{number}.jpg"
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
            if name == "ant" and number >= count - bad:
                path.write_bytes(path.read_bytes()[:-100])
                cut.append(str(path))
    return cut


@pytest.mark.filterwarnings("ignore:the temperature ended")
def test_the_count_is_a_number_of_the_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    bad = photos(tmp_path / "photos", 15, 3)
    bad += photos(tmp_path / "camera", 4, 1)
    files = {"name": "folder", "on_bad_image": "skip"}
    camera = {**files, "root": str(tmp_path / "camera"), "test": "all"}
    content = {
        **tiny,
        "data": {**files, "root": str(tmp_path / "photos")},
        "train": {"epochs": 1, "batch_size": 8},
        "evaluate": {"resamples": 20, "also": {"camera": camera}},
    }
    found = run(parse(RunConfig, content), tmp_path / "runs", show=False)
    assert found.metrics()["skipped_images"] == 4
    listed = json.loads((found.path / "skipped_images.json").read_text())
    assert sorted(listed["images"]) == sorted(bad)
    findings = compare_methods(read_studies([found.path]))
    assert "could not be decoded were left out, up to 4 of a run" in note(findings)
    assert not [each.id for each in findings.columns if "skipped" in each.id]


def test_mended_files_are_not_listed_any_more(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.write_skipped({"a.jpg": "cut short"})
    directory.write_skipped({})
    directory.write_metrics({"test": {}})
    assert directory.metrics() == {"test": {}}
