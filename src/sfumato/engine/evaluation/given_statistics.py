"""What a caller says that images are standardised with, as plain numbers for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from torch import Tensor

from sfumato._core.arrays import to_tensor
from sfumato.data.normalise import Normalise

GivenNumbers = float | Sequence[float] | npt.NDArray[Any] | Tensor
Statistics = tuple[float, ...] | None


def read_numbers(name: str, given: GivenNumbers | None) -> Statistics:
    """Plain numbers of a tensor, an array, a list, or of one number, which is for all channels.

    Example:
        >>> read_numbers("mean", 0.5)
        (0.5,)

    Raises:
        TypeError: something else than numbers.
        ValueError: no numbers, or more than one row of them.
    """
    if given is None:
        return None
    numbers = to_tensor(name, given).double()
    if numbers.ndim > 1 or not numbers.numel():
        raise ValueError(
            f"{name} must be one number, or one for each channel, got {tuple(numbers.shape)}"
        )
    return tuple(numbers.reshape(-1).tolist())


def for_channels(mean: Statistics, std: Statistics, channels: int) -> tuple[Statistics, Statistics]:
    """Both with as many numbers as images have channels; one number is for all of them.

    Raises:
        ValueError: numbers for other channels, or a std that is not above 0.
    """
    mean, std = (each * channels if each and len(each) == 1 else each for each in (mean, std))
    Normalise(channels, mean, std)  # says which of them does not fit
    return mean, std
