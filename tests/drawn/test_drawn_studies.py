"""What `check` accepts finishes a run of one epoch; what it refuses, it refuses in words."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.drawn.studies import draw_study, judge


@pytest.mark.parametrize("number", range(5))
def test_a_few(number: int, tmp_path: Path) -> None:
    judge(draw_study(Random(number)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5, 100))
def test_many(number: int, tmp_path: Path) -> None:
    judge(draw_study(Random(number)), tmp_path)


def test_the_same_number_is_the_same_study() -> None:
    assert draw_study(Random(3)) == draw_study(Random(3)) != draw_study(Random(4))
