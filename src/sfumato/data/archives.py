"""Folders, archives and downloads of data sets."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from sfumato._core.files import FREE_BYTES, MOST_RATIO, open_file

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
# What the standard library raises for bytes that are cut or no archive.
_UNREADABLE = (
    *(tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, RecursionError),
    *(ValueError, OverflowError),  # numbers of a header
)

_OPENERS: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\0", lzma.LZMAFile),
)

_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
_MOST_MEMBERS = 2_000_000  # ImageNet has 1.3 million
_MOST_HELD = 2**30  # of members that are read to memory
_MOST_AT_ONCE = 2**20
# Of a header. Time to read one grows with the square of its bytes, and of its digits in a row.
_MOST_HEADER, _MOST_DIGITS = 8192, re.compile(rb"\d{256}")


@contextmanager
def unpacked(path: Path, landmark: str | None = None) -> Iterator[Path]:
    """The content of a tar archive in a temporary folder, which is gone afterwards.

    With `landmark` it is the topmost folder that holds this file. Errors about files in the folder,
    raised while it is there, name the archive instead.
    """
    with tempfile.TemporaryDirectory(prefix="sfumato-") as name:
        folder = Path(name).resolve()
        with _named(path):
            _extract(path, folder)
        try:
            yield folder if landmark is None else _holder(folder, landmark, path)
        except (ValueError, OSError) as error:
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(str(error).replace(f"{folder}{os.sep}", f"{path}: ")) from error


def _holder(folder: Path, landmark: str, path: Path) -> Path:
    found = sorted(folder.rglob(landmark), key=lambda file: len(file.parts))
    if not found:
        raise ValueError(f"{path}: has no {landmark} in it")
    return found[0].parent


def read_members(
    path: Path, wanted: Callable[[str], bool], most: int
) -> Iterator[tuple[str, bytes]]:
    """The plain files of an archive that are wanted, none of which has more than `most` bytes."""
    held = 0
    with _named(path):
        for stream, member in _members(path):
            if member.isdir() or not wanted(member.name):
                continue
            if member.size > most:
                raise ValueError(
                    f"{path}: {member.name} has {member.size:,} bytes, at most {most:,} are read"
                )
            held += member.size
            if held > _MOST_HELD:
                raise ValueError(f"{path}: not read, since it holds more than {_MOST_HELD:,} bytes")
            yield member.name, b"".join(stream.content(member))


def is_archive(path: Path) -> bool:
    return path.is_file() and path.name.endswith(ARCHIVES)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        if str(error).startswith(f"{path}: "):
            raise
        reason = str(error).partition("\n")[0].rstrip(":")
        raise ValueError(
            f"{path}: cut short, unreadable or no tar archive ({reason}). Fetch or pack it again"
        ) from error


def _extract(path: Path, folder: Path) -> None:
    for stream, member in _members(path):
        target = folder.joinpath(*PurePosixPath(member.name).parts)
        if not Path(os.path.realpath(target)).is_relative_to(folder):
            raise _refused(path, f"{member.name} points out of it")
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.writelines(stream.content(member))


def _members(path: Path) -> Iterator[tuple[_Bounded, tarfile.TarInfo]]:
    """The plain files and folders of an archive, which must have no other members."""
    with ExitStack() as stack:
        stream = _bounded(path, stack)
        archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r:"))
        count, at = 0, -1
        while (member := archive.next()) is not None:
            count += 1
            if count > _MOST_MEMBERS:
                raise _refused(path, f"it has more than {_MOST_MEMBERS:,} members")
            if archive.offset <= at or member.size < 0:
                raise tarfile.ReadError("a size below 0")
            at = archive.offset
            _check_member(path, member)
            stream.check(member.offset_data + member.size)
            yield stream, member
            archive.members.clear()  # type: ignore[attr-defined]  # or they are kept to the end


def _check_member(path: Path, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\0" in member.name:
        raise _refused(path, f"{member.name!r} points out of it")
    if member.type not in _PLAIN or member.issparse():
        kind = "a link" if member.issym() or member.islnk() else "no plain file"
        raise _refused(path, f"{member.name!r} is {kind}")


def _refused(path: Path, why: str) -> ValueError:
    return ValueError(f"{path}: not unpacked, since {why}. Pack the files: tar --dereference")


def _bounded(path: Path, stack: ExitStack) -> Any:
    """The bytes that an archive holds, as many as its own size allows."""
    file: IO[bytes] = stack.enter_context(open_file(path))
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    # By their first bytes: the name of a file says little about its content.
    start = file.read(6)
    file.seek(0)
    for magic, opener in _OPENERS:
        if start.startswith(magic):
            file = stack.enter_context(opener(file))
    return _Bounded(path, file, FREE_BYTES + MOST_RATIO * size)


class _Bounded:
    """A stream of which no more is read than `most` bytes; tarfile reads the headers of it."""

    def __init__(self, path: Path, file: IO[bytes], most: int) -> None:
        self.path, self.file, self.most = path, file, most

    def read(self, size: int) -> bytes:
        if size > _MOST_HEADER:
            raise _refused(self.path, f"a header has {size:,} bytes")
        self.check(self.file.tell() + size)
        header = self.file.read(size)
        if _MOST_DIGITS.search(header):
            raise _refused(self.path, "a header has more than 255 digits in a row")
        return header

    def content(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        self.seek(member.offset_data)
        left = member.size
        while left:
            part = self.file.read(min(left, _MOST_AT_ONCE))
            if not part:
                raise tarfile.ReadError("unexpected end of data")
            left -= len(part)
            yield part

    def seek(self, position: int) -> int:
        self.check(position)
        return self.file.seek(position)

    def tell(self) -> int:
        return self.file.tell()

    def check(self, position: int) -> None:
        if position > self.most + _MOST_AT_ONCE:
            raise _refused(self.path, f"it unpacks to more than {self.most:,} bytes")


def from_torchvision(
    build: Callable[..., Any], root: Path, *, download: bool, name: str, holds: str, **options: Any
) -> Any:
    """Torchvision's set; what fails says what to do, and leaves no empty folder behind."""
    there = root.exists()
    try:
        return build(root=root, download=download, **options)
    except (OSError, RuntimeError) as error:
        if not there and root.is_dir() and not any(root.iterdir()):
            root.rmdir()
        if download:
            problem, way = "could not be fetched into", "Try again online"
        else:
            problem, way = "is not in", "Say download: true to fetch it there"
        raise FileNotFoundError(
            f"{name} {problem} root={str(root)!r} ({error}). {way}, or point root at {holds}"
        ) from error
