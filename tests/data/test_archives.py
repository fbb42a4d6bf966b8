"""Archives that are cut, looped or linked outside: one line with the file and what to do."""

from __future__ import annotations

import bz2
import io
import re
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato.data import load_camvid, load_newsgroups, load_tiny_imagenet
from sfumato.data.sources.cub import load_cub

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
    _fails(load, path, "cut short, unreadable or no tar archive .* again")


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
    _fails(load, path, "'set/a.png' is a link.*--dereference")


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("target", ["set/a.png", "set/gone.png"])
def test_hard_links_to_nothing(load: Callable[..., Any], target: str, tmp_path: Path) -> None:
    path = _pack(tmp_path / "set.tar", _link("set/a.png", target, hard=True))
    _fails(load, path, "'set/a.png' is a link.*--dereference")


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
    _fails(load, path, "(is a link|points out of it).*--dereference")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["set.tar"]


@pytest.mark.parametrize("load", [*LOADERS, load_cub])
def test_a_chain_of_links_writes_nothing_outside(load: Callable[..., Any], tmp_path: Path) -> None:
    """Links so long that the real path of the last can't be found, by which it leads outside."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").write_text("as it was")
    members, step, name = [], "", "d" * 247
    for letter in "abcdefghijklmnop":
        folder = tarfile.TarInfo(step + name)
        folder.type = tarfile.DIRTYPE
        members += [folder, _link(step + letter, name)]
        step += f"{name}/"
    last = f"{'/'.join('abcdefghijklmnop')}/{'l' * 254}"
    members += [_link(last, "../" * 16), _link("escape", f"{last}{'/..' * 10}{victim}")]
    members += [_link("again", "escape/kept", hard=True), tarfile.TarInfo("again")]
    path = _pack(tmp_path / "set.tar", *members, tarfile.TarInfo("escape/written"))
    with pytest.raises(ValueError, match=r"is a link.*--dereference"):
        load(root=path)
    assert [each.read_text() for each in victim.iterdir()] == ["as it was"]


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE])
def test_only_plain_files_and_folders(kind: bytes, tmp_path: Path) -> None:
    member = tarfile.TarInfo("set/odd")
    member.type = kind
    path = _pack(tmp_path / "set.tar", member)
    _fails(load_camvid, path, "'set/odd' is no plain file")


def _bomb(path: Path, name: str, size: int, kind: bytes = tarfile.REGTYPE) -> Path:
    """An archive of a few kilobytes, a member of which has `size` zeros."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    with bz2.open(path, "wb") as file:
        file.write(member.tobuf())
        for _ in range(size >> 20):
            file.write(bytes(2**20))
        file.write(bytes(1024))
    return path


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("load", [load_camvid, load_newsgroups])
def test_bombs_end_early(load: Callable[..., Any], kind: bytes, tmp_path: Path) -> None:
    path = _bomb(tmp_path / "set.tar.bz2", "20news-bydate-train/a/1", 80 * 2**20, kind)
    assert path.stat().st_size < 5000
    tracemalloc.start()
    _fails(load, path, "not unpacked, since")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


def test_images_far_larger_than_their_archive_are_not_decoded(tmp_path: Path) -> None:
    """Frames of one colour: 10 kB would be held as a gigabyte and more."""
    masks, root = io.BytesIO(), tmp_path / "set"
    Image.new("L", (3000, 3000)).save(masks, "PNG")
    for part in ("train", "val", "test"):
        for folder in (part, f"{part}annot"):
            (root / folder).mkdir(parents=True)
            for number in range(2):
                (root / folder / f"Seq_f{number:05d}.png").write_bytes(masks.getvalue())
    path = tmp_path / "set.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(root, "set")
    assert path.stat().st_size < 20_000
    _fails(load_camvid, path, "not decoded, since its images have more than .* pixels.* unpack it")


def test_small_images_that_would_be_scaled_up_count_as_they_are_held(tmp_path: Path) -> None:
    pixel, root = io.BytesIO(), tmp_path / "set"
    Image.new("L", (1, 1)).save(pixel, "PNG")
    for part in ("train", "val", "test"):
        for folder in (part, f"{part}annot"):
            (root / folder).mkdir(parents=True)
            (root / folder / "Seq_f00000.png").write_bytes(pixel.getvalue())
    path = tmp_path / "set.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(root, "set")
    assert load_camvid(root=path, size=(50, 50)).train.images.shape == (1, 3, 50, 50)
    with pytest.raises(ValueError, match="not decoded, since its images"):
        load_camvid(root=path, size=(4000, 4000))


def test_messages_of_an_archive_are_as_long_as_in_folders(tmp_path: Path) -> None:
    path = tmp_path / "set.tar.bz2"
    _bomb(path, "20news-bydate-train/a/1", 65 * 2**20)
    with path.open("ab") as file:
        file.write(np.random.default_rng(0).bytes(100_000))
    _fails(load_newsgroups, path, "20news-bydate-train/a/1 has 68,157,440 bytes")


def test_what_newsgroups_does_not_need_is_not_read(tmp_path: Path) -> None:
    path = _bomb(tmp_path / "set.tar.bz2", "unrelated", 30 * 2**20)
    tracemalloc.start()
    _fails(load_newsgroups, path, "has no 20news-bydate-train")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


def test_what_is_wrong_inside_names_the_archive(tmp_path: Path) -> None:
    path = _pack(tmp_path / "set.tar")
    _fails(load_tiny_imagenet, path, r"set/wnids.txt: not text in UTF-8")


_SQUARE = {"digits": b"1" * 7_000, "keywords": b"3 a" * 30_000 + b"=", "long": b"1" * 500_000}


@pytest.mark.parametrize("body", _SQUARE.values(), ids=_SQUARE)
def test_a_header_takes_no_square_of_its_bytes(body: bytes, tmp_path: Path) -> None:
    """Two regular expressions of tarfile look at each byte once for each byte."""
    path = _with_header(tmp_path / "set.tar", body)
    _fails(load_camvid, path, "not unpacked, since a header has")


@pytest.mark.parametrize(
    "header",
    [
        {"GNU.sparse.map": "a,b", "GNU.sparse.size": "1"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
    ],
)
def test_numbers_of_a_header_name_the_archive(header: dict[str, str], tmp_path: Path) -> None:
    member = tarfile.TarInfo("set/odd")
    member.pax_headers = header
    _fails(load_camvid, _pack(tmp_path / "set.tar", member), "cut short, unreadable")


@pytest.mark.parametrize("length", [b"9" * 20, b"1" + b"0" * 200], ids=["20", "200"])
def test_a_length_past_all_files_names_the_archive(length: bytes, tmp_path: Path) -> None:
    path = _with_header(tmp_path / "set.tar", length + b" a=b\n")
    _fails(load_camvid, path, "cut short, unreadable")


def _with_header(path: Path, body: bytes) -> Path:
    member = tarfile.TarInfo("header")
    member.size, member.type = len(body), tarfile.XHDTYPE
    padded = body + bytes(-len(body) % tarfile.BLOCKSIZE)
    path.write_bytes(member.tobuf() + padded + tarfile.TarInfo("set/a").tobuf() + bytes(1024))
    return path
