"""What further test sets may be called: keys of `metrics.json` and names of files."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from sfumato._core.metric_descriptions import OWN_SPLITS


def check_set_names(names: Collection[Any]) -> None:
    """Raise unless each name of `evaluate.also` is a plain one that is free."""
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise ValueError(
                "the name of a test set must begin with a letter and have letters, digits, _ "
                f"and - only, got {name!r}"
            )
        if name.lower() in OWN_SPLITS or name.lower().startswith("class_"):
            raise ValueError(
                f"{name!r} is the name of a part of every run's metrics; choose another name "
                "for the test set"
            )
    if len({name.lower() for name in names}) < len(names):
        raise ValueError(f"names must differ in more than their case, got {list(names)}")
