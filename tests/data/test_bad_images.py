"""Images that can't be decoded, in every source that reads files: left out, and listed."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato.data import load_camvid, load_data, load_detection_data
from sfumato.data.files import OpenedImages, ReadImage, ReadLabels, image_size

SIZE = (40, 20)
BOX = (4, 4, 14, 14)


def photos(folder: Path, count: int = 6) -> list[Path]:
    """JPEG files, the second of them cut short: its header is as it was."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        pixels = np.random.default_rng(number).integers(0, 256, (*SIZE[::-1], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    paths[1].write_bytes(paths[1].read_bytes()[:-300])
    return paths


def voc(folder: Path, images: list[Path]) -> Path:
    folder.mkdir()
    names = ("xmin", "ymin", "xmax", "ymax")
    box = "".join(f"<{name}>{side}</{name}>" for name, side in zip(names, BOX, strict=True))
    size = f"<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height></size>"
    thing = f"<object><name>dog</name><bndbox>{box}</bndbox></object>"
    for path in images:
        (folder / f"{path.stem}.xml").write_text(f"<annotation>{size}{thing}{thing}</annotation>")
    return folder


def coco(file: Path, images: list[Path]) -> Path:
    box = [*BOX[:2], BOX[2] - BOX[0], BOX[3] - BOX[1]]
    content = {
        "images": [
            {"id": number, "file_name": path.name, "width": SIZE[0], "height": SIZE[1]}
            for number, path in enumerate(images)
        ],
        "categories": [{"id": 3, "name": "dog"}],
        "annotations": [
            {"id": 2 * number + each, "image_id": number, "category_id": 3, "bbox": box}
            for number in range(len(images))
            for each in range(2)
        ],
    }
    file.write_text(json.dumps(content))
    return file


def openimages(file: Path, images: list[Path]) -> Path:
    rows = [f"{path.stem},dog,0.1,0.4,0.1,0.9" for path in images for _ in range(2)]
    file.write_text("\n".join(["ImageID,LabelName,XMin,XMax,YMin,YMax", *rows]) + "\n")
    return file


WRITERS = {"voc": voc, "coco": coco, "openimages": openimages}


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.filterwarnings("ignore:.*boxes of images left out")
def test_annotated_images(form: str, tmp_path: Path) -> None:
    """Both objects of an image go with it, in memory and in files."""
    spec: dict[str, Any] = {"name": "annotated", "format": form, "size": 16, "validation": 2}
    for part in ("train", "test"):
        paths = photos(tmp_path / part)
        spec[f"{part}_images"] = str(tmp_path / part)
        spec[f"{part}_annotations"] = str(WRITERS[form](tmp_path / f"{part}-{form}", paths))
    cut, empty = tmp_path / "train" / "1.jpg", tmp_path / "test" / "4.jpg"
    with pytest.raises(
        ValueError, match=r"1\.jpg: unreadable image: .*truncated.*on_bad_image: skip"
    ):
        load_data(spec)
    empty.write_bytes(b"no image")
    for in_memory in (True, False):
        data = load_data({**spec, "on_bad_image": "skip", "in_memory": in_memory})
        bad = {str(cut), str(tmp_path / "test" / "1.jpg"), str(empty)}
        assert set(data.skipped) == bad
        assert all("unreadable image" in reason for reason in data.skipped.values())
        assert not any("on_bad_image" in reason for reason in data.skipped.values())
        assert [len(part) for part in (data.train, data.validation, data.test)] == [8, 2, 8]
        assert data.test.images[:].shape == (8, 3, 16, 16)
    with pytest.raises(TypeError, match="on_bad_image of data"):
        load_data({**spec, "on_bad_image": "ignore"})


def test_coco_detection(tmp_path: Path) -> None:
    paths = photos(tmp_path / "photos")
    file = coco(tmp_path / "boxes.json", paths)
    parts = ("train", "validation", "test")
    spec = {name: str(file) for name in parts}
    spec |= {f"{name}_images": str(tmp_path / "photos") for name in parts}
    data = load_detection_data({"name": "coco", **spec, "on_bad_image": "skip", "longest": 20})
    assert list(data.skipped) == [str(paths[1])]
    for part in (data.train, data.validation, data.test):
        assert len(part) == len(part.objects) == len(part.scales) == 5
        assert [tuple(image.shape) for image in part.images] == [(3, 10, 20)] * 5
    whole = load_detection_data({"name": "coco", **spec})
    assert torch.equal(whole.train.images[0], torch.tensor(ReadImage()(paths[0])).permute(2, 0, 1))
    with pytest.raises(ValueError, match=r"1\.jpg: unreadable image"):
        whole.train.images[1]


@pytest.fixture
def camvid(tmp_path: Path) -> Path:
    """Six frames a part, all of one video."""
    root = tmp_path / "CamVid"
    for part in ("train", "val", "test"):
        for folder in (part, f"{part}annot"):
            (root / folder).mkdir(parents=True)
        for number in range(6):
            name = f"Seq_f{number:05d}.png"
            Image.new("L", (8, 6), number).save(root / f"{part}annot" / name)
            Image.new("RGB", (8, 6), (number, 0, 0)).save(root / part / name)
    return root


def test_camvid_video_with_a_gap(camvid: Path, tmp_path: Path) -> None:
    """A bad frame, and a frame with bad labels, end a video: what follows is not the next one."""
    frame, label = camvid / "test" / "Seq_f00002.png", camvid / "trainannot" / "Seq_f00000.png"
    for path in (frame, label):
        path.write_bytes(path.read_bytes()[:45])
    with pytest.raises(ValueError, match=r"Seq_f0000.\.png: unreadable image"):
        load_camvid(root=camvid)
    for in_memory in (True, False):
        data = load_camvid(root=camvid, on_bad_image="skip", in_memory=in_memory)
        assert list(data.skipped) == [str(camvid / "train" / "Seq_f00000.png"), str(frame)]
        assert data.skipped[str(camvid / "train" / "Seq_f00000.png")].startswith(str(label))
        assert data.test.images[:][:, 0, 0, 0].tolist() == [0, 1, 3, 4, 5]
        assert data.test.stream is not None
        assert data.test.stream.tolist() == [0, 0, 1, 1, 1]
        assert data.train.stream is not None
        assert data.train.stream.tolist() == [0] * 5
    with tarfile.open(tmp_path / "camvid.tar", "w") as archive:
        archive.add(camvid, arcname="CamVid")
    packed = load_camvid(root=tmp_path / "camvid.tar", on_bad_image="skip")
    assert list(packed.skipped)[1] == f"{tmp_path / 'camvid.tar'}: CamVid/test/Seq_f00002.png"


def test_camvid_bad_frame_without_labels(camvid: Path) -> None:
    name = "Seq_f00004.png"
    (camvid / "testannot" / name).unlink()
    (camvid / "test" / name).write_bytes(b"no image")
    data = load_camvid(root=camvid, unlabelled=True, on_bad_image="skip")
    assert list(data.skipped) == [str(camvid / "test" / name)]
    assert len(data.test) == 5


def test_what_one_decoder_takes_the_other_takes(tmp_path: Path) -> None:
    """Crops are cut by another decoder, which refuses damaged files that Pillow decodes."""
    (path, *_) = photos(tmp_path / "photos")
    content = bytearray(path.read_bytes())
    content[-400:-350] = bytes(50)
    path.write_bytes(content)
    read = ReadImage(16)
    read(path)
    opened = OpenedImages([path], read, (16, 16), (), whole=True)
    assert opened.part(0, (0, 0, 20, 20)).shape == (3, 16, 16)


def _encoded(form: str) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (12, 9)).save(content, form)
    return content.getvalue()


def _endless_jp2() -> bytes:
    """A box that says that it has 2**62 bytes, for which no machine has room."""
    whole = _encoded("JPEG2000")
    at = whole.index(b"jp2h") - 4
    return whole[:at] + struct.pack(">I4sQ", 1, b"jp2h", 2**62) + whole[at + 8 :]


def _short_png() -> bytes:
    whole = _encoded("PNG")
    return whole[:8] + struct.pack(">I", 5) + whole[12:]


ODD = {
    "jp2": (_endless_jp2(), "it asks for too much memory"),
    "ppm": (b"P6\n12 9\n2x\n" + bytes(400), "invalid literal"),
    "ihdr": (_short_png(), "Truncated IHDR"),
}


@pytest.mark.parametrize(("content", "reason"), ODD.values(), ids=ODD)
def test_numbers_of_a_header(content: bytes, reason: str, tmp_path: Path) -> None:
    """Pillow's MemoryError stopped a run that skips bad images; its ValueErrors name no file."""
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(12):
            (tmp_path / label / f"{number}.png").write_bytes(_encoded("PNG"))
    odd = tmp_path / "a" / "5.png"
    odd.write_bytes(content)
    message = rf"a/5\.png: unreadable image: .*{reason}"
    spec = {"name": "folder", "root": str(tmp_path)}
    with pytest.raises(ValueError, match=rf"{message}.*on_bad_image: skip"):
        load_data(spec)
    for in_memory in (True, False):
        data = load_data({**spec, "on_bad_image": "skip", "in_memory": in_memory})
        assert list(data.skipped) == [str(odd)]
    for read in (image_size, ReadImage(), ReadLabels(3, 255, -100)):
        with pytest.raises(ValueError, match=message):
            read(odd)
    with pytest.raises(ValueError, match=r"a/5\.png: unreadable image: .*on_bad_image: skip"):
        OpenedImages([odd], ReadImage(8), (8, 8), (), whole=True)
