"""OpenImages in its published layout: leaves, merging, the cap of each class, mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato.data import load_data

NAMES = {"/m/p": "Person", "/m/m": "Man", "/m/w": "Woman", "/m/c": "Car", "/m/t": "Tyre"}
HEAD = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsGroupOf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six images a part: a man on the left and a car on the right, a woman or a person between."""
    leaves = [{"LabelName": code} for code in ("/m/m", "/m/w")]
    car = {"LabelName": "/m/c", "Part": [{"LabelName": "/m/t"}]}
    tree = {"LabelName": "/m/0", "Subcategory": [{"LabelName": "/m/p", "Subcategory": leaves}, car]}
    (tmp_path / "bbox_labels_600_hierarchy.json").write_text(json.dumps(tree))
    lines = [f"{code},{name}" for code, name in NAMES.items()]
    (tmp_path / "class-descriptions-boxable.csv").write_text("\n".join(lines) + "\n")
    for part, file in (("train", "oidv6-train"), ("validation", "validation")):
        (tmp_path / part).mkdir()
        rows = []
        for number in range(6):
            name = f"{part}{number}"
            pixels = np.full((20, 20, 3), 10 * number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / part / f"{name}.jpg")
            middle = "/m/w" if number < 2 else "/m/p"
            for code, x1, x2 in (("/m/m", 0.0, 0.3), (middle, 0.4, 0.6), ("/m/c", 0.7, 1.0)):
                rows.append(f"{name},xclick,{code},1,{x1},{x2},0.1,0.9,0")
        (tmp_path / f"{file}-annotations-bbox.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    return tmp_path


def _load(folder: Path, **options: Any) -> Any:
    spec = {"name": "openimages", "root": str(folder), "size": 20, "validation": 1}
    return load_data({**spec, **options})


def _counts(part: Any) -> dict[str, int]:
    return {name: int((part.labels == label).sum()) for label, name in enumerate(part.classes)}


def test_leaves_and_what_they_hide(folder: Path) -> None:
    data = _load(folder)
    assert _counts(data.test) == {"Car": 6, "Man": 6, "Woman": 2}
    assert len(data.train) + len(data.validation) == 14
    assert data.test.boxes is not None
    every = _load(folder, leaves=False)
    assert _counts(every.test) == {"Car": 6, "Man": 6, "Person": 4, "Woman": 2}


def test_merging_and_leaving_out(folder: Path) -> None:
    data = _load(folder, merge={"Human": ["Man", "Woman"]}, exclude=["Car"])
    assert _counts(data.test) == {"Human": 8}


def test_a_cap_is_of_training_samples_only(folder: Path) -> None:
    data = _load(folder, per_class=3)
    train, validation = _counts(data.train), _counts(data.validation)
    whole = {name: train[name] + validation[name] for name in train}
    assert whole == {"Car": 3, "Man": 3, "Woman": 2}
    assert _counts(data.test) == {"Car": 6, "Man": 6, "Woman": 2}
    again, other = _load(folder, per_class=3), _load(folder, per_class=3, seed=5)
    assert (again.train.images[:] == data.train.images[:]).all()
    assert (other.train.images[:].float().mean() != data.train.images[:].float().mean()).item()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ["Bus"]}, "has no class 'Bus'"),
        ({"merge": {"A": ["Person"]}}, "'Person' has kinds of its own"),
        ({"merge": {"A": ["Man"], "B": ["Man"]}}, "'Man' is named twice"),
        ({"per_class": 0}, "per_class must be"),
        ({"test": "train"}, "test"),
    ],
)
def test_what_can_not_be(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _load(folder, **options)


def test_files_that_are_missing_or_something_else(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"test-annotations-bbox\.csv: not there"):
        _load(folder, test="test")
    (folder / "bbox_labels_600_hierarchy.json").write_text("[1]")
    with pytest.raises(ValueError, match="no hierarchy of classes"):
        _load(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "validation-annotations-bbox.csv",
            "LabelName,XMin,XMax,YMin,YMax,ImageID\n/m/m,0,1,0,1\n",
            "fewer fields than the heading has",
        ),
        ("validation-annotations-bbox.csv", HEAD + "\n" + "x" * 200_000, "a line has more than"),
        ("class-descriptions-boxable.csv", "/m/p," + "x" * 200_000, "a line has more than"),
        (
            "validation-annotations-bbox.csv",
            f'{HEAD}\n"' + "a\n" * 100_000,
            r"line 6\d{4}: field larger than field limit",
        ),
        (
            "class-descriptions-boxable.csv",
            '/m/p,"' + "a\n" * 100_000,
            r"line 6\d{4}: field larger than field limit",
        ),
        ("bbox_labels_600_hierarchy.json", "[" * 20_000, "no hierarchy of classes"),
    ],
)
def test_files_of_others(folder: Path, file: str, content: str, message: str) -> None:
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=f"{file}.*{message}"):
        _load(folder)
