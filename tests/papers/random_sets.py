"""Random images, masks and texts, as many classes and as large as those of the papers' sets.

The files of `studies/papers` are run on them: a study names a function here by its import path.
"""

from __future__ import annotations

import torch

from sfumato.data import ArrayDataset, DataSplits, Vocabulary

_COUNT = 4


def images(*, classes: int, size: int, count: int = _COUNT) -> DataSplits:
    """Images with a box each, so that objectness can be asked of them."""
    corner = torch.randint(0, size // 2, (count, 1, 2))
    boxes = torch.cat([corner, corner + size // 3], dim=-1).float()
    names = tuple(str(each) for each in range(classes))
    part = ArrayDataset(_pixels(count, size, size), _labels(classes, count), names, boxes=boxes)
    return DataSplits(part, part, part)


def maps(*, classes: int, height: int, width: int) -> DataSplits:
    """Frames of one video with a label for every pixel, some of them void."""
    labels = torch.randint(0, classes, (_COUNT, height, width))
    labels[:, 0] = -100
    part = ArrayDataset(
        _pixels(_COUNT, height, width),
        labels,
        tuple(str(each) for each in range(classes)),
        void=-100,
        stream=torch.zeros(_COUNT, dtype=torch.int64),
        background=(0,),
    )
    return DataSplits(part, part, part)


def texts(*, classes: int, length: int) -> DataSplits:
    """Texts of words without meaning, with a vector for each of them."""
    words = tuple(f"w{number}" for number in range(50))
    vocabulary = Vocabulary(words, length=length, vectors=torch.randn(52, 100))
    tokens = torch.randint(2, 52, (_COUNT, length), dtype=torch.int32)
    names = tuple(str(each) for each in range(classes))
    part = ArrayDataset(tokens, _labels(classes, _COUNT), names, vocabulary=vocabulary)
    return DataSplits(part, part, part)


def _pixels(count: int, height: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)


def _labels(classes: int, count: int) -> torch.Tensor:
    return torch.randint(0, classes, (count,))
