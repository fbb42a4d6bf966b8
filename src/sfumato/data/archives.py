"""A data set's folder, or an archive of it that is unpacked for as long as it is read."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


@contextmanager
def opened(root: str | Path, landmark: str) -> Iterator[Path]:
    """The folder that holds `landmark`: `root` itself, or inside the archive that `root` names.

    An archive goes to a temporary folder, which is gone afterwards; members that point out of it
    are refused.

    Args:
        root: a folder or a tar archive.
        landmark: a file that marks the data set's top folder.

    Raises:
        ValueError: an archive that can't be read or has no `landmark`.
    """
    path = Path(root).expanduser()
    if not (path.is_file() and path.name.endswith(ARCHIVES)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="sfumato-") as folder:
        try:
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ValueError(f"{path}: not readable as a tar archive: {error}") from error
        found = sorted(Path(folder).rglob(landmark), key=lambda file: len(file.parts))
        if not found:
            raise ValueError(f"{path}: has no {landmark} in it")
        yield found[0].parent
