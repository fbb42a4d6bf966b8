"""Metrics of bootstrap resamples, kept with each run, so that runs are compared image by image.

Every run draws the same resamples of as many test images: the difference of two methods on a
resample is a difference of two stored numbers, and what is hard for both methods cancels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sfumato._core.files import write_arrays
from sfumato._core.seeds import fold_seed
from sfumato.data.file_tensor import FileTensor

FILE = "replicates.npz"
_LABELS_AT_A_TIME = 1024


@dataclass(frozen=True)
class Replicates:
    """Collects `<split>.<metric>`, float32 (R,), and `<split>.units`, what the split consists of.

    Two runs may be subtracted replicate by replicate where their units and R agree.

    Args:
        resamples: number R of resamples; 0 for none, and no file.
    """

    resamples: int
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def generator(self, units: int) -> torch.Generator:
        """Draws that depend on the number of units and of resamples and on nothing else."""
        seed = fold_seed(0, "replicates", units, self.resamples)
        return torch.Generator().manual_seed(seed)

    def add(self, split: str, units: str, draws: Mapping[str, Tensor]) -> None:
        """Add the resampled metrics of a split."""
        for name, values in draws.items():
            self.arrays[f"{split}.{name}"] = values.float().cpu().numpy()
        self.arrays[f"{split}.units"] = np.array(units)

    def write(self, folder: Path) -> None:
        """Write the file, where anything was resampled."""
        if self.arrays:
            write_arrays(folder / FILE, self.arrays)


def describe_units(count: int, labels: Tensor | FileTensor) -> str:
    """Number of units and a digest of their labels, such as `2000-ab12cd34`."""
    digest = hashlib.sha256()
    for part in labels.split(_LABELS_AT_A_TIME):
        numbers = part.detach().cpu().to(torch.int64).contiguous().numpy().astype("<i8")
        digest.update(numbers.tobytes())
    return f"{count}-{digest.hexdigest()[:8]}"
