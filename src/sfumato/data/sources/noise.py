"""Images of nothing: noise, as inputs that no class fits."""

from __future__ import annotations

import torch

from sfumato._core.checks import check_integer
from sfumato._core.seeds import fold_seed
from sfumato.data.dataset import UNLABELLED, ArrayDataset, DataSplits
from sfumato.data.splits import as_test_set


def load_noise(*, test: int = 2000, size: int = 32, channels: int = 3, seed: int = 0) -> DataSplits:
    """Make a test set of uniform noise without labels, for `evaluate.ood`.

    Args:
        test: images.
        size: image side in pixels.
        channels: of the images.
        seed: the same seed gives the same bytes.

    Example:
        >>> load_noise(test=5, size=8).test.images.shape
        torch.Size([5, 3, 8, 8])
    """
    for name, value in {"test": test, "size": size, "channels": channels}.items():
        check_integer(name, value, low=1)
    check_integer("seed", seed, low=0)
    generator = torch.Generator().manual_seed(fold_seed(seed, "noise images"))
    levels = torch.rand(test, channels, size, size, generator=generator, dtype=torch.float32)
    images = levels.mul_(256).floor_().to(torch.uint8)
    labels = torch.full((test,), UNLABELLED)
    return as_test_set(ArrayDataset(images, labels, (), void=UNLABELLED))
