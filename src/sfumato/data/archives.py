"""A data set's folder, or an archive of it that is unpacked for as long as it is read."""

from __future__ import annotations

import lzma
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")

# What the standard library raises for bytes that are cut or no archive, and for hard links whose
# target is missing (KeyError) or the link itself (RecursionError).
_UNREADABLE = (
    tarfile.TarError,
    EOFError,
    OSError,
    zlib.error,
    lzma.LZMAError,
    KeyError,
    RecursionError,
)


@contextmanager
def opened(root: str | Path, landmark: str) -> Iterator[Path]:
    """The folder that holds `landmark`: `root` itself, or inside the archive that `root` names.

    Args:
        root: a folder or a tar archive.
        landmark: a file that marks the data set's top folder.

    Raises:
        ValueError: an archive that can't be read or has no `landmark`.
    """
    path = Path(root).expanduser()
    if not is_archive(path):
        yield path
        return
    with unpacked(path) as folder:
        found = sorted(folder.rglob(landmark), key=lambda file: len(file.parts))
        if not found:
            raise ValueError(f"{path}: has no {landmark} in it")
        yield found[0].parent


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The content of a tar archive in a temporary folder, which is gone afterwards.

    Errors about files in that folder, raised while it is there, name the archive instead.

    Raises:
        ValueError: a file that is cut or no archive; a member that points out of it, to nothing
            or to itself.
    """
    with tempfile.TemporaryDirectory(prefix="sfumato-") as name:
        folder = Path(name).resolve()
        _extract(path, folder)
        try:
            yield folder
        except (ValueError, OSError) as error:
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(str(error).replace(f"{folder}{os.sep}", f"{path}: ")) from error


def read_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file in a tar archive, without unpacking it to disk.

    Raises:
        ValueError: a file that is cut or no archive.
    """
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield member.name, content.read()
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def is_archive(path: Path) -> bool:
    """Whether this is a file whose name ends as tar archives do."""
    return path.is_file() and path.name.endswith(ARCHIVES)


def _unreadable(path: Path, error: Exception) -> ValueError:
    reason = str(error).partition("\n")[0].rstrip(":")
    return ValueError(
        f"{path}: cut short, damaged or no tar archive ({reason}). Fetch or pack it again"
    )


def _extract(path: Path, folder: Path) -> None:
    try:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    except tarfile.FilterError as error:
        raise ValueError(
            f"{path}: not unpacked, since a member points out of it or is no plain file ({error}). "
            "Pack the files themselves: tar --dereference"
        ) from error
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    for member in folder.rglob("*"):
        if member.is_symlink() and not member.exists():
            raise ValueError(
                f"{path}: {member.relative_to(folder)} is a link to itself or to nothing in the "
                "archive. Pack the files themselves: tar --dereference"
            )
