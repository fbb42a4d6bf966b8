"""Annotation files: what they mean, and what is said about boxes that can't be right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.data import Annotations, load_data, read_coco, read_openimages, read_voc

Reader = Callable[..., Annotations]
BAD = {
    "reversed": (9, 2, 4, 6),
    "outside the image": (40, 2, 50, 6),
    "reaching outside the image": (10, 2, 50, 6),
}


def picture(folder: Path, name: str = "one.jpg", size: tuple[int, int] = (20, 10)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.full((size[1], size[0], 3), 200, dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)


def voc(folder: Path, boxes: list[tuple[int, ...]], name: str = "one") -> Reader:
    """Boxes with exclusive far edges from 0, written as VOC does: inclusive, from 1."""
    things = "".join(
        f"<object><name>dog</name><bndbox><xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin>"
        f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for x1, y1, x2, y2 in boxes
    )
    text = f"<annotation><size><width>20</width><height>10</height></size>{things}</annotation>"
    (folder / "xml").mkdir(exist_ok=True)
    (folder / "xml" / f"{name}.xml").write_text(text)
    return lambda **how: read_voc(folder / "xml", folder / "images", **how)


def coco(folder: Path, boxes: list[tuple[int, ...]], name: str = "one") -> Reader:
    content = {
        "images": [{"id": 7, "file_name": f"{name}.jpg", "width": 20, "height": 10}],
        "categories": [{"id": 3, "name": "dog"}],
        "annotations": [
            {"id": n, "image_id": 7, "category_id": 3, "bbox": [x1, y1, x2 - x1, y2 - y1]}
            for n, (x1, y1, x2, y2) in enumerate(boxes)
        ],
    }
    (folder / "coco.json").write_text(json.dumps(content))
    return lambda **how: read_coco(folder / "coco.json", folder / "images", **how)


def openimages(folder: Path, boxes: list[tuple[int, ...]], name: str = "one") -> Reader:
    rows = [f"{name},xclick,dog,1,{a / 20},{c / 20},{b / 10},{d / 10},0" for a, b, c, d in boxes]
    head = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsGroupOf"
    (folder / "boxes.csv").write_text("\n".join([head, *rows]) + "\n")
    return lambda **how: read_openimages(folder / "boxes.csv", folder / "images", **how)


@pytest.mark.parametrize("write", [voc, coco, openimages])
class TestEveryFormat:
    def test_boxes_mean_the_same(self, tmp_path: Path, write: Callable[..., Reader]) -> None:
        picture(tmp_path / "images")
        (image,) = write(tmp_path, [(0, 0, 20, 10), (3, 2, 7, 9)])().images
        assert [pytest.approx(box) for box in image.boxes] == [(0, 0, 20, 10), (3, 2, 7, 9)]
        assert (image.labels, image.width, image.height) == (["dog", "dog"], 20, 10)

    @pytest.mark.parametrize("fault", BAD)
    def test_bad_boxes(self, tmp_path: Path, write: Callable[..., Reader], fault: str) -> None:
        picture(tmp_path / "images")
        read = write(tmp_path, [BAD[fault], (3, 2, 7, 9)])
        with pytest.raises(ValueError, match=f"{fault}.*on_bad_box='skip'"):
            read()
        found = read(on_bad_box="skip")
        assert len(found.images[0].boxes) == 1
        assert found.report == f"1 boxes in 1 images; skipped: 1 boxes {fault}"
        cut = read(on_bad_box="clip")
        assert (cut.clipped == 1) == (fault == "reaching outside the image")
        if cut.clipped:
            assert cut.images[0].boxes[0] == pytest.approx((10, 2, 20, 6))

    def test_missing_image(self, tmp_path: Path, write: Callable[..., Reader]) -> None:
        picture(tmp_path / "images", "another.jpg")
        read = write(tmp_path, [(3, 2, 7, 9)])
        with pytest.raises(ValueError, match="no image"):
            read()
        assert read(on_bad_box="skip").skipped["images missing"] == 1

    def test_wrong_choice(self, tmp_path: Path, write: Callable[..., Reader]) -> None:
        picture(tmp_path / "images")
        with pytest.raises(ValueError, match="on_bad_box must be one of"):
            write(tmp_path, [(3, 2, 7, 9)])(on_bad_box="ignore")


class TestXml:
    @pytest.mark.parametrize(
        "head",
        [
            '<!DOCTYPE a [<!ENTITY x "aaaaaaaaaa"><!ENTITY y "&x;&x;&x;&x;">]>',
            '<!DOCTYPE a SYSTEM "file:///etc/hostname">',
        ],
    )
    def test_document_types_and_entities_are_refused(self, tmp_path: Path, head: str) -> None:
        picture(tmp_path / "images")
        (tmp_path / "xml").mkdir()
        (tmp_path / "xml" / "one.xml").write_text(f"{head}<annotation>&y;</annotation>")
        with pytest.raises(ValueError, match="document type or entities"):
            read_voc(tmp_path / "xml", tmp_path / "images")

    def test_broken_file_and_empty_folder(self, tmp_path: Path) -> None:
        (tmp_path / "xml").mkdir()
        with pytest.raises(FileNotFoundError, match=r"no \.xml files"):
            read_voc(tmp_path / "xml", tmp_path)
        for content in ("<annotation>", '<?xml version="1.0" encoding="zlib"?><annotation/>'):
            (tmp_path / "xml" / "one.xml").write_text(content)
            with pytest.raises(ValueError, match=r"one.xml: not readable as XML"):
                read_voc(tmp_path / "xml", tmp_path)


def test_crowds_and_groups_are_counted(tmp_path: Path) -> None:
    picture(tmp_path / "images")
    read = coco(tmp_path, [(3, 2, 7, 9), (0, 0, 5, 5)])
    content = json.loads((tmp_path / "coco.json").read_text())
    content["annotations"][0]["iscrowd"] = 1
    (tmp_path / "coco.json").write_text(json.dumps(content))
    assert read().report == "1 boxes in 1 images; skipped: 1 crowds"
    content["images"][0]["file_name"] = "../images/one.jpg"
    (tmp_path / "coco.json").write_text(json.dumps(content))
    assert read(on_bad_box="skip").skipped["images missing"] == 1


def spec_of(folder: Path, annotations: str, **options: object) -> dict[str, object]:
    """A source that trains and tests on the same annotated images."""
    places = {"annotations": str(folder / annotations), "images": str(folder / "images")}
    spec = {f"{part}_{k}": v for part in ("train", "test") for k, v in places.items()}
    return {**spec, "name": "annotated", "validation": 0, **options}


class TestSet:
    def test_boxes_follow_the_centre_cut(self, tmp_path: Path) -> None:
        picture(tmp_path / "images")
        voc(tmp_path, [(5, 0, 15, 5), (0, 0, 4, 4)])
        data = load_data(spec_of(tmp_path, "xml", format="voc", size=20)).test
        assert data.boxes is not None
        assert data.boxes.tolist() == [[[0.0, 0.0, 20.0, 10.0]]]  # the other one is cut off

    def test_size_that_differs_from_the_file(self, tmp_path: Path) -> None:
        picture(tmp_path / "images", size=(40, 10))
        coco(tmp_path, [(3, 2, 7, 9)])
        with pytest.raises(ValueError, match="annotated as 20x10 pixels, but has 40x10"):
            load_data(spec_of(tmp_path, "coco.json", format="coco", size=16))

    def test_as_a_source(self, tmp_path: Path) -> None:
        for name in ("one", "two", "three"):
            picture(tmp_path / "images", f"{name}.jpg")
            voc(tmp_path, [(5, 0, 9, 5), (8, 4, 14, 9), (30, 2, 40, 9)], name)
        spec = spec_of(tmp_path, "xml", format="voc", on_bad_box="skip", size=16, validation=1)
        with pytest.warns(UserWarning, match="skipped: 3 boxes outside the image"):
            data = load_data(spec)
        assert (len(data.train), len(data.validation), len(data.test)) == (5, 1, 6)

    def test_whole_images_with_all_their_objects(self, tmp_path: Path) -> None:
        for name in ("one", "two", "three"):
            picture(tmp_path / "images", f"{name}.jpg")
            voc(tmp_path, [(5, 0, 9, 5), (8, 4, 14, 9)], name)
        spec = spec_of(tmp_path, "xml", format="voc", size=16, validation=1)
        data, painted = load_data({**spec, "others": "keep"}), load_data(spec)
        assert (len(data.train), len(data.test), len(painted.test)) == (2, 3, 6)
        assert data.test.boxes is not None
        assert (data.test.boxes[..., 2] > 0).sum(1).tolist() == [2, 2, 2]
        assert painted.test.boxes is not None
        assert (painted.test.boxes[..., 2] > 0).sum(1).tolist() == [1] * 6
        found = tmp_path / "xml" / "two.xml"
        found.write_text(found.read_text().replace("dog", "cat", 1))
        with pytest.raises(ValueError, match="several classes"):
            load_data({**spec, "others": "keep"})


@pytest.mark.parametrize("width", ["9" * 400, "nan", "-20", "0"])
def test_sizes_that_no_image_has(tmp_path: Path, width: str) -> None:
    read = voc(tmp_path, [])
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one.png").touch()
    file = tmp_path / "xml" / "one.xml"
    file.write_text(file.read_text().replace("<width>20", f"<width>{width}"))
    with pytest.raises(ValueError, match=r"one\.xml: the image can't have"):
        read()


@pytest.mark.parametrize("write", [voc, coco, openimages])
def test_a_long_name_is_not_quoted_whole(tmp_path: Path, write: Callable[..., Reader]) -> None:
    picture(tmp_path / "images")
    read = write(tmp_path, [(3, 2, 7, 9)], "one" if write is voc else "n" * 5_000)
    if write is voc:
        file = tmp_path / "xml" / "one.xml"
        file.write_text(file.read_text().replace("<width>", f"<width>{'n' * 5_000}"))
    with pytest.raises(ValueError, match=r"nnnn\.\.\.nnnn") as caught:
        read()
    assert len(str(caught.value)) < 1_000
