"""Archives that are cut, looped or linked outside: one line with the file and what to do."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.data import load_camvid, load_tiny_imagenet

LOADERS = [load_camvid, load_tiny_imagenet]


def _pack(path: Path, *members: tarfile.TarInfo) -> Path:
    noise = np.random.default_rng(0).bytes(100_000)
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name in ("set/wnids.txt", "set/train/noise.png"):
            plain = tarfile.TarInfo(name)
            plain.size = len(noise)
            archive.addfile(plain, io.BytesIO(noise))
        for member in members:
            archive.addfile(member)
    return path


def _link(name: str, target: str, *, hard: bool = False) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.LNKTYPE if hard else tarfile.SYMTYPE, target
    return member


def _fails(load: Callable[..., Any], path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{message}") as raised:
        load(root=path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("kept", [300, 5_000, 150_000])
@pytest.mark.parametrize("name", ["set.tar", "set.tar.gz"])
def test_cut(load: Callable[..., Any], kept: int, name: str, tmp_path: Path) -> None:
    path = _pack(tmp_path / name)
    path.write_bytes(path.read_bytes()[:kept])
    _fails(load, path, "cut short, damaged or no tar archive .* again")


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    "links",
    [
        [_link("set/a.png", "a.png")],
        [_link("set/a.png", "b.png"), _link("set/b.png", "a.png")],
        [_link("set/a.png", "gone.png")],
    ],
    ids=["itself", "in a circle", "nothing"],
)
def test_looped(load: Callable[..., Any], links: list[tarfile.TarInfo], tmp_path: Path) -> None:
    path = _pack(tmp_path / "set.tar", *links)
    _fails(load, path, "set/[ab].png is a link to itself or to nothing .*--dereference")


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("target", ["set/a.png", "set/gone.png"])
def test_hard_links_to_nothing(load: Callable[..., Any], target: str, tmp_path: Path) -> None:
    path = _pack(tmp_path / "set.tar", _link("set/a.png", target, hard=True))
    _fails(load, path, "cut short, damaged or no tar archive")


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    "member",
    [
        _link("set/a.png", "../../secret.png"),
        _link("set/a.png", "/etc/hostname"),
        _link("set/a.png", "../secret.png", hard=True),
        tarfile.TarInfo("../escaped.png"),
    ],
    ids=["above", "absolute", "hard", "name"],
)
def test_linked_outside(load: Callable[..., Any], member: tarfile.TarInfo, tmp_path: Path) -> None:
    path = _pack(tmp_path / "set.tar", member)
    _fails(load, path, "points out of it .*--dereference")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["set.tar"]


def test_what_is_wrong_inside_names_the_archive(tmp_path: Path) -> None:
    path = _pack(tmp_path / "set.tar")
    _fails(load_tiny_imagenet, path, r"set/wnids.txt: not text in UTF-8")
