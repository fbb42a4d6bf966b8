"""CamVid, PASCAL VOC and scenes streams as sets of masks, and the balance of classes."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato.data import (
    load_camvid,
    load_data,
    load_voc_segmentation,
    median_frequency_weights,
    scenes,
)
from sfumato.data.sources.camvid import stream_numbers


@pytest.fixture
def camvid_folder(tmp_path: Path) -> Path:
    """Three frames a part, 6 x 8, whose labels are 0 to 11 in rows."""
    root = tmp_path / "CamVid"
    for part in ("train", "val", "test"):
        for folder in (part, f"{part}annot"):
            (root / folder).mkdir(parents=True)
        for number in (0, 30, 120):
            name = f"Seq05VD_f{number:05d}.png"
            label = (np.arange(48).reshape(6, 8) + number) % 12
            Image.fromarray(label.astype(np.uint8)).save(root / f"{part}annot" / name)
            picture = np.stack([label, label * 2, label * 3], -1).astype(np.uint8)
            Image.fromarray(picture).save(root / part / name)
    return root


def test_camvid_folder_and_tar_are_the_same(camvid_folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "camvid.tar", "w") as archive:
        archive.add(camvid_folder, arcname="CamVid")
    folder = load_camvid(root=camvid_folder)
    tar = load_data({"name": "camvid", "root": str(tmp_path / "camvid.tar")})
    for one, other in ((folder.train, tar.train), (folder.test, tar.test)):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    row = folder.test.labels[0, 0]
    assert row.tolist() == list(range(8))
    assert folder.test.labels[0, 1].tolist() == [8, 9, 10, -100, 0, 1, 2, 3]
    assert folder.test.images[0, :, 0, 5].tolist() == [5, 10, 15]
    assert folder.test.stream is not None
    assert folder.test.stream.tolist() == [0, 0, 1]
    assert [folder.classes[c] for c in folder.train.background] == [
        *("sky", "building", "road", "pavement", "tree", "fence")
    ]
    assert load_camvid(root=camvid_folder, limit_train=2).train.index.tolist() == [0, 1]


def test_camvid_frames_between_labelled_ones(camvid_folder: Path) -> None:
    """They are void, in their place of the video, and only where nothing is learnt or chosen."""
    for part in ("train", "val", "test"):
        for number in (10, 20):
            source = camvid_folder / part / "Seq05VD_f00000.png"
            (camvid_folder / part / f"Seq05VD_f{number:05d}.png").write_bytes(source.read_bytes())
    with pytest.raises(ValueError, match="no labels for this image; unlabelled: true takes"):
        load_camvid(root=camvid_folder)
    data = load_camvid(root=camvid_folder, unlabelled=True, size=(3, 4))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [3, 3, 5]
    assert [bool((labels != -100).any()) for labels in data.test.labels] == [
        *(True, False, False, True, True)
    ]
    assert data.test.stream is not None
    assert data.test.stream.tolist() == [0, 0, 0, 0, 1]
    for path in (camvid_folder / "testannot").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="no labels for this image"):
        load_camvid(root=camvid_folder, unlabelled=True)


def test_camvid_scaled(camvid_folder: Path) -> None:
    """Labels are picked and never mixed: every second of every second row."""
    whole = load_camvid(root=camvid_folder).test
    half = load_camvid(root=camvid_folder, size=(3, 4)).test
    assert half.images.shape == (3, 3, 3, 4)
    assert torch.equal(half.labels, whole.labels[:, 1::2, 1::2])
    with pytest.raises(ValueError, match="size must be"):
        load_camvid(root=camvid_folder, size=(0, 4))


def test_camvid_mistakes(camvid_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder or tar file"):
        load_camvid(root=tmp_path / "nothing.tar")
    with pytest.raises(FileNotFoundError, match="no images in 'train'"):
        load_camvid(root=camvid_folder / "val")
    label = camvid_folder / "testannot" / "Seq05VD_f00030.png"
    label.unlink()
    with pytest.raises(ValueError, match=r"testannot/Seq05VD_f00030\.png: no labels"):
        load_camvid(root=camvid_folder)
    Image.fromarray(np.full((6, 8), 12, np.uint8)).save(label)
    with pytest.raises(ValueError, match="labels must be 0 to 10, or 11 for void, got 12"):
        load_camvid(root=camvid_folder)
    Image.fromarray(np.zeros((5, 8), np.uint8)).save(label)
    with pytest.raises(ValueError, match=r"8x5 pixels, but .* has 8x6"):
        load_camvid(root=camvid_folder)
    label.write_bytes(label.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"testannot/Seq05VD_f00030\.png: unreadable image"):
        load_camvid(root=camvid_folder)
    (tmp_path / "bad.tar").write_bytes(b"not an archive")
    with pytest.raises(ValueError, match="no tar archive"):
        load_camvid(root=tmp_path / "bad.tar")


def test_real_camvid(real_data: Callable[[str], Path]) -> None:
    data = load_camvid(root=real_data("camvid.tar"))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [367, 101, 233]
    assert data.train.images.shape[1:] == (3, 180, 240)
    assert data.test.stream is not None
    assert 2 <= int(data.test.stream.max()) + 1 < 20
    weights = median_frequency_weights(data.train.labels, 11, void=-100)
    road, sign = data.classes.index("road"), data.classes.index("sign")
    assert weights[road] < 0.5 < 2 < weights[sign]


def test_stream_numbers_follow_names_and_gaps() -> None:
    stems = ["0001TP_008550", "0001TP_008580", "0001TP_008610", "Seq05VD_f00000", "Seq05VD_f00030"]
    assert stream_numbers(stems).tolist() == [0, 0, 0, 1, 1]
    assert stream_numbers(["picture", "other"]).tolist() == [0, 1]
    assert stream_numbers([]).tolist() == []


def test_voc_through_torchvision(tmp_path: Path) -> None:
    base = tmp_path / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (base / folder).mkdir(parents=True)
    label = np.zeros((40, 60), np.uint8)
    label[:, 30:] = 15
    label[:, 29:31] = 255
    for part, names in (("train", ["a", "b", "c"]), ("val", ["d"])):
        (base / "ImageSets" / "Segmentation" / f"{part}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            Image.fromarray(np.full((40, 60, 3), 100, np.uint8)).save(
                base / f"JPEGImages/{name}.jpg"
            )
            Image.fromarray(label).save(base / f"SegmentationClass/{name}.png")
    data = load_voc_segmentation(root=tmp_path, size=20, validation=1)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [2, 1, 1]
    assert data.test.images.shape == (1, 3, 20, 20)
    # The middle 40 columns at half size: 10 of background, 10 of person, one of them void.
    row = data.test.labels[0, 10]
    assert row[:9].unique().tolist() == [0]
    assert row[11:].unique().tolist() == [15]
    assert -100 in row.tolist()
    assert data.train.background == (0,)
    # Nothing is cut off: all 60 columns, so a third of the size, and void below.
    whole = load_voc_segmentation(root=tmp_path, size=20, whole=True, validation=1).test
    assert whole.labels[0, 6].tolist().count(0) == pytest.approx(10, abs=1)
    assert whole.labels[0, 6].tolist().count(15) == pytest.approx(10, abs=1)
    assert whole.labels[0, 13:].unique().tolist() == [-100]
    assert whole.images[0, :, 13:].unique().tolist() == [0]
    with pytest.raises(FileNotFoundError, match="download: true"):
        load_voc_segmentation(root=tmp_path / "empty")
    _augmented(base, tmp_path)


def _augmented(base: Path, root: Path) -> None:
    """The list of SBD with its own segmentation masks, in both forms in which it is written."""
    with pytest.raises(FileNotFoundError, match=r"trainaug\.txt: not there; train_list: trainaug"):
        load_voc_segmentation(root=root, size=20, train_list="trainaug")
    listed = base / "ImageSets" / "Segmentation" / "trainaug.txt"
    (base / "SegmentationClassAug").mkdir()
    for name in "abefhijklm":
        Image.fromarray(np.full((40, 60), 7, np.uint8)).save(
            base / f"SegmentationClassAug/{name}.png"
        )
        Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(base / f"JPEGImages/{name}.jpg")
    pair = "/JPEGImages/e.jpg /SegmentationClassAug/e.png"
    listed.write_text("\n".join(["a", "b", "", pair, *"fhijklm"]))
    data = load_voc_segmentation(root=root, size=20, train_list="trainaug", validation=1)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [9, 1, 1]
    assert data.train.labels[0].unique().tolist() == [7]
    assert 15 in data.test.labels[0].unique().tolist()
    data = load_voc_segmentation(root=root, size=20, train_list="trainaug", validation="val")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [10, 1, 1]
    assert torch.equal(data.validation.labels[:], data.test.labels[:])
    listed.write_text("a\ng\n")
    with pytest.raises(FileNotFoundError, match=r"g\.jpg, which is not there"):
        load_voc_segmentation(root=root, size=20, train_list="trainaug")


def test_scene_streams_are_frames_in_order() -> None:
    data = scenes.load_streams(train=3, validation=2, test=2, test_frames=4, size=16)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [3, 2, 8]
    assert data.test.stream is not None
    assert data.test.stream.tolist() == [0] * 4 + [1] * 4
    frames = data.test.images.float()
    within = (frames[1:4] - frames[:3]).abs().mean()
    between = (frames[4] - frames[3]).abs().mean()
    assert within < between
    longer = scenes.load_streams(train=3, validation=2, test=3, test_frames=6, size=16)
    assert torch.equal(longer.test.images[6:10], data.test.images[4:8])
    assert torch.equal(longer.train.images, data.train.images)
    assert data.classes[data.test.background[0]] == "background"


def test_median_frequency_by_hand_and_loop() -> None:
    labels = torch.randint(-1, 4, (5, 6, 7), generator=torch.Generator().manual_seed(0))
    labels[0][labels[0] == 3] = 0
    labels[labels == -1] = -100
    found = median_frequency_weights(labels, 5, void=-100)
    frequency = []
    for c in range(4):
        images = [image for image in labels.numpy() if (image == c).any()]
        own = sum((image == c).sum() for image in images)
        frequency.append(own / sum((image != -100).sum() for image in images))
    expected = [np.median(frequency) / f for f in frequency]
    np.testing.assert_allclose(found[:4].numpy(), expected, rtol=1e-6)
    assert found[4] == 1
    with pytest.raises(ValueError, match="segmentation masks"):
        median_frequency_weights(torch.zeros(3, dtype=torch.int64), 2)
