"""Two ways to hold pixels: decoded in memory, or files that are decoded when needed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from sfumato.augment import (
    RECIPES,
    Augment,
    BatchAugment,
    ObjectnessLabels,
    Recipe,
    ResizedCrop,
    label_samples,
)
from sfumato.data import (
    ArrayDataset,
    DataSplits,
    TensorLoader,
    channel_statistics,
    context_only,
    load_data,
    single_objects,
    with_context,
)
from sfumato.data.files import FileTensor
from sfumato.data.index import FileList
from sfumato.data.splits import MEMORY_LIMIT, Shared, image_files, keeps_in_memory

SIZE = 16


def pictures(root: Path, sizes: list[tuple[int, int]], kind: str = "png") -> list[Path]:
    """Files of random pixels, smooth enough for JPEG."""
    draw = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, (width, height) in enumerate(sizes):
        few = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        path = root / f"{number:03}.{kind}"
        Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC).save(path)
        paths.append(path)
    return paths


def boxed(paths: list[Path], size: int | None = SIZE) -> ArrayDataset:
    """A file-backed set with two boxes an image, in the pixels of the set."""
    boxes = torch.tensor([[[2.0, 2.0, 10.0, 12.0], [8.0, 6.0, 16.0, 14.0]]])
    boxes = boxes.repeat(len(paths), 1, 1)
    labels = torch.arange(len(paths)) % 2
    return ArrayDataset(image_files(paths, size=size), labels, ("ant", "bee"), boxes=boxes)


def in_memory(data: ArrayDataset) -> ArrayDataset:
    return dataclasses.replace(data, images=data.images[:])


def assert_same(first: ArrayDataset, second: ArrayDataset, **options: Any) -> None:
    """Every batch of two epochs, number by number."""
    loaders = [TensorLoader(data, 4, **options) for data in (first, second)]
    for epoch in range(2):
        for loader in loaders:
            loader.set_epoch(epoch)
        for ours, theirs in zip(*loaders, strict=True):
            assert ours.keys() == theirs.keys()
            for name in ours:
                torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0, msg=name)


@pytest.fixture
def square(tmp_path: Path) -> ArrayDataset:
    """Files that have the very size of the set's images."""
    return boxed(pictures(tmp_path, [(SIZE, SIZE)] * 10))


@pytest.mark.parametrize(
    "augment",
    [
        None,
        Augment(flip=True, crop=2, rotation=15.0),
        ResizedCrop(),
        ResizedCrop(rotation=20.0),
        RECIPES["fcr+randaug"],
        Recipe(resized_crop=ResizedCrop(), policy=RECIPES["fcr+trivaug"].policy),
    ],
)
def test_both_ways_give_the_same_batches(
    square: ArrayDataset, augment: BatchAugment | None
) -> None:
    options = {"augment": augment, "shuffle": True, "seed": 3, "workers": 0}
    assert_same(square, in_memory(square), **options)


def test_soft_labels_from_boxes_are_the_same(square: ArrayDataset) -> None:
    labelled = label_samples(ObjectnessLabels(), square, ResizedCrop())
    assert_same(square, in_memory(square), augment=labelled, shuffle=True, workers=0)


@pytest.mark.parametrize("change", [single_objects, context_only, with_context])
def test_painted_objects_are_the_same(square: ArrayDataset, change: Any) -> None:
    fill = (0.2, 0.4, 0.6)
    files, memory = change(square, fill=fill), change(in_memory(square), fill=fill)
    assert isinstance(files.images, FileTensor)
    assert isinstance(memory.images, Tensor)
    assert torch.equal(files.images[:], memory.images)
    assert_same(files, memory, augment=ResizedCrop(), shuffle=True, workers=0)
    both = with_context(single_objects(square, fill=fill), share=0.2, fill=fill)
    twice = with_context(single_objects(in_memory(square), fill=fill), share=0.2, fill=fill)
    assert torch.equal(both.images[:], twice.images[:])


def test_larger_files_are_the_same_but_for_crops_of_them(tmp_path: Path) -> None:
    data = boxed(pictures(tmp_path, [(30, 20), (16, 24), (19, 19), (40, 40)], kind="jpg"))
    assert_same(data, in_memory(data), augment=Augment(crop=2), shuffle=True, workers=0)
    assert channel_statistics(data.images) == channel_statistics(data.images[:])


def test_workers_change_no_number(square: ArrayDataset) -> None:
    augment = label_samples(ObjectnessLabels(), square, ResizedCrop())
    options: dict[str, Any] = {"augment": augment, "shuffle": True, "seed": 1}
    by_workers = TensorLoader(square, 4, workers=2, **options)
    alone = TensorLoader(square, 4, workers=0, **options)
    before = torch.get_rng_state()
    for epoch in (0, 1):
        for loader in (by_workers, alone):
            loader.set_epoch(epoch)
        for ours, theirs in zip(by_workers, alone, strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert torch.equal(torch.get_rng_state(), before)  # dropout's numbers stay as they are
    ranks = [TensorLoader(square, 4, rank=r, world_size=2, workers=0, **options) for r in (0, 1)]
    for loader in (alone, *ranks):
        loader.set_epoch(1)
    for step in range(len(alone)):
        parts = [rank.batch(step)["image"] for rank in ranks]
        assert torch.equal(torch.cat(parts), alone.batch(step)["image"])


def uniforms_of(
    window: tuple[float, float, float, float], frame: tuple[int, int], flip: float = 0.9
) -> Tensor:
    """Numbers with which `ANY_PART` shows this window of a frame, both in pixels."""
    (x1, y1, x2, y2), (width, height) = window, frame
    area = (x2 - x1) * (y2 - y1) / (width * height)
    scale = (area - 1e-4) / (1 - 1e-4)
    aspect = (np.log((x2 - x1) / (y2 - y1)) + np.log(100)) / (2 * np.log(100))
    left, top = x1 / max(width - x2 + x1, 1), y1 / max(height - y2 + y1, 1)
    return torch.tensor([[flip, scale, aspect, left, top, 0.5]])


ANY_PART = ResizedCrop(scale=(1e-4, 1.0), ratio=(0.01, 100.0))


def crop_of(data: ArrayDataset, uniforms: Tensor) -> dict[str, Tensor]:
    return ANY_PART.apply(data.batch_to_cut(torch.tensor([0])), uniforms)


@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_crops_are_cut_from_the_whole_original(tmp_path: Path, kind: str) -> None:
    (path,) = pictures(tmp_path, [(40, 20)], kind=kind)
    data = ArrayDataset(image_files([path], size=SIZE), torch.tensor([0]), ("ant",))
    shown = crop_of(data, uniforms_of((4, 4, 20, 16), (40, 20), flip=0.1))["image"]
    pixels = torch.from_numpy(np.asarray(Image.open(path).convert("RGB")).copy()).permute(2, 0, 1)
    part = pixels[None, :, 4:16, 4:20]
    expected = F.interpolate(part, (SIZE, SIZE), mode="bilinear", antialias=True).flip(-1)
    assert torch.equal(shown, expected)


def test_where_boxes_are_crops_show_what_the_set_shows(tmp_path: Path) -> None:
    """The set's image is the middle 20 x 20 pixels of a file of 40 x 20."""
    (path,) = pictures(tmp_path, [(40, 20)])
    data = dataclasses.replace(
        boxed([path]), boxes=torch.tensor([[[0.0, 0.0, 8.0, 8.0], [8.0, 8.0, 16.0, 16.0]]])
    )
    moved = crop_of(data, uniforms_of((0, 0, 15, 15), (20, 20)))
    pixels = torch.from_numpy(np.asarray(Image.open(path).convert("RGB")).copy()).permute(2, 0, 1)
    part = pixels[None, :, 0:15, 10:25]
    expected = F.interpolate(part, (SIZE, SIZE), mode="bilinear", antialias=True)
    assert torch.equal(moved["image"], expected)
    third = SIZE * 2 / 3  # a box over the left half covers two thirds of the left three quarters
    box = torch.tensor([[0, 0, third, third], [third, third, SIZE, SIZE]])
    torch.testing.assert_close(moved["boxes"][0], box)


def test_painted_crops_follow_the_boxes(tmp_path: Path) -> None:
    (path,) = pictures(tmp_path, [(40, 20)])
    alone = single_objects(
        dataclasses.replace(
            boxed([path]), boxes=torch.tensor([[[0.0, 0.0, 8.0, 16.0], [8.0, 0.0, 16.0, 16.0]]])
        ),
        fill=(1.0, 0.0, 1.0),
    )
    everything = uniforms_of((0, 0, 20, 20), (20, 20))
    shown = ANY_PART.apply(alone.batch_to_cut(torch.tensor([0])), everything)["image"]
    colour = torch.tensor([255, 0, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    assert bool((shown[..., 10:] == colour).all())
    assert not bool((shown[..., :6] == colour).all())


def test_a_large_jpeg_is_decoded_at_reduced_scale(tmp_path: Path) -> None:
    (path,) = pictures(tmp_path, [(256, 256)], kind="jpg")
    data = ArrayDataset(image_files([path], size=SIZE), torch.tensor([0]), ("ant",))
    shown = crop_of(data, uniforms_of((64, 64, 192, 192), (256, 256)))["image"].float()
    pixels = torch.from_numpy(np.asarray(Image.open(path)).copy()).permute(2, 0, 1)
    part = pixels[None, :, 64:192, 64:192]
    exact = F.interpolate(part, (SIZE, SIZE), mode="bilinear", antialias=True).float()
    assert (shown - exact).abs().max() < 6  # other filters, the same place


def test_exif_turns_crops_too(tmp_path: Path) -> None:
    (path,) = pictures(tmp_path, [(40, 20)])
    image, exif = Image.open(path), Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    turned = tmp_path / "turned.jpg"
    image.save(turned, exif=exif, quality=100, subsampling=0)
    data = ArrayDataset(image_files([turned], size=SIZE), torch.tensor([0]), ("ant",))
    shown = crop_of(data, uniforms_of((0, 0, 20, 20), (20, 40)))["image"].float()
    upright = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).rot90(-1, (1, 2))
    part = upright[None, :, 0:20, 0:20]
    exact = F.interpolate(part, (SIZE, SIZE), mode="bilinear", antialias=True).float()
    assert (shown - exact).abs().max() < 6


def test_what_fits_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = boxed(pictures(tmp_path, [(SIZE, SIZE)] * 3))
    splits = DataSplits(data, data, data)
    assert MEMORY_LIMIT == 2_000_000_000
    for chosen in (None, "auto", True):
        assert isinstance(Shared(in_memory=chosen).held(splits).train.images, Tensor)  # type: ignore[arg-type]
    assert Shared(in_memory=False).held(splits) is splits
    monkeypatch.setattr("sfumato.data.splits.MEMORY_LIMIT", 9 * 3 * SIZE * SIZE)
    assert keeps_in_memory([data.images] * 3, None)
    assert not keeps_in_memory([data.images] * 4, "auto")
    with pytest.raises(ValueError, match="in_memory must be"):
        Shared(in_memory="yes")  # type: ignore[arg-type]


def test_a_tensor_of_files(tmp_path: Path) -> None:
    files = image_files(pictures(tmp_path, [(SIZE, SIZE)] * 70))
    assert (files.shape, files.ndim, len(files)) == ((70, 3, SIZE, SIZE), 4, 70)
    decoded = files[:]
    assert torch.equal(files[3], decoded[3])
    assert torch.equal(files[-1], decoded[-1])
    assert torch.equal(files[torch.tensor([5, 2])], decoded[[5, 2]])
    assert torch.equal(torch.cat(list(files.split(32))), decoded)
    assert torch.equal(files.select(torch.tensor([9, 4]))[1], decoded[4])
    assert torch.equal(next(iter(files)), decoded[0])


def test_a_list_of_files() -> None:
    files = FileList.of(Path("r"), ["a/1.png", "b/\u00fc.png", "c.png"])
    assert [each.as_posix() for each in files] == ["r/a/1.png", "r/b/\u00fc.png", "r/c.png"]
    assert files[-1] == Path("r/c.png")
    assert files[1:] == [files[1], files[2]]
    with pytest.raises(IndexError):
        files[3]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("augment", [None, ResizedCrop()])
def test_a_broken_file_is_named(tmp_path: Path, workers: int, augment: BatchAugment | None) -> None:
    paths = pictures(tmp_path, [(64, 64)] * 4, kind="jpg")
    loader = TensorLoader(boxed(paths), 4, augment=augment, workers=workers)
    paths[2].write_bytes(paths[2].read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"002\.jpg: unreadable image"):
        list(loader)


def test_folder_both_ways(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        pictures(tmp_path / name, [(12, 10)] * 10)
    spec: dict[str, Any] = {"name": "folder", "root": str(tmp_path), "size": SIZE}
    files, memory = (load_data({**spec, "in_memory": each}) for each in (False, True))
    for part in ("train", "validation", "test"):
        ours, theirs = getattr(files, part), getattr(memory, part)
        assert ours.is_file_backed
        assert not theirs.is_file_backed
        assert torch.equal(ours.images[:], theirs.images)
        assert torch.equal(ours.index, theirs.index)
