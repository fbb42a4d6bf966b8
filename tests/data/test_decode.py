"""Image files to tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from sfumato.data.files import EXTENSIONS
from sfumato.data.splits import image_files

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
IMAGE = Image.fromarray(PIXELS)


def by_pillow(path: Path) -> torch.Tensor:
    with Image.open(path) as image:
        pixels = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_every_format_as_pillow_reads_it(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"image{extension.upper()}"
    (IMAGE.convert("L") if extension in (".pgm", ".gif") else IMAGE).save(path)
    images = image_files([path, path])[:]
    assert images.shape == (2, 3, 6, 8)
    assert images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images[1], by_pillow(path))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "image.png"
    IMAGE.convert(mode).save(path)
    assert torch.equal(image_files([path])[:][0], by_pillow(path))


def test_upright_by_exif(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    IMAGE.save(path, exif=exif)
    images = image_files([path])[:]
    assert images.shape == (1, 3, 8, 6)
    assert torch.equal(images[0], by_pillow(path))


def test_order_over_many_chunks(tmp_path: Path) -> None:
    paths = []
    for number in range(150):
        paths.append(tmp_path / f"{number}.png")
        Image.new("RGB", (2, 2), (number, 0, 0)).save(paths[-1])
    assert image_files(paths)[:][:, 0, 0, 0].tolist() == list(range(150))


def test_size_covers_and_crops_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 200  # the centre square
    path, square = tmp_path / "wide.png", tmp_path / "square.png"
    Image.fromarray(wide).save(path)
    Image.new("RGB", (5, 5), (7, 7, 7)).save(square)
    images = image_files([path, square], size=4)[:]
    assert images.shape == (2, 3, 4, 4)
    assert images[0].unique().tolist() == [200]
    assert images[1].unique().tolist() == [7]


class TestMessages:
    def test_mixed_sizes(self, tmp_path: Path) -> None:
        paths = [tmp_path / "a.png", tmp_path / "b.png"]
        IMAGE.save(paths[0])
        IMAGE.resize((3, 5)).save(paths[1])
        with pytest.raises(ValueError, match=r"b.png: image of 3x5 pixels, but .*a.png has 8x6"):
            image_files(paths)[:]

    @pytest.mark.parametrize("name", ["bad.jpg", "bad.png", "bad.bmp"])
    @pytest.mark.parametrize("content", ["empty", "text", "cut"])
    def test_damaged(self, tmp_path: Path, name: str, content: str) -> None:
        good, bad = tmp_path / "good.png", tmp_path / name
        IMAGE.save(good)
        IMAGE.save(bad)
        whole = bad.read_bytes()
        bad.write_bytes({"empty": b"", "text": b"hello", "cut": whole[: len(whole) // 2]}[content])
        with pytest.raises(ValueError, match=rf"{name}: unreadable image"):
            image_files([good, bad])[:]

    @pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
    def test_more_than_8_bits(self, tmp_path: Path, name: str) -> None:
        Image.fromarray(np.full((4, 4), 60_000, np.uint16)).save(tmp_path / name)
        with pytest.raises(ValueError, match=rf"{name}: pixels don't fit into 8 bits"):
            image_files([tmp_path / name])[:]
