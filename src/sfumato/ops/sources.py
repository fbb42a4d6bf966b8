"""The sources of the compiled kernels. `hatch_build.py` runs this file before PyTorch is there."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sources_id(folder: Path) -> str:
    """Name the content of the C sources, so that a library made from others is not taken."""
    parts = [path.read_bytes() for path in sorted([*folder.glob("*.c"), *folder.glob("*.inc")])]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
