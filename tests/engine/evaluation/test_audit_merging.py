"""Several files that are one model: the same numbers in memory and from sums, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.engine.evaluation.audit import audit
from sfumato.engine.evaluation.audit_reading import Plan, plan_reading, read_source
from sfumato.engine.evaluation.audit_sample import row_numbers
from sfumato.engine.evaluation.audit_sources import Source
from sfumato.engine.evaluation.audit_tallies import Summed, Wanted
from sfumato.engine.evaluation.audit_workers import jobs_of
from sfumato.engine.runs.prediction_files import Reading
from sfumato.engine.runs.prediction_rows import AnyPredictions, PredictionFile, PredictionFileError
from sfumato.engine.runs.progress import Bar

CLASSES = np.array(["cat", "dog", "owl"])
HEADS = "true_label,pred_label,confidence\n"


def _rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet([0.5] * 3, count)
    return probs, (probs.cumsum(1) > rng.random((count, 1))).argmax(1)


def _csv(path: Path, seed: int, order: list[int], *, names: bool = True, count: int = 150) -> Path:
    """A part with its columns in this order; labels are names, or places among the columns."""
    probs, labels = _rows(count, seed)
    numbers = np.argsort(order)
    lines = [
        ",".join(
            [CLASSES[label] if names else str(numbers[label]), *(f"{p[i]:.7f}" for i in order)]
        )
        for p, label in zip(probs, labels, strict=True)
    ]
    head = ",".join(["label", *(f"prob_{CLASSES[i]}" for i in order)])
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def _npz(path: Path, seed: int, order: list[int]) -> Path:
    probs, labels = _rows(150, seed)
    np.savez(path, probs=probs[:, order], labels=np.argsort(order)[labels], classes=CLASSES[order])
    return path


def _read(*paths: Path, reading: Reading | None = None) -> tuple[AnyPredictions, Summed]:
    source = Source("model", paths, tuple(map(str, paths)))
    wanted = Wanted(sample=True, blocks=True)
    plans = [Plan(source), Plan(source, tuple(jobs_of(paths)), wanted)]
    whole, sums = (read_source(plan, reading or Reading(), bar=Bar()) for plan in plans)
    assert isinstance(sums, Summed)
    assert not isinstance(whole, Summed)
    return whole, sums


def _judged(model: AnyPredictions | Summed) -> dict[str, Any]:
    found: dict[str, Any] = audit([model], resamples=0)["models"][0]
    return found


@pytest.mark.parametrize("other", ["names.csv", "numbers.csv", "classes.npz"])
def test_classes_in_another_order_are_the_same_classes(tmp_path: Path, other: str) -> None:
    first = _csv(tmp_path / "a.csv", 0, [0, 1, 2])
    plain = _csv(tmp_path / "b.csv", 1, [0, 1, 2])
    turned = tmp_path / other
    if other == "classes.npz":
        _npz(turned, 1, [2, 0, 1])
    else:
        _csv(turned, 1, [2, 0, 1], names=other == "names.csv")
    expected, expected_sums = _read(first, plain)
    found, found_sums = _read(first, turned)
    assert isinstance(expected, PredictionFile)
    assert isinstance(found, PredictionFile)
    assert torch.equal(found.labels, expected.labels)
    assert torch.allclose(found.predictions, expected.predictions, atol=1e-6)
    assert found.classes == ["cat", "dog", "owl"]
    samples = [each.tallies.sample.rows("model") for each in (found_sums, expected_sums)]
    assert samples[0] is not None
    assert samples[1] is not None
    assert torch.equal(samples[0].labels, samples[1].labels)
    assert torch.allclose(samples[0].predictions, samples[1].predictions, atol=1e-6)
    for ours, theirs in ((found, expected), (found_sums, expected_sums)):
        judged = [_judged(each) for each in (ours, theirs)]
        assert judged[0]["metrics"] == pytest.approx(judged[1]["metrics"], abs=1e-4)
        by_class = [{row["name"]: row["count"] for row in each["by_class"]} for each in judged]
        assert by_class[0] == by_class[1]
    if other == "classes.npz":  # whose rows count from 0, and so are others
        return
    assert found_sums.tallies.blocks is not None
    assert expected_sums.tallies.blocks is not None
    assert found_sums.tallies.blocks.agrees_with(expected_sums.tallies.blocks)


def _refused(first: Path, second: Path, message: str, reading: Reading | None = None) -> None:
    source = Source("model", (first, second), ("model",))
    for jobs in ((), tuple(jobs_of(source.paths))):
        with pytest.raises(PredictionFileError, match=message):
            read_source(Plan(source, jobs), reading or Reading(), bar=Bar())


def test_other_classes_are_refused(tmp_path: Path) -> None:
    first = _csv(tmp_path / "a.csv", 0, [0, 1, 2])
    other = tmp_path / "b.csv"
    other.write_text(first.read_text().replace("owl", "cow"))
    _refused(first, other, "b.csv: has the classes cat, dog, cow where a has cat, dog, owl")
    probs, labels = _rows(50, 1)
    np.savez(tmp_path / "c.npz", probs=probs, labels=labels)
    _refused(first, tmp_path / "c.npz", "has the classes without names where a has cat")
    _refused(tmp_path / "c.npz", first, "has the classes cat, dog, owl where c has without names")
    turned = _csv(tmp_path / "d.csv", 1, [2, 0, 1], names=False)
    numbered = _csv(tmp_path / "e.csv", 0, [0, 1, 2], names=False)
    own = Reading(classes=("x", "y", "z"))
    _refused(numbered, turned, r"another order than e.*leave those out", own)
    told, _ = _read(tmp_path / "c.npz", first, reading=Reading(classes=tuple(CLASSES)))
    assert told.classes == ["cat", "dog", "owl"]


@pytest.mark.parametrize(
    ("column", "value"), [("group", "a"), ("time", "1"), ("index", "1"), ("image", "a")]
)
def test_a_column_of_one_part_only_is_refused(tmp_path: Path, column: str, value: str) -> None:
    with_it, without = tmp_path / "a.csv", tmp_path / "b.csv"
    with_it.write_text(f"correct,confidence,{column}\n1,0.9,{value}\n")
    without.write_text("correct,confidence\n1,0.9\n")
    _refused(with_it, without, f"b.csv: has no '{column}', which a has: parts of one model")
    _refused(without, with_it, f"a.csv: has '{column}', which b has not: parts of one model")


def test_parts_of_another_kind_are_refused(tmp_path: Path) -> None:
    probs, labels = _rows(50, 1)
    np.savez(tmp_path / "a.npz", probs=probs, labels=labels)
    np.savez(tmp_path / "b.npz", logits=np.log(probs), labels=labels)
    _refused(tmp_path / "a.npz", tmp_path / "b.npz", "holds logits where a holds probs")


def test_a_mistake_is_looked_up_in_its_own_file(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"part-{number}.csv" for number in range(3))
    first.write_text(HEADS + "cat,cat,0.9\ndog,dog,0.8\n")
    second.write_text(HEADS + "cat,cat,0.7\ncat,dog,0.99\n")
    third.write_text(HEADS + "owl,dog,0.98\n")
    for model in _read(first, second, third):
        found = [(each["file"], each["row"]) for each in _judged(model)["mistakes"]]
        assert found == [("part-1", 2), ("part-2", 1)]


def test_label_maps_of_several_files_are_other_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a.npz", "b.npz"):
        probs = rng.dirichlet([1] * 3, (4, 5, 5)).transpose(0, 3, 1, 2)
        np.savez(tmp_path / name, probs=probs, labels=rng.integers(0, 3, (4, 5, 5)))
    whole, sums = _read(tmp_path / "a.npz", tmp_path / "b.npz")
    assert len(row_numbers(whole, 0).unique()) == 8
    assert sums.tallies.images.size == 8
    assert _judged(whole)["images"] == _judged(sums)["images"]


def test_ignored_rows_are_no_rows_anywhere(tmp_path: Path) -> None:
    probs, labels = _rows(400, 0)
    kept = labels.copy()
    labels[:10] = 255
    np.savez(tmp_path / "a.npz", probs=probs, labels=labels)
    np.savez(tmp_path / "b.npz", probs=probs[10:], labels=kept[10:])
    reading = Reading(ignore_index=255)
    for ours, theirs in zip(
        _read(tmp_path / "a.npz", reading=reading), _read(tmp_path / "b.npz"), strict=True
    ):
        judged, expected = _judged(ours), _judged(theirs)
        assert judged["samples"] == 390
        assert judged["skipped"] == {"with the label of --ignore-index": 10}
        assert judged["metrics"] == pytest.approx(expected["metrics"], nan_ok=True)
        assert judged["sets"]["rows"] is not None
    (plan,) = plan_reading([Source("a", (tmp_path / "a.npz",), ("a",))])
    both = [read_source(plan, reading, bar=Bar()) for _ in range(2)]
    assert "scaled" in audit(both[:1], both[1:], resamples=0)["models"][0]
