"""On images without their object, being right or sure is no merit."""

from __future__ import annotations

from sfumato.report.columns import columns_of


def test_directions_turn_round_without_the_object() -> None:
    scores = {"accuracy": 0.1, "average_confidence": 0.2, "underconfidence": 0.8}
    curve = {"counts": [1, 2], "confidence": [0.5, 0.5]}
    metrics = {
        "test": {"accuracy": 0.9},
        "context": scores,
        "objectness": {"mean_objectness_deviation": 0.3, "ece_100": 0.1, "curve": curve},
    }
    found = {column.id: column for column in columns_of([metrics])}
    assert found["test.accuracy"].better == "higher"
    assert found["context.accuracy"].heading == "accuracy without object % ↓"
    assert found["context.average_confidence"].is_main
    assert found["context.underconfidence"].better == "higher"
    assert found["objectness.mean_objectness_deviation"].better == "lower"
    assert not any("curve" in name for name in found)
