"""Every source of image files: in memory and in files it gives the same batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato.augment import Augment, BatchAugment
from sfumato.augment.geometry import RandomWindow
from sfumato.data import ArrayDataset, TensorLoader, load_data
from sfumato.data.files import FileTensor

SIZE = 16
BOX = (3, 4, 20, 18)


def picture(path: Path, number: int, size: tuple[int, int] = (40, 24)) -> None:
    """Smooth enough for JPEG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    few = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(few).resize(size, Image.Resampling.BICUBIC).save(path)


def labels(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    few = np.random.default_rng(number).integers(0, 3, (3, 5), dtype=np.uint8)
    Image.fromarray(few).resize((40, 24), Image.Resampling.NEAREST).save(path)


def folder(root: Path) -> dict[str, Any]:
    for number in range(20):
        picture(root / ("ant", "bee")[number % 2] / f"{number}.jpg", number)
    return {"root": str(root), "size": SIZE}


def tiny_imagenet(root: Path) -> dict[str, Any]:
    box, kinds = "\t".join(map(str, BOX)), ("n01", "n02")
    lines: dict[str, list[str]] = {kind: [] for kind in kinds}
    for number in range(16):
        kind = kinds[number % 2]
        picture(root / "train" / kind / "images" / f"{kind}_{number}.JPEG", number, (24, 24))
        lines[kind].append(f"{kind}_{number}.JPEG\t{box}")
        picture(root / "val" / "images" / f"val_{number}.JPEG", 100 + number, (24, 24))
    for kind in kinds:
        (root / "train" / kind / f"{kind}_boxes.txt").write_text("\n".join(lines[kind]) + "\n")
    tested = [f"val_{number}.JPEG\t{kinds[number % 2]}\t{box}" for number in range(16)]
    (root / "val" / "val_annotations.txt").write_text("\n".join(tested) + "\n")
    (root / "wnids.txt").write_text("n01\nn02\n")
    (root / "words.txt").write_text("n01\tant\nn02\tbee\n")
    return {"root": str(root), "size": SIZE}


def annotated(root: Path) -> dict[str, Any]:
    names = ("xmin", "ymin", "xmax", "ymax")
    box = "".join(f"<{name}>{side}</{name}>" for name, side in zip(names, BOX, strict=True))
    size = "<size><width>40</width><height>24</height></size>"
    spec: dict[str, Any] = {"format": "voc", "size": SIZE}
    for part in ("train", "test"):
        spec |= {f"{part}_{kind}": str(root / part / kind) for kind in ("images", "annotations")}
        (root / part / "annotations").mkdir(parents=True)
        for number in range(16):
            picture(root / part / "images" / f"{number}.jpg", number)
            thing = f"<object><name>{'ab'[number % 2]}</name><bndbox>{box}</bndbox></object>"
            text = f"<annotation>{size}{thing}{thing}</annotation>"
            (root / part / "annotations" / f"{number}.xml").write_text(text)
    return spec


def cub(root: Path) -> dict[str, Any]:
    lines: dict[str, list[str]] = {"classes": ["1 001.Albatross", "2 002.Wren"]}
    for number in range(1, 19):
        kind = number % 2
        name = f"{lines['classes'][kind].split()[1]}/{number:04}.jpg"
        picture(root / "images" / name, number)
        for table, text in (
            ("images", name),
            ("image_class_labels", str(kind + 1)),
            ("train_test_split", str(int(number % 3 != 0))),
            ("bounding_boxes", "15.0 5.0 20.0 10.0"),
        ):
            lines.setdefault(table, []).append(f"{number} {text}")
    for table, several in lines.items():
        (root / f"{table}.txt").write_text("\n".join(several) + "\n")
    return {"root": str(root), "size": SIZE}


def voc_segmentation(root: Path) -> dict[str, Any]:
    base = root / "VOCdevkit" / "VOC2012"
    for part, numbers in (("train", range(10)), ("val", range(10, 16))):
        for number in numbers:
            picture(base / "JPEGImages" / f"{number}.jpg", number)
            labels(base / "SegmentationClass" / f"{number}.png", number)
        listed = base / "ImageSets" / "Segmentation" / f"{part}.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("\n".join(map(str, numbers)) + "\n")
    return {"root": str(root), "size": SIZE}


def camvid(root: Path) -> dict[str, Any]:
    for part in ("train", "val", "test"):
        for number in range(6):
            picture(root / part / f"Seq_f{number:05}.png", number)
            labels(root / f"{part}annot" / f"Seq_f{number:05}.png", number)
    return {"root": str(root), "size": [SIZE, SIZE]}


def huggingface(root: Path) -> dict[str, Any]:
    return {"path": folder(root)["root"], "size": SIZE}


def assert_same(files: ArrayDataset, memory: ArrayDataset, augment: BatchAugment) -> None:
    """Two epochs, number by number."""
    assert isinstance(files.images, FileTensor)
    assert not memory.is_file_backed
    options: dict[str, Any] = {"augment": augment, "shuffle": True, "seed": 3, "workers": 0}
    ours, theirs = (TensorLoader(data, 4, **options) for data in (files, memory))
    for epoch in range(2):
        for loader in (ours, theirs):
            loader.set_epoch(epoch)
        for first, second in zip(ours, theirs, strict=True):
            torch.testing.assert_close(first, second, rtol=0, atol=0)


def check_both_ways(write: Callable[[Path], dict[str, Any]], root: Path) -> None:
    spec = {"name": write.__name__, **write(root)}
    files, memory = (load_data({**spec, "in_memory": each}) for each in (False, True))
    by_itself = load_data({**spec, "in_memory": "auto"})
    for part in ("train", "validation", "test"):
        ours, theirs = getattr(files, part), getattr(memory, part)
        has_maps = theirs.labels.ndim > 1
        assert_same(ours, theirs, RandomWindow() if has_maps else Augment(crop=2, rotation=15.0))
        assert torch.equal(getattr(by_itself, part).images, theirs.images)  # small: in memory


@pytest.mark.parametrize("write", [folder, tiny_imagenet, annotated, cub, voc_segmentation, camvid])
def test_both_ways_are_the_same(write: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    check_both_ways(write, tmp_path / "set")


@pytest.mark.slow  # the import of `datasets` takes seconds
def test_both_ways_of_hugging_face_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("datasets").disable_progress_bars()
    check_both_ways(huggingface, tmp_path / "set")
