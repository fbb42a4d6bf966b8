"""Tallies: the sums of parts are those of the whole, and say what the rows say."""

from __future__ import annotations

import gc
import math
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.engine.evaluation.audit import audit
from sfumato.engine.evaluation.audit_sample import RowSample, row_numbers
from sfumato.engine.evaluation.audit_sums import TimeSums, gap_of, part_sums
from sfumato.engine.evaluation.audit_tallies import Summed, Tallies, Wanted
from sfumato.engine.evaluation.audit_thresholds import Target
from sfumato.engine.evaluation.audit_workers import Job, jobs_of, tally
from sfumato.engine.runs.prediction_files import Reading, read_any, read_batches
from sfumato.engine.runs.prediction_rows import PredictionFile, PredictionFileError
from sfumato.engine.runs.progress import Bar


def _rows(count: int = 3000, **more: Any) -> PredictionFile:
    generator = torch.Generator().manual_seed(count)
    logits = 2 * torch.randn(count, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    probs = (1.5 * logits).softmax(1)
    groups = ["day" if label % 2 else "night" for label in labels.tolist()]
    times = torch.arange(count).double() ** 1.5
    return PredictionFile("rows", labels, probs=probs, groups=groups, times=times, **more)


def _part(file: PredictionFile, rows: slice) -> PredictionFile:
    assert file.probs is not None
    assert file.groups is not None
    assert file.times is not None
    place = torch.arange(len(file))[rows]
    return PredictionFile(
        "rows",
        file.labels[rows],
        probs=file.probs[rows],
        groups=file.groups[rows],
        times=file.times[rows],
        rows=place,
    )


ALL = Wanted(sample=True, per_class=True, blocks=True)


def _tallies(*files: PredictionFile, wanted: Wanted = ALL) -> Tallies:
    found = Tallies(wanted)
    for file in files:
        found.add(file)
    return found


def test_parts_merge_into_the_whole_in_any_order() -> None:
    file = _rows()
    whole = _tallies(file)
    parts = [_part(file, slice(at, at + 700)) for at in range(0, 3000, 700)]
    merged = Tallies(ALL)
    for part in reversed(parts):
        merged.merge(_tallies(part))
    counts = whole.sums[:-1, 0]
    assert torch.equal(merged.sums[:-1, 0], counts)
    assert torch.allclose(merged.sums, whole.sums, rtol=1e-12)
    assert merged.mistakes == whole.mistakes
    for ours, theirs in ((merged.by_class, whole.by_class), (merged.by_group, whole.by_group)):
        assert ours.parts.keys() == theirs.parts.keys()
        for name in ours.parts:
            assert torch.allclose(ours.parts[name], theirs.parts[name], rtol=1e-12)
    for ours, theirs in zip(merged.sample.parts, whole.sample.parts, strict=True):
        order = [each.sample.parts[1].argsort() for each in (merged, whole)]
        assert torch.equal(ours[order[0]], theirs[order[1]])
    assert merged.class_counts.parts.keys() == whole.class_counts.parts.keys()
    for name, counts in merged.class_counts.parts.items():
        assert torch.equal(counts, whole.class_counts.parts[name])
    assert merged.blocks is not None
    assert whole.blocks is not None
    assert torch.equal(merged.blocks.counts, whole.blocks.counts)
    assert merged.blocks.agrees_with(whole.blocks)
    assert merged.by_time.power == whole.by_time.power
    assert merged.by_time.periods.keys() == whole.by_time.periods.keys()


def test_sums_say_what_the_rows_say() -> None:
    file = _rows()
    target = Target(0.1, escalate_risk=0.3)
    exact = audit([file], resamples=0, target=target)["models"][0]
    summed = audit([Summed("rows", _tallies(file))], resamples=20, target=target)["models"][0]
    for name, value in summed["metrics"].items():
        if not name.endswith("_interval"):
            assert value == pytest.approx(exact["metrics"][name], abs=3e-4), name
    for name in ("accuracy", "ece", "nll", "brier"):
        assert summed["metrics"][name] == pytest.approx(exact["metrics"][name], abs=1e-6)
        low, high = summed["metrics"][f"{name}_interval"]
        assert low < summed["metrics"][name] < high
    assert summed["by_class"] == exact["by_class"]
    for name in ("accept", "escalate"):
        ours, theirs = summed["thresholds"][name], exact["thresholds"][name]
        assert ours["coverage"] == pytest.approx(theirs["coverage"], abs=0.01)
        confident = file.probabilities.amax(1) >= ours["confidence"]
        assert ours["accepted"] <= int(confident.sum())


def test_a_sample_that_holds_all_rows_says_what_the_rows_say() -> None:
    file = _rows(1200)
    target = Target(0.2, per_class=True)
    exact = audit([file], [_rows(1100)], resamples=0, target=target)["models"][0]
    held_out = Summed("held out", _tallies(_rows(1100)))
    summed = audit([Summed("rows", _tallies(file))], [held_out], resamples=0, target=target)
    found = summed["models"][0]
    assert found["thresholds"]["classes"] == exact["thresholds"]["classes"]
    assert found["sets"] == exact["sets"]
    assert found["sampled"] is None
    assert found["scaled"]["temperature"] == exact["scaled"]["temperature"]
    assert found["metrics"].keys() == exact["metrics"].keys()
    for name in ("classwise_ece", "classwise_ace", "nll_calibration", "brier_refinement"):
        assert found["metrics"][name] == pytest.approx(exact["metrics"][name])


def test_a_sample_is_small_and_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.engine.evaluation.audit_sample.ROWS", 400)
    tallies = Tallies(ALL)
    for number in range(3):
        tallies.add(_rows(4000), number)
    sample = tallies.sample.rows("big")
    assert sample is not None
    assert len(sample) == len(set(sample.index.tolist())) == 400  # type: ignore[union-attr]
    shares = torch.bincount(sample.index // 2**40) / 400  # type: ignore[operator]
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.08)
    found = audit([Summed("big", tallies)], resamples=0)["models"][0]
    assert found["sampled"]["rows"] == 400
    assert "nll_calibration" in found["sampled"]["metrics"]


def test_rows_are_known_by_their_index_or_by_their_place() -> None:
    labels, probs = torch.zeros(5, dtype=torch.int64), torch.full((5, 2), 0.5)
    shuffled = torch.tensor([3, 1, 4, 0, 2])
    plain = PredictionFile("plain", labels, probs=probs)
    named = PredictionFile("named", labels, probs=probs, index=shuffled)
    assert torch.equal(row_numbers(named, 7), row_numbers(plain, 0)[shuffled])
    assert not set(row_numbers(plain, 1).tolist()) & set(row_numbers(plain, 0).tolist())
    assert RowSample().rows("none") is None


def test_comparisons_by_blocks_are_those_of_the_rows() -> None:
    first = _rows(3000)
    generator = torch.Generator().manual_seed(1)
    noise = 0.7 * torch.randn(3000, 5, generator=generator)
    second = PredictionFile("other", first.labels, logits=first.probabilities.log() + noise)
    [exact] = audit([first, second], resamples=200)["comparisons"]
    both = [Summed("rows", _tallies(first)), Summed("other", _tallies(second))]
    [found] = audit(both, resamples=200)["comparisons"]
    assert found["samples"] == exact["samples"] == 3000
    assert list(found["metrics"]) == list(exact["metrics"])
    for name, theirs in exact["metrics"].items():
        ours = found["metrics"][name]
        assert ours["difference"] == pytest.approx(theirs["difference"], abs=3e-4), name
        assert ours["high"] - ours["low"] == pytest.approx(theirs["high"] - theirs["low"], rel=0.3)
    moved = PredictionFile("other", first.labels.roll(1), probs=first.probs)
    with pytest.raises(PredictionFileError, match="rows and other can't be compared"):
        audit([both[0], Summed("other", _tallies(moved))], resamples=10)
    plain = Summed("plain", _tallies(first, wanted=Wanted()))
    assert audit([plain, plain], resamples=10)["comparisons"] == []
    with pytest.raises(PredictionFileError, match="plain: temperature scaling needs 'logits'"):
        audit([plain], [plain], resamples=0)


def test_sums_of_images_count_images_as_units() -> None:
    """Ten copies of each prediction in an image leave the interval as wide as one copy does."""
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(400, generator=generator, dtype=torch.float64)
    correct = torch.rand(400, generator=generator) < 0.5
    part = torch.zeros(400, dtype=torch.int64)
    one = gap_of("", part_sums(part, 1, confidence, correct, None)[0])
    assert one["gap"] == pytest.approx(float((confidence - correct.double()).mean()))
    error = float((confidence - correct.double()).std()) / 20
    assert one["interval"][1] - one["gap"] == pytest.approx(1.965927 * error, rel=1e-6)
    ten = part_sums(
        part.repeat_interleave(10),
        1,
        confidence.repeat_interleave(10),
        correct.repeat_interleave(10),
        torch.arange(400).repeat_interleave(10),
    )[0]
    assert gap_of("", ten)["interval"] == pytest.approx(one["interval"])


@pytest.mark.parametrize("times", [[0.0], [5, 5, 5], [-3, 0, 2], [1.7e9, 1.7e9 + 86400 * 365]])
def test_periods_hold_all_times_and_stay_few(times: list[float]) -> None:
    sums = TimeSums()
    for time in [*times, *np.linspace(min(times), max(times), 500).tolist()]:
        one = torch.tensor([time], dtype=torch.float64)
        sums.add(one, torch.tensor([0.5]), torch.tensor([True]))
    assert sum(float(part[0]) for _, part in sums.starts()) == len(times) + 500
    assert len(sums.periods) <= 96
    assert min(start for start, _ in sums.starts()) <= min(times)
    assert len(sums.periods) >= 47 or len(set(times)) == 1
    assert math.isfinite(sums.power)


def test_other_numbers_of_classes_are_refused() -> None:
    two = PredictionFile("two", torch.tensor([0]), probs=torch.tensor([[0.6, 0.4]]))
    with pytest.raises(PredictionFileError, match="have 5 classes, others 2"):
        _tallies(_rows(10)).merge(_tallies(two))


def _parquet(folder: Path, file: PredictionFile) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {f"prob_{k}": file.probabilities[:, k].numpy() for k in range(5)}
    table = arrow.table({**columns, "label": file.labels.numpy(), "group": file.groups})
    parquet.write_table(table, folder / "rows.parquet", row_group_size=500)
    return folder / "rows.parquet"


def test_row_groups_are_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _parquet(tmp_path, _rows())
    monkeypatch.setattr("sfumato.engine.evaluation.audit_workers.ROWS_PER_JOB", 1000)
    jobs = jobs_of([path])
    assert jobs == [Job(path, [0, 1]), Job(path, [2, 3]), Job(path, [4, 5])]
    found = tally(jobs, Reading(), bar=Bar())
    whole = read_any(path)
    assert isinstance(whole, PredictionFile)
    assert found.count == 3000
    assert torch.equal(found.sums[:-1, 0], _tallies(whole).sums[:-1, 0])
    assert found.mistakes == _tallies(whole).mistakes


def test_an_opened_file_leaves_nothing_behind(tmp_path: Path) -> None:
    """A file is opened for each of its jobs, and knows much where it has many row groups."""
    path = _parquet(tmp_path, _rows())
    list(read_batches(path))  # what is imported at the first time
    gc.collect()
    gc.disable()
    try:
        list(read_batches(path, groups=[1, 2]))
        kept = [each for each in gc.get_objects() if type(each).__name__ == "FileMetaData"]
    finally:
        gc.enable()
    assert kept == []


def test_a_killed_worker_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*args: Any) -> None:
        raise BrokenProcessPool("terminated abruptly")

    monkeypatch.setattr(ProcessPoolExecutor, "map", killed)
    jobs = [Job(Path("a.csv")), Job(Path("b.csv"))]
    with pytest.raises(PredictionFileError, match=r"ended from outside.*take fewer workers"):
        tally(jobs, Reading(), workers=2, bar=Bar())


@pytest.mark.slow
def test_processes_and_ray_find_what_one_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _parquet(tmp_path, _rows())
    monkeypatch.setattr("sfumato.engine.evaluation.audit_workers.ROWS_PER_JOB", 1000)
    jobs = jobs_of([path])
    alone = tally(jobs, Reading(), bar=Bar())
    found = [tally(jobs, Reading(), workers=2, bar=Bar())]
    if pytest.importorskip("ray"):
        found.append(tally(jobs, Reading(), ray="local", bar=Bar()))
    for other in found:
        assert torch.equal(other.sums, alone.sums)
        assert other.measure() == alone.measure()
        assert other.mistakes == alone.mistakes
    (tmp_path / "bad.csv").write_text("correct,confidence\n1,7\n")
    bad = [Job(tmp_path / "bad.csv"), Job(path)]
    for more in ({"workers": 2}, {"ray": "local"}):
        with pytest.raises(PredictionFileError, match="row 1: 'confidence' is 7"):
            tally(bad, Reading(), bar=Bar(), **more)  # type: ignore[arg-type]
