"""Totals: the sums of parts are those of the whole, of rows and of counts."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato._core.text import Bar
from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import (
    ConfidenceFile,
    PredictionFile,
    Reading,
    read_any,
    read_batches,
)
from sfumato.auditing.judge import Target, audit
from sfumato.auditing.totals import (
    Batch,
    By,
    Model,
    RowSample,
    Tallies,
    TimeSums,
    Wanted,
    gap_of,
    gaps_of,
    part_sums,
)
from sfumato.auditing.workers import Job, jobs_of, read_histogram, tally
from sfumato.metrics import calibration_error


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


def _timed(times: torch.Tensor, correct: torch.Tensor, *, is_dated: bool = False) -> Batch:
    confidence = torch.full((len(times),), 0.5)
    return Batch(ConfidenceFile("timed", confidence, correct, times=times, is_dated=is_dated))


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
    summed = audit([Model("rows", _tallies(file))], resamples=20, target=target)["models"][0]
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
        assert ours == theirs
        confident = file.probabilities.amax(1) >= ours["confidence"]
        assert ours["accepted"] <= int(confident.sum())


def test_a_sample_that_holds_all_rows_says_what_the_rows_say() -> None:
    file = _rows(1200)
    target = Target(0.2, per_class=True)
    exact = audit([file], [_rows(1100)], resamples=0, target=target)["models"][0]
    held_out = Model("held out", _tallies(_rows(1100)))
    summed = audit([Model("rows", _tallies(file))], [held_out], resamples=0, target=target)
    found = summed["models"][0]
    assert found["thresholds"]["classes"] == exact["thresholds"]["classes"]
    assert found["sets"] == exact["sets"]
    assert found["sampled"] is None
    assert found["scaled"]["temperature"] == exact["scaled"]["temperature"]
    assert found["metrics"].keys() == exact["metrics"].keys()
    for name in ("classwise_ece", "classwise_ace", "nll_calibration", "brier_refinement"):
        assert found["metrics"][name] == pytest.approx(exact["metrics"][name])


def test_a_sample_is_small_and_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.auditing.totals.ROWS", 400)
    tallies = Tallies(ALL)
    for number in range(3):
        tallies.add(_rows(4000), number)
    sample = tallies.sample.rows("big")
    assert sample is not None
    assert len(sample) == len(set(sample.index.tolist())) == 400  # type: ignore[union-attr]
    shares = torch.bincount(sample.index // 2**40) / 400  # type: ignore[operator]
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.08)
    found = audit([Model("big", tallies)], resamples=0)["models"][0]
    assert found["sampled"]["rows"] == 400
    assert "nll_calibration" in found["sampled"]["metrics"]


def test_rows_are_known_by_their_index_or_by_their_place() -> None:
    labels, probs = torch.zeros(5, dtype=torch.int64), torch.full((5, 2), 0.5)
    shuffled = torch.tensor([3, 1, 4, 0, 2])
    plain = PredictionFile("plain", labels, probs=probs)
    named = PredictionFile("named", labels, probs=probs, index=shuffled)
    assert torch.equal(Batch(named, 7).numbers, Batch(plain).numbers[shuffled])
    assert not set(Batch(plain, 1).numbers.tolist()) & set(Batch(plain).numbers.tolist())
    assert RowSample().rows("none") is None


def test_comparisons_by_blocks_are_those_of_the_rows() -> None:
    first = _rows(3000)
    generator = torch.Generator().manual_seed(1)
    noise = 0.7 * torch.randn(3000, 5, generator=generator)
    second = PredictionFile("other", first.labels, logits=first.probabilities.log() + noise)
    [exact] = audit([first, second], resamples=200)["comparisons"]
    both = [Model("rows", _tallies(first)), Model("other", _tallies(second))]
    [found] = audit(both, resamples=200)["comparisons"]
    assert found["samples"] == exact["samples"] == 3000
    assert list(found["metrics"]) == list(exact["metrics"])
    for name, theirs in exact["metrics"].items():
        ours = found["metrics"][name]
        assert ours["difference"] == pytest.approx(theirs["difference"], abs=3e-4), name
        assert ours["high"] - ours["low"] == pytest.approx(theirs["high"] - theirs["low"], rel=0.3)
    moved = PredictionFile("other", first.labels.roll(1), probs=first.probs)
    with pytest.raises(PredictionFileError, match="rows and other can't be compared"):
        audit([both[0], Model("other", _tallies(moved))], resamples=10)
    plain = Model("plain", _tallies(first, wanted=Wanted()))
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
        sums.add(_timed(torch.tensor([time], dtype=torch.float64), torch.tensor([True])))
    assert sum(float(each.sums[0]) for each in sums.named()) == len(times) + 500
    assert len(sums.periods) <= 96
    assert sums.named()[0].start == min(times)
    assert len(sums.periods) >= 47 or len(set(times)) == 1
    assert math.isfinite(sums.power)


@pytest.mark.parametrize(
    ("span", "unit", "names"),
    [
        ("40s", "second", ["2026-01-31 11:07:03", "2026-01-31 11:07:04"]),
        ("30m", "minute", ["2026-01-31 11:07", "2026-01-31 11:08"]),
        ("300m", "10 minutes", ["2026-01-31 11:07", "2026-01-31 11:10"]),
        ("30h", "hour", ["2026-01-31 11:07", "2026-01-31 12:00"]),
        ("5D", "6 hours", ["2026-01-31 11:07", "2026-01-31 12:00"]),
        ("40D", "day", ["2026-01-31", "2026-02-01"]),
        ("200D", "week", ["2026-01-31", "2026-02-02", "2026-02-09"]),
        ("1000D", "month", ["2026-01", "2026-02"]),
        ("9000D", "year", ["2026", "2027"]),
    ],
)
def test_dates_fall_into_the_calendar(span: str, unit: str, names: list[str]) -> None:
    first = np.datetime64("2026-01-31T11:07:03")
    steps = np.linspace(0, np.timedelta64(span[:-1], span[-1]).astype("m8[s]").astype(int), 3000)
    times = torch.from_numpy(first.astype("M8[s]").astype(np.float64) + steps)
    whole, parts = TimeSums(), [TimeSums() for _ in range(3)]
    right = torch.arange(3000) % 3 > 0
    whole.add(_timed(times, right, is_dated=True))
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    for part, chosen in zip(parts, order.split([1, 10, 2989]), strict=True):
        part.add(_timed(times[chosen], right[chosen], is_dated=True))
    for part in parts[1:]:
        parts[0].merge(part)
    found, merged = whole.named(), parts[0].named()
    assert whole.unit == parts[0].unit == unit
    assert [each.name for each in found[: len(names)]] == names
    assert (found[0].start, found[-1].end) == ("2026-01-31T11:07:03Z", f"{first + int(steps[-1])}Z")
    assert [each[:3] for each in found] == [each[:3] for each in merged]
    assert torch.equal(*(torch.stack([each.sums[0] for each in of]) for of in (found, merged)))
    assert float(sum(each.sums[0] for each in found)) == 3000
    assert 4 <= len(found) <= 62


@pytest.mark.parametrize("span", [3600, 30 * 3600, 40 * 86400, 2000 * 86400])
@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("day", ["2026-01-31", "2026-02-01"]),
        ("week", ["2026-01-31", "2026-02-02"]),
        ("month", ["2026-01", "2026-02"]),
    ],
)
def test_periods_that_were_asked_for(span: int, by: By, names: list[str]) -> None:
    first = np.datetime64("2026-01-31T22:59:59").astype(np.float64)
    times = torch.from_numpy(first + np.linspace(0, span, 3000))
    sums = TimeSums()
    sums.add(_timed(times, torch.arange(3000) % 3 > 0, is_dated=True))
    sums.by = by
    found = sums.named()
    count = {"day": -(-(span + 82799) // 86400), "week": 0, "month": 0}[by]
    assert sums.unit == by
    assert [each.name for each in found][:2] == names[: len(found)]
    assert found[0].start == "2026-01-31T22:59:59Z"
    assert len(found) == count or by != "day"
    assert float(sum(each.sums[0] for each in found)) == 3000


def test_numbers_have_no_days() -> None:
    sums = TimeSums()
    sums.add(_timed(torch.tensor([1.0, 2.0]), torch.tensor([True, False])))
    sums.by = "day"
    with pytest.raises(PredictionFileError, match="periods of a day need a column time of dates"):
        sums.named()


def test_dates_and_numbers_are_not_mixed() -> None:
    dated, numbered = TimeSums(), TimeSums()
    one = (torch.tensor([5.0], dtype=torch.float64), torch.tensor([True]))
    dated.add(_timed(*one, is_dated=True))
    numbered.add(_timed(*one))
    with pytest.raises(PredictionFileError, match="some predictions have dates, others numbers"):
        dated.merge(numbered)


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
    monkeypatch.setattr("sfumato.auditing.workers.ROWS_PER_JOB", 1000)
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
    monkeypatch.setattr("sfumato.auditing.workers.ROWS_PER_JOB", 1000)
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


def test_a_class_of_three_predictions_does_not_come_first() -> None:
    part = torch.tensor([0] * 3 + [1] * 2000)
    correct = torch.tensor([False, True, True] + [True, False] * 1000)
    confidence = torch.full((2003,), 0.2).index_fill(0, torch.arange(3, 2003), 0.6)
    few, many = part_sums(part, 2, confidence, correct, None)
    found = gaps_of({"few": few, "many": many})
    assert [row["name"] for row in found] == ["many", "few"]
    assert abs(found[1]["gap"]) > abs(found[0]["gap"])


def _counted(images: int = 8, bins: int = 30) -> tuple[dict[str, np.ndarray], float]:
    """A histogram of each image, and the calibration error of their pixels."""
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(images, 500, generator=generator, dtype=torch.float64)
    right = torch.rand(images, 500, generator=generator) < confidence**2
    place = (confidence * bins).long().clamp(max=bins - 1) + bins * torch.arange(images)[:, None]
    sums = {
        name: np.bincount(place.flatten(), weights=weights.flatten(), minlength=images * bins)
        for name, weights in (
            ("counts", torch.ones_like(confidence)),
            ("correct", right.double()),
            ("confidence", confidence),
        )
    }
    probs = torch.stack([confidence, 1 - confidence], 2).view(-1, 2)
    error = calibration_error(probs, (~right).long().flatten())
    return {name: each.reshape(images, bins) for name, each in sums.items()}, float(error)


def test_a_file_of_histograms(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    arrays, error = _counted()
    np.savez(tmp_path / "a.npz", **arrays)
    done = sfumato("audit", "a.npz", "--resamples", "5", "--target-risk", "0.3", "--quiet")
    assert done.status == 0, done.stderr
    model = json.loads((tmp_path / "audit" / "audit.json").read_text())["models"][0]
    assert model["samples"] == 4000
    assert model["metrics"]["ece"] == pytest.approx(error, abs=1e-9)
    assert "nll" not in model["metrics"]
    excess = (arrays["confidence"] - arrays["correct"]).sum(1) / 500
    assert model["gap"]["gap"] == pytest.approx(excess.mean())
    confidence = arrays["confidence"]  # the least variance is that of true confidences
    expected = (confidence - confidence**2 / np.maximum(arrays["counts"], 1)).sum()
    variance = max(excess.var(ddof=1) / 8, expected * 8 / 7 / 4000**2)
    width = 2.364624 * np.sqrt(variance)
    assert model["gap"]["interval"][1] == pytest.approx(excess.mean() + width)


def test_a_segmentation_run(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    bins = {"counts": [10, 0, 30], "confidence": [0.2, None, 0.9], "accuracy": [0.1, None, 0.8]}
    folder = tmp_path / "25403a2604ab"
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps({"test": {"reliability": bins}}))
    done = sfumato("audit", "25403a2604ab", "--resamples", "0", "--quiet")
    assert done.status == 0, done.stderr
    model = json.loads((tmp_path / "audit" / "audit.json").read_text())["models"][0]
    assert model["metrics"]["accuracy"] == pytest.approx(25 / 40)
    assert model["metrics"]["ece"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correct": np.ones(3)}, "of one shape"),
        ({"correct": np.array([9.0, 0.0])}, "row 0, bin 0: 'correct' must not exceed"),
        ({"counts": np.zeros(2), "correct": np.zeros(2), "confidence": np.zeros(2)}, "holds no"),
    ],
)
def test_wrong_histograms(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {"counts": [2.0, 2.0], "correct": [1.0, 1.0], "confidence": [1.0, 1.5]}
    np.savez(tmp_path / "a.npz", **{**arrays, **change})
    with pytest.raises(PredictionFileError, match=message):
        read_histogram(tmp_path / "a.npz")


def test_other_files_are_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", confidence=[0.5], correct=[1])
    (tmp_path / "b.npz").write_bytes(b"no zip")
    for path in (tmp_path / "a.npz", tmp_path / "b.npz", tmp_path):
        assert read_histogram(path) is None
