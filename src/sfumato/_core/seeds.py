"""Independent random streams from one seed: by name, by numbers, or drawn from a generator.

Results depend on these numbers: they never change.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import torch


def fold_seed(*path: int | str | float, order: Literal["big", "little"] = "big") -> int:
    """A 63-bit seed (torch's are signed) that depends on every element of `path`.

    Args:
        path: the seed of the experiment, and what the stream is for.
        order: which end of the hash comes first; data and corruptions were made with "little".

    Example:
        >>> fold_seed(0, "epoch", 1) != fold_seed(0, "epoch", 2)
        True
    """
    digest = hashlib.sha256("/".join(map(str, path)).encode()).digest()
    return int.from_bytes(digest[:8], order) >> 1


def mix_seed(*numbers: int) -> int:
    """A 32-bit seed from whole numbers, cheap enough for every batch or point of a grid.

    Example:
        >>> mix_seed(0, 1) != mix_seed(1, 0)
        True
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed from a generator on any device, or from the global state."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))
