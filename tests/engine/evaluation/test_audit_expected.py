"""Audits without labels: what confidences promise, asked for and never guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from sfumato.predictions import expected_accuracy

COUNT = 3000


def _probs(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet([0.4] * 3, COUNT)


def _found(folder: Path, done: Any) -> dict[str, Any]:
    assert done.status == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "audit" / "audit.json").read_text())
    return found


def test_the_accuracy_to_expect_of_every_part(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    probs, time = _probs(), np.arange(COUNT) % 90
    group = np.where(np.arange(COUNT) % 3 == 0, "night", "day")
    names = ("cat", "dog", "owl")
    columns = {f"prob_{name}": probs[:, k] for k, name in enumerate(names)}
    table = arrow.table(columns | {"group": group, "time": time})
    for part, rows in enumerate((slice(0, 1000), slice(1000, None))):
        path = tmp_path / f"part-{part}.parquet"
        parquet.write_table(table.take(np.arange(COUNT)[rows]), path, row_group_size=100)
    for more in ((), ("--workers", "2")):
        done = sfumato("audit", "part-*.parquet", "--unlabelled", "--quiet", *more)
        (model,) = _found(tmp_path, done)["models"]
        confidence = probs.max(1)
        exact = expected_accuracy(confidence)
        assert model["expected"]["accuracy"] == pytest.approx(exact.accuracy)
        assert model["expected"]["interval"] == pytest.approx([exact.low, exact.high])
        for row in model["by_class"]:
            chosen = confidence[probs.argmax(1) == names.index(row["name"])]
            theirs = expected_accuracy(chosen, level=1 - 0.05 / 3)
            assert row["count"] == len(chosen)
            assert row["interval"] == pytest.approx([theirs.low, theirs.high])
        by_group = {row["name"]: row["accuracy"] for row in model["by_group"]}
        assert by_group["night"] == pytest.approx(confidence[group == "night"].mean())
        assert sum(row["count"] for row in model["by_time"]) == COUNT


def test_what_a_threshold_promises(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    confidence = _probs().max(1).astype(np.float32)
    np.savez(tmp_path / "a.npz", confidence=confidence)
    (model,) = _found(tmp_path, sfumato("audit", "a.npz", "--unlabelled", "--quiet"))["models"]
    shown = model["curve"]
    for place in (0, len(shown["kept"]) // 2, len(shown["kept"]) - 1):
        kept = np.sort(confidence.astype(np.float64))[-int(shown["kept"][place]) :]
        assert shown["wrong"][place] == pytest.approx((1 - kept).sum(), rel=1e-6)
        spread = np.sqrt((kept * (1 - kept)).sum())
        bound = ((1 - kept).sum() + 1.6449 * spread) / len(kept)
        assert shown["bound"][place] == pytest.approx(min(bound, 1), rel=1e-3, abs=1e-6)
    assert sum(model["counts"]) == COUNT


def test_the_assumption_is_said_everywhere(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    np.save(tmp_path / "a.npy", _probs())
    done = sfumato("audit", "a.npy", "--unlabelled")
    found = _found(tmp_path, done)
    page = (tmp_path / "audit" / "index.html").read_text()
    for text in (" ".join(done.stdout.split()), page):
        assert "Assumption: each confidence is right on these data" in text
        assert "Left out, because it needs labels: calibration errors" in text
        assert "if its confidences are right" in text
    assert found["is_labelled"] is False
    assert "metrics" not in found["models"][0]
    assert "data-figure='reliability'" not in page


def test_two_models_and_several_detections_of_an_image(
    tmp_path: Path, sfumato: Callable[..., Any]
) -> None:
    rows = "".join(f"{i // 3}.jpg,0.{5 + i % 5},cat\n" for i in range(30))
    (tmp_path / "a.csv").write_text("image,score,label\n" + rows)
    np.savez(tmp_path / "b.npz", logits=np.log(_probs(1)))
    done = sfumato("audit", "a.csv", "b.npz", "--unlabelled", "--quiet")
    first, second = _found(tmp_path, done)["models"]
    assert "several predictions are of one image" in " ".join(done.stdout.split())
    assert first["images"] == 10
    assert first["expected"]["interval"] == pytest.approx(
        expected_accuracy([0.5, 0.6, 0.7, 0.8, 0.9] * 6)[1:3]
    )
    assert second["expected"]["accuracy"] == pytest.approx(_probs(1).max(1).mean())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["plain.csv"],
            "if there are no labels, sfumato audit --unlabelled tells the accuracy to expect",
        ),
        (
            ["a.npy"],
            "an .npy takes its labels from --labels; if there are no labels, sfumato audit",
        ),
        (["labelled.csv", "--unlabelled"], "labelled.csv: has 'label', which says what is right"),
        (["judged.csv", "--unlabelled"], "judged.csv: has 'correct', which says what is right"),
        (["none.csv", "--unlabelled"], "none.csv: needs 'probs' or 'logits' of all classes, or"),
        (["bad.csv", "--unlabelled"], "bad.csv, row 2: 'confidence' is 7, outside [0, 1]"),
        (["a.npy", "--unlabelled", "--target-risk", "0.1"], "--target-risk needs labels"),
        (["a.npy", "--unlabelled", "--labels", "a.npy"], "--labels gives labels: leave"),
        (["maps.npz", "--unlabelled"], "pixels of one image are far from independent"),
        (["counts.npz", "--unlabelled"], "is a histogram that counts right ones"),
    ],
)
def test_what_is_refused_in_one_line(
    tmp_path: Path, sfumato: Callable[..., Any], arguments: list[str], message: str
) -> None:
    np.save(tmp_path / "a.npy", _probs())
    np.savez(tmp_path / "maps.npz", logits=np.zeros((2, 3, 4, 4)))
    np.savez(tmp_path / "counts.npz", counts=[2, 3], correct=[1, 2], confidence=[0.5, 2.5])
    (tmp_path / "plain.csv").write_text("pred_label,confidence\ncat,0.5\n")
    (tmp_path / "labelled.csv").write_text("label,prob_a,prob_b\na,0.5,0.5\n")
    (tmp_path / "judged.csv").write_text("correct,confidence\n1,0.5\n")
    (tmp_path / "none.csv").write_text("photo\nx\n")
    (tmp_path / "bad.csv").write_text("confidence\n0.5\n7\n")
    done = sfumato("audit", *arguments, "--quiet")
    assert done.status == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_bad_rows_are_skipped_and_counted(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    (tmp_path / "bad.csv").write_text("confidence\n0.5\n7\n0.7\n")
    done = sfumato("audit", "bad.csv", "--unlabelled", "--on-bad-row", "skip", "--quiet")
    (model,) = _found(tmp_path, done)["models"]
    assert model["expected"]["accuracy"] == pytest.approx(0.6)
    assert "rows were left out (1 confidence outside [0, 1])" in " ".join(done.stdout.split())
