"""Which audits keep their rows in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from sfumato.engine.evaluation import audit_sources
from sfumato.engine.evaluation.audit_reading import plan_reading
from sfumato.engine.evaluation.audit_sources import find_sources


def test_narrow_rows_count_for_more_than_their_scores(tmp_path: Path) -> None:
    """25 million rows of four classes hold 400 MB and took 14 GB to audit exactly."""
    path = tmp_path / "narrow.parquet"
    parquet.write_table(pyarrow.table({"confidence": np.zeros(1000, np.float32)}), path)
    (source,) = find_sources([str(path)])
    assert source.bytes() > 128 * 1000


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_rows_of_text_are_estimated_from_its_beginning(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text.{suffix}"
    path.write_text("0.25,0.75,1\n" * 20_000)
    (source,) = find_sources([str(path)])
    assert source.bytes() == pytest.approx((12 + 128) * 20_000, rel=0.01)


def test_beyond_the_limit_rows_are_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.csv"
    path.write_text("p0,p1,label\n" + "0.25,0.75,1\n" * 100)
    (source,) = find_sources([str(path)])
    assert not plan_reading([source])[0].jobs
    monkeypatch.setattr(
        "sfumato.engine.evaluation.audit_reading.LARGEST_IN_MEMORY", source.bytes() - 1
    )
    assert plan_reading([source])[0].jobs
    path.write_text("")
    assert audit_sources.find_sources([str(path)])[0].bytes() == 0
