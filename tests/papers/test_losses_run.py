"""Every file of ACLS and of MbLS runs: each method takes random input to its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.engine import run
from sfumato.study import load_study
from sfumato.study.config import plan
from tests.papers.small_studies import FILES, small


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the temperature ended at its bound")  # as labels are random
@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.stem.startswith(("acls", "mbls"))],
    ids=lambda path: path.stem,
)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    for planned in plan(small(load_study(path))):
        assert run(planned.config, tmp_path, show=False).finished, planned.method
