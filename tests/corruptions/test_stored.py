"""Sets on disk: what is written is what is streamed, in both layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.corruptions import (
    SEVERITIES,
    corrupt,
    corruption_generator,
    read_corrupted,
    write_corrupted,
)
from sfumato.corruptions.camera import jpeg_compression
from sfumato.corruptions.storage import stored_corruptions

NAMES = ("fog", "gaussian_noise", "contrast")


def _set(count: int = 7, channels: int = 3) -> tuple[Tensor, Tensor]:
    coarse = torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    images = torch.nn.functional.interpolate(coarse, (24, 18), mode="bilinear")
    return (images * 255).to(torch.uint8), torch.arange(count) % 3


def _read(folder: Path, name: str, severity: int, batch_size: int = 3) -> tuple[Tensor, Tensor]:
    images, labels = zip(
        *read_corrupted(folder, name, severity, batch_size=batch_size), strict=True
    )
    return torch.cat(images), torch.cat(labels)


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_hold_what_is_streamed(tmp_path: Path, channels: int) -> None:
    images, labels = _set(channels=channels)
    seen: list[tuple[str, int]] = []
    write_corrupted(
        tmp_path / "set",
        images,
        labels,
        names=NAMES,
        seed=3,
        batch_size=2,
        progress=lambda *cell: seen.append(cell),
    )
    assert seen == [(name, severity) for name in NAMES for severity in SEVERITIES]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == [
        "contrast.npy",
        "fog.npy",
        "gaussian_noise.npy",
        "labels.npy",
    ]
    assert np.load(tmp_path / "set" / "fog.npy").shape == (35, 24, 18, channels)
    assert stored_corruptions(tmp_path / "set") == ("gaussian_noise", "fog", "contrast")
    for name in NAMES:
        for severity in SEVERITIES:
            generator = corruption_generator(3, name, severity)
            expected = corrupt(images, name, severity, generator=generator)
            stored, stored_labels = _read(tmp_path / "set", name, severity)
            assert torch.equal(stored, expected)
            assert torch.equal(stored_labels, labels)


def test_labels_once_or_five_times(tmp_path: Path) -> None:
    images, labels = _set()
    write_corrupted(tmp_path, images, labels, names=["contrast"])
    assert len(np.load(tmp_path / "labels.npy")) == 35
    np.save(tmp_path / "labels.npy", labels.numpy().astype(np.uint8))
    assert torch.equal(_read(tmp_path, "contrast", 4)[1], labels)
    np.save(tmp_path / "labels.npy", labels[:3].numpy())
    with pytest.raises(ValueError, match=r"labels.npy must have 7 or 35 entries .* got 3"):
        _read(tmp_path, "contrast", 1)


def test_folders_hold_what_is_streamed_up_to_jpeg(tmp_path: Path) -> None:
    images, labels = _set()
    classes = ("ant", "bee", "cat")
    write_corrupted(
        tmp_path,
        images,
        labels,
        layout="folders",
        classes=classes,
        names=["contrast"],
        batch_size=4,
    )
    assert sorted(p.name for p in (tmp_path / "contrast" / "5" / "ant").iterdir()) == [
        "0.JPEG",
        "3.JPEG",
        "6.JPEG",
    ]
    assert stored_corruptions(tmp_path) == ("contrast",)
    stored, stored_labels = _read(tmp_path, "contrast", 2)
    order = labels.argsort(stable=True)
    assert torch.equal(stored_labels, labels[order])
    streamed = corrupt(images, "contrast", 2)[order].float()
    assert torch.equal(stored.float(), jpeg_compression(streamed, quality=85))


def test_writing_again_replaces(tmp_path: Path) -> None:
    images, labels = _set()
    write_corrupted(tmp_path, images, labels, names=["fog"], seed=0)
    first = _read(tmp_path, "fog", 1)[0]
    write_corrupted(tmp_path, images, labels, names=["fog"], seed=1)
    assert not torch.equal(first, _read(tmp_path, "fog", 1)[0])


def test_folders_are_replaced_through_no_link(tmp_path: Path) -> None:
    """What lies behind a link in the output folder was deleted."""
    kept = tmp_path / "photos" / "1" / "kept"
    kept.mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "fog").symlink_to(tmp_path / "photos")
    images, labels = torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.tensor([0, 1])
    options: dict[str, Any] = {"names": ["fog"], "layout": "folders", "classes": ("a", "b")}
    with pytest.raises(ValueError, match="leads out of"):
        write_corrupted(tmp_path / "out", images, labels, **options)
    assert kept.is_dir()


def test_writing_fewer_images_into_folders_leaves_no_old_ones(tmp_path: Path) -> None:
    images, labels = _set(12)
    for count in (12, 4):
        write_corrupted(
            tmp_path,
            images[:count],
            labels[:count],
            layout="folders",
            classes=("ant", "bee", "cat"),
            names=["contrast"],
        )
        assert len(_read(tmp_path, "contrast", 1)[0]) == count


def test_an_interrupted_file_does_not_appear(tmp_path: Path) -> None:
    images, labels = _set()

    def stop(name: str, severity: int) -> None:
        if severity == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corrupted(tmp_path, images, labels, names=["fog"], progress=stop)
    assert not (tmp_path / "fog.npy").exists()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no corrupted images: expected .* fog.npy"):
        stored_corruptions(tmp_path)
    images, labels = _set()
    write_corrupted(tmp_path, images, labels, names=["fog"])
    with pytest.raises(FileNotFoundError, match=r"neither snow.npy nor snow/2/. It holds fog."):
        read_corrupted(tmp_path, "snow", 2)
    with pytest.raises(ValueError, match="severity must be at least 1 and at most 5"):
        read_corrupted(tmp_path, "fog", 6)
    np.save(tmp_path / "fog.npy", np.zeros((7, 24, 18, 3), np.uint8))
    with pytest.raises(ValueError, match=r"must be uint8 \(5 N, H, W, C\), got uint8 \(7, 24"):
        _read(tmp_path, "fog", 1)


def test_bad_input_is_named(tmp_path: Path) -> None:
    images, labels = _set()
    with pytest.raises(TypeError, match=r"images must be uint8, got torch.float32"):
        write_corrupted(tmp_path, images.float() / 255, labels)
    with pytest.raises(ValueError, match=r"labels must be \(7,\), got \(3,\)"):
        write_corrupted(tmp_path, images, labels[:3])
    with pytest.raises(ValueError, match="classes must be the class names, sorted and different"):
        write_corrupted(tmp_path, images, labels, layout="folders", classes=("b", "a"))
    with pytest.raises(ValueError, match=r"labels must be class indices in \[0, 2\), got 2"):
        write_corrupted(tmp_path, images, labels, layout="folders", classes=("a", "b"))
    with pytest.raises(ValueError, match=r"names must be one of .*'mist'"):
        write_corrupted(tmp_path, images, labels, names=["mist"])
    with pytest.raises(ValueError, match=r"layout must be one of .*'zip'"):
        write_corrupted(tmp_path, images, labels, layout="zip")  # type: ignore[arg-type]
