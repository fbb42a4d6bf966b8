"""Detection data: scenes with several figures, COCO files, batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato.data import DetectionDataset, DetectionLoader, Objects, read_coco_detection, scenes
from sfumato.data.detection import flip_objects


def test_scenes_do_not_depend_on_how_many_follow() -> None:
    few, many = scenes.generate_objects(5, seed=3), scenes.generate_objects(60, seed=3)
    assert torch.equal(few.images, many.images[:5])
    for a, b in zip(few.objects, many.objects[:5], strict=True):
        assert torch.equal(a.boxes, b.boxes)
        assert torch.equal(a.labels, b.labels)
    assert not torch.equal(few.images, scenes.generate_objects(5, seed=4).images)


def test_boxes_hold_figures() -> None:
    found = scenes.generate_objects(200, seed=1, size=48, objects=3)
    counts = [len(each.labels) for each in found.objects]
    assert set(counts) == {1, 2, 3}
    assert {int(label) for each in found.objects for label in each.labels} == set(range(10))
    for each in found.objects:
        assert bool((each.boxes >= 0).all() and (each.boxes <= 48).all())
        sides = each.boxes[:, 2:] - each.boxes[:, :2]
        # the mask lies within the box, and the area counts on a canvas of 256 pixels
        assert bool((each.areas <= sides.prod(1) * (256 / 48) ** 2).all())
        assert bool((each.areas >= 0.15 * sides.prod(1) * (256 / 48) ** 2).all())


def test_figures_stand_out_in_their_boxes() -> None:
    found = scenes.generate_objects(40, seed=2, size=64, objects=4, noise=0.0)
    inside, outside = [], []
    for image, each in zip(found.images, found.objects, strict=True):
        brightness = image.float().amax(0)
        mask = torch.zeros(64, 64, dtype=torch.bool)
        for left, top, right, bottom in each.boxes.int().tolist():
            mask[top:bottom, left:right] = True
        inside.append(brightness[mask].mean())
        outside.append(brightness[~mask].mean())
    # figures are brighter than their background
    assert float(torch.stack(inside).mean() - torch.stack(outside).mean()) > 25


def test_flip_moves_pixels_and_boxes_together() -> None:
    image = torch.zeros(3, 6, 10)
    image[:, 1:3, 2:5] = 1.0
    nothing = torch.zeros(1, dtype=torch.bool)
    objects = Objects(torch.tensor([[2.0, 1, 5, 3]]), torch.tensor([4]), torch.ones(1), nothing)
    flipped, moved = flip_objects(image, objects)
    left, top, right, bottom = moved.boxes[0].int().tolist()
    assert float(flipped[:, top:bottom, left:right].min()) == 1.0
    assert float(flipped.sum()) == float(image.sum())


def test_loader_is_a_function_of_seed_and_epoch_and_ranks_share_a_batch() -> None:
    data = scenes.generate_objects(11, size=16)

    def order(**options: int) -> list[list[int]]:
        loader = DetectionLoader(data, 4, shuffle=True, seed=options.get("seed", 0))
        loader.set_epoch(options.get("epoch", 0))
        return [batch.index for batch in loader]

    assert order() == order()
    assert order() != order(epoch=1)
    assert [len(batch) for batch in order()] == [4, 4]
    ranks = [
        [b.index for b in DetectionLoader(data, 4, shuffle=True, rank=r, world_size=2)]
        for r in (0, 1)
    ]
    assert [a + b for a, b in zip(*ranks, strict=True)] == order()
    plain = [i for batch in DetectionLoader(data, 4) for i in batch.index]
    assert plain == list(range(11))


@pytest.fixture
def coco(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "images").mkdir()
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[10:30, 20:60] = 255
    Image.fromarray(pixels).save(tmp_path / "images" / "a.png")
    Image.fromarray(pixels[:20, :20]).save(tmp_path / "images" / "b.png")
    return {
        "images": [
            {"id": 7, "file_name": "a.png", "width": 80, "height": 40},
            {"id": 3, "file_name": "b.png", "width": 20, "height": 20},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 2, "name": "bicycle"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 18, "bbox": [20, 10, 40, 20], "area": 700},
            {"id": 2, "image_id": 7, "category_id": 2, "bbox": [70, 30, 50, 50], "iscrowd": 1},
        ],
    }


def _write(folder: Path, content: Any) -> Path:
    path = folder / "annotations.json"
    path.write_text(json.dumps(content))
    return path


def test_coco(tmp_path: Path, coco: dict[str, Any]) -> None:
    found = read_coco_detection(_write(tmp_path, coco), tmp_path / "images", longest=40)
    assert found.classes == ("bicycle", "dog")
    assert [tuple(image.shape) for image in found.images] == [(3, 20, 40), (3, 20, 20)]
    assert list(found.scales) == [2.0, 1.0]
    first = found.objects[0]
    assert first.boxes.tolist() == [[10, 5, 30, 15], [35, 15, 40, 20]]  # the second one is cut
    assert first.labels.tolist() == [1, 0]
    assert first.areas.tolist() == [700, 2500]
    assert first.crowd.tolist() == [False, True]
    assert (len(found.objects[1].labels), found.num_objects) == (0, 1)
    assert float(found.images[0][:, 7:13, 12:28].float().mean()) == 255


def test_bad_coco_boxes(tmp_path: Path, coco: dict[str, Any]) -> None:
    coco["annotations"] += [
        {"id": 3, "image_id": 7, "category_id": 2, "bbox": [90, 0, 5, 5]},
        {"id": 4, "image_id": 99, "category_id": 2, "bbox": [0, 0, 5, 5]},
    ]
    path = _write(tmp_path, coco)
    with pytest.raises(ValueError, match=r"annotation 3 has no area.*2 such"):
        read_coco_detection(path, tmp_path / "images")
    with pytest.warns(UserWarning, match="left out 2 boxes"):
        found = read_coco_detection(path, tmp_path / "images", on_bad_box="skip")
    assert len(found.objects[0].labels) == 2


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("images", "file_name", {}), ("images", "id", []), ("annotations", "category_id", None)],
)
def test_coco_values_of_another_kind(
    tmp_path: Path, coco: dict[str, Any], section: str, key: str, value: object
) -> None:
    """Found by the stress test: they ended in a TypeError."""
    coco[section][0][key] = value
    with pytest.raises(ValueError, match=rf"{section}\[0\] has .* for {key}, which must be"):
        read_coco_detection(_write(tmp_path, coco), tmp_path / "images")


def test_bad_coco_files(tmp_path: Path, coco: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs a list 'annotations'"):
        read_coco_detection(_write(tmp_path, {"images": []}), tmp_path)
    Image.new("RGB", (80, 40)).save(tmp_path / "outside.png")
    for name in ("gone.png", "../outside.png"):
        coco["images"][0]["file_name"] = name
        with pytest.raises(FileNotFoundError, match=name):
            read_coco_detection(_write(tmp_path, coco), tmp_path / "images")


def test_dataset_refuses_boxes_without_area() -> None:
    nothing = torch.zeros(1, dtype=torch.bool)
    flat = Objects(torch.tensor([[1.0, 1, 1, 3]]), torch.tensor([0]), torch.ones(1), nothing)
    with pytest.raises(ValueError, match="without area"):
        DetectionDataset(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), [flat], ("a",), [1.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox": [float("nan"), 1, 2, 3]}, "annotation .* not finite"),
        ({"bbox": [1, 1, float("inf"), 3]}, "annotation .* not finite"),
        ({"bbox": [None, 1, 2, 3]}, "annotation .*: bbox must be x, y, width, height"),
        ({"bbox": [1, 2, 3]}, "annotation .*: bbox must be x, y, width, height"),
        ({"bbox": None}, "has None for bbox"),
        ({"area": "large"}, "area must be a number, got 'large'"),
        ({"area": float("nan")}, "annotation .* not finite"),
        ({"area": 10**400}, "area must be a number"),
    ],
)
def test_coco_numbers_are_numbers(
    tmp_path: Path, coco: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    coco["annotations"][0] |= change
    with pytest.raises(ValueError, match=rf"annotations\.json.*{message}"):
        read_coco_detection(_write(tmp_path, coco), tmp_path / "images")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\udcff.png", "../secret.png", ""])
def test_coco_names_that_no_file_has(tmp_path: Path, coco: dict[str, Any], name: str) -> None:
    coco["images"][0]["file_name"] = name
    with pytest.raises((ValueError, FileNotFoundError), match=r"annotations\.json"):
        read_coco_detection(_write(tmp_path, coco), tmp_path / "images")


def test_coco_area_may_be_null(tmp_path: Path, coco: dict[str, Any]) -> None:
    coco["annotations"][0]["area"] = None
    found = read_coco_detection(_write(tmp_path, coco), tmp_path / "images")
    assert found.objects[0].areas.tolist() == [800, 2500]  # of the boxes


@pytest.mark.parametrize("width", [30_000, 79, 0, float("nan")])
def test_coco_images_have_the_size_of_their_annotation(
    tmp_path: Path, coco: dict[str, Any], width: float
) -> None:
    coco["images"][0]["width"] = width
    with pytest.raises(ValueError, match=r"annotated as \d+x|a number of pixels, at least 1"):
        read_coco_detection(_write(tmp_path, coco), tmp_path / "images")


def test_coco_images_are_turned_before_they_are_measured(
    tmp_path: Path, coco: dict[str, Any]
) -> None:
    path = _write(tmp_path, coco)
    entry = coco["images"][0]
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.new("RGB", (entry["height"], entry["width"]))
    picture.save(tmp_path / "images" / entry["file_name"], exif=exif)
    found = read_coco_detection(path, tmp_path / "images")
    assert found.images[0].shape[1:] == (entry["height"], entry["width"])
