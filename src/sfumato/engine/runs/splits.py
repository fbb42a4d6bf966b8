"""The data of a run: three parts, none of them empty, and what standardises their images."""

from __future__ import annotations

from sfumato._core.spec import Spec
from sfumato.data import ArrayDataset, DataSplits
from sfumato.data.normalise import Normalise
from sfumato.data.prepare import input_statistics
from sfumato.engine.config.components import build_part
from sfumato.engine.config.run_config import RunConfig


def load_splits(spec: Spec) -> DataSplits:
    """The data of a run, which trains on one part, validates on another, tests on the third.

    As `load_data`, and also a user's own by its import path.

    Raises:
        ValueError: a part without samples.
    """
    data: DataSplits = build_part("data", spec)
    counts = {name: len(getattr(data, name)) for name in ("train", "validation", "test")}
    empty = [name for name, count in counts.items() if not count]
    if len(empty) == len(counts):
        raise ValueError("the data set is empty: a run needs images to train, validate and test on")
    if empty:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(
            f"no images for {' and '.join(empty)} ({found}): a run needs all three. Give more "
            f"images, or a count instead of a share, as {empty[0]}: 1"
        )
    return data


def image_statistics(
    config: RunConfig, train: ArrayDataset
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel: those that the run names, else those of its training set.

    Raises:
        ValueError: the run names them for another number of channels, or for texts.
    """
    named = config.standardise
    if named is None:
        return input_statistics(train)
    if train.vocabulary is not None:
        raise ValueError("standardise is for images, and the data is of texts: leave it out")
    Normalise(train.images.shape[1], named.mean, named.std)  # says where they are too many or few
    return tuple(named.mean), tuple(named.std)
