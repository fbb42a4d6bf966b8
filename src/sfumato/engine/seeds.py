"""Independent random streams from one seed."""

from __future__ import annotations

import hashlib


def fold_seed(seed: int, *path: int | str) -> int:
    """A 63-bit seed that depends on `seed` and on every element of `path`.

    Example:
        >>> fold_seed(0, "epoch", 1) != fold_seed(0, "epoch", 2)
        True
    """
    text = "/".join([str(seed), *(str(part) for part in path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
