"""The data of a run: three parts, none of them empty."""

from __future__ import annotations

from sfumato._core.spec import Spec
from sfumato.data import DataSplits
from sfumato.engine.config.components import build_part


def load_splits(spec: Spec) -> DataSplits:
    """The data of a run, which trains on one part, validates on another, tests on the third.

    As `load_data`, and also a user's own by its import path.

    Raises:
        ValueError: a part without samples.
    """
    data: DataSplits = build_part("data", spec)
    counts = {name: len(getattr(data, name)) for name in ("train", "validation", "test")}
    empty = [name for name, count in counts.items() if not count]
    if empty:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(
            f"no images for {' and '.join(empty)} ({found}): a run needs all three. Give more "
            f"images, or a count instead of a share, as {empty[0]}: 1"
        )
    return data
