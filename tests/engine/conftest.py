"""A run small enough to be repeated many times."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Plain data for a RunConfig that trains in about a second."""
    return {
        "data": {"name": "scenes", "train": 96, "validation": 40, "test": 50, "size": 16},
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "augment": {"name": "basic", "crop": 2},
        "train": {"epochs": 3, "batch_size": 32},
        "evaluate": {"resamples": 50},
    }
