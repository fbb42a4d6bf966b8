"""Numbers of a user's own evaluation in tables: shown by their titles, judged by nobody."""

from __future__ import annotations

from sfumato.report.columns import columns_of

METRICS = {
    "test": {"ece": 0.1, "samples": 5},
    "own": {"tail risk": {"ece": 0.5, "samples": 3.0, "low_floor": 1.0}, "gap": {"value": 0.2}},
}


def test_every_number_is_a_column_without_a_direction() -> None:
    usual, *own = columns_of([METRICS])
    assert (usual.id, usual.better) == ("test.ece", "lower")
    assert {each.id: each.heading for each in own} == {
        "own.tail risk.ece": "tail risk ece",
        "own.tail risk.samples": "tail risk samples",
        "own.tail risk.low_floor": "tail risk low floor",
        "own.gap.value": "gap",
    }
    assert [each.value(METRICS) for each in own] == [0.5, 3.0, 1.0, 0.2]
    assert not any(each.percent or each.better for each in own)
