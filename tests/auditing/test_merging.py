"""Several files: those that are one model, in memory and from sums, and two on the same samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

import sfumato
from sfumato._core.text import Bar
from sfumato.auditing import workers
from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.compare import compare_files, compare_with_first, shared_samples
from sfumato.auditing.files import (
    AnyPredictions,
    ConfidenceFile,
    PredictionFile,
    Reading,
    read_predictions,
)
from sfumato.auditing.judge import audit
from sfumato.auditing.totals import Batch, Model, Tallies, Wanted
from sfumato.auditing.workers import Plan, Source, find_sources, jobs_of, plan_reading, read_source
from sfumato.metrics import compare_predictions

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


def _read(*paths: Path, reading: Reading | None = None) -> tuple[AnyPredictions, Model]:
    source = Source("model", paths, tuple(map(str, paths)))
    wanted = Wanted(sample=True, blocks=True)
    plans = [Plan(source), Plan(source, tuple(jobs_of(paths)), wanted)]
    whole, sums = (read_source(plan, reading or Reading(), bar=Bar()) for plan in plans)
    assert isinstance(sums, Model)
    assert not isinstance(whole, Model)
    return whole, sums


def _judged(model: AnyPredictions | Model) -> dict[str, Any]:
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
    assert len(Batch(whole).numbers.unique()) == 8
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


NAMES = ["cat", "dog", "owl"]


def _file(name: str = "first", count: int = 300, seed: int = 0, **more: Any) -> PredictionFile:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(count, 3, generator=generator, dtype=torch.float64).softmax(1)
    labels = torch.arange(count) % 3
    return PredictionFile(name, labels, probs=probs, **more)


def _confidences(file: PredictionFile, truth: list[str]) -> ConfidenceFile:
    confidence, predicted = file.probabilities.max(1)
    return ConfidenceFile("second", confidence, predicted == file.labels, truth=truth)


def _in_other_order(file: PredictionFile) -> PredictionFile:
    """The same predictions with the columns owl, cat, dog."""
    assert file.probs is not None
    order = torch.tensor([2, 0, 1])
    return PredictionFile(
        "second",
        order.argsort()[file.labels],
        probs=file.probs[:, order],
        classes=[NAMES[place] for place in order],
    )


def _by_blocks(first: AnyPredictions, second: AnyPredictions) -> dict[str, Any] | None:
    summed = []
    for file in (first, second):
        tallies = Tallies(Wanted(blocks=True))
        tallies.add(file)
        summed.append(Model(file.name, tallies))
    return compare_with_first(summed[0], summed[1], 20, torch.Generator(), Bar())


def test_an_index_in_one_file_only_says_nothing_of_the_other() -> None:
    numbered = _file(index=torch.arange(300))
    ours, theirs = shared_samples(numbered, _file("second", seed=1))
    assert torch.equal(ours, theirs)
    for count in (200, 600):  # the first 300 labels of the longer one agree
        with pytest.raises(PredictionFileError, match=rf"they hold 300 and {count} samples, and"):
            shared_samples(numbered, _file("second", count))


def test_samples_are_matched_by_their_index() -> None:
    second = _file("second", index=torch.arange(300))
    chosen = torch.tensor([7, 3, 200])
    first = PredictionFile(
        "first", second.labels[chosen], probs=second.probabilities[chosen], index=chosen
    )
    ours, theirs = shared_samples(first, second)
    assert chosen[ours].tolist() == theirs.tolist() == [3, 7, 200]
    away = _file("away", index=torch.arange(300) + 1000)
    with pytest.raises(PredictionFileError, match="no 'index' is in both"):
        shared_samples(first, away)


def test_an_index_that_is_there_twice_is_refused() -> None:
    with pytest.raises(PredictionFileError, match="second: 'index' 0 is there 2 times"):
        shared_samples(
            _file(index=torch.arange(300)), _file("second", index=torch.arange(300) // 2)
        )


def test_other_rows_that_were_left_out_are_seen() -> None:
    rows = torch.arange(301)
    first, second = (_file(name, rows=rows[rows != bad]) for name, bad in (("a", 3), ("b", 6)))
    with pytest.raises(PredictionFileError, match="other rows were left out of each"):
        shared_samples(first, second)
    joined = _file("parts", rows=torch.arange(300) % 150)
    shared_samples(first, joined)


def test_two_files_may_order_their_classes_differently() -> None:
    first = _file(classes=NAMES)
    second = _in_other_order(_file(seed=1, classes=NAMES))
    [found] = compare_files([first, second], resamples=20)
    assert first.probs is not None
    expected = compare_predictions(
        probs=(first.probs, _file(seed=1).probabilities),
        target=first.labels,
        resamples=20,
        generator=torch.Generator().manual_seed(0),
    )
    assert found["metrics"]["nll"] == pytest.approx(expected["nll"]._asdict())
    assert found["metrics"]["classwise_ece"] == pytest.approx(expected["classwise_ece"]._asdict())
    summed = _by_blocks(first, second)
    assert summed is not None
    assert summed["metrics"]["accuracy"]["difference"] == pytest.approx(
        found["metrics"]["accuracy"]["difference"]
    )
    renumbered = PredictionFile("x", first.labels, probs=first.probs, classes=NAMES[::-1])
    for compare in (shared_samples, _by_blocks):  # the same numbers of other classes
        with pytest.raises(PredictionFileError, match="their labels differ"):
            compare(first, renumbered)
    unnamed = PredictionFile("x", first.labels, probs=first.probs, classes=["0", "1", "2"])
    for compare in (shared_samples, _by_blocks):
        compare(first, unnamed)


@pytest.mark.parametrize("is_named", [True, False])
def test_confidences_name_their_labels_or_number_them(is_named: bool) -> None:
    first = _file(classes=NAMES)
    truth = [NAMES[label] if is_named else str(label) for label in first.labels.tolist()]
    second = _confidences(_file(seed=1), truth)
    for pair in ((first, second), (second, first)):
        shared_samples(*pair)
        assert _by_blocks(*pair) is not None
    wrong = _confidences(_file(seed=1), truth[1:] + truth[:1])
    for compare in (shared_samples, _by_blocks):
        with pytest.raises(PredictionFileError, match="their labels differ"):
            compare(first, wrong)


def test_void_pixels_count_for_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(2, 6, 3, 8, 8, generator=generator).softmax(2)
    labels = probs[0].argmax(1)
    labels[:, :2] = 255
    files = [PredictionFile(str(i), labels, probs=probs[i], void=255) for i in range(2)]
    [found] = compare_files(files, resamples=20)
    right = (probs[1].argmax(1) == labels)[labels != 255].double().mean()
    assert found["metrics"]["accuracy"]["second"] == pytest.approx(float(right))
    maps = files[0]
    several = ConfidenceFile("c", torch.full((6,), 0.5), torch.ones(6, dtype=torch.bool))
    with pytest.raises(PredictionFileError, match="0 holds dense predictions, the other"):
        compare_files([maps, several], resamples=20)


def test_one_image_has_no_interval_to_compare_by() -> None:
    file = ConfidenceFile(
        "a", torch.full((9,), 0.5), torch.ones(9, dtype=torch.bool), images=["one"] * 9
    )
    with pytest.raises(PredictionFileError, match="they share one image"):
        compare_files([file, file], resamples=20)


def test_compare_reads_as_audit_does(tmp_path: Any, sfumato: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(60, 3)))
    np.save(tmp_path / "labels.npy", labels)
    settings = ("--resamples", "10", "--quiet")
    done = sfumato("compare", "a.npy", "b.npy", *settings)
    assert "an .npy takes its labels from --labels" in done.stderr
    given = ("--labels", "labels.npy", "--kind", "logits")
    done = sfumato("compare", "a.npy", "b.npy", *given, *settings)
    assert done.status == 0, done.stderr
    maps = rng.dirichlet([1, 1, 1], (4, 5, 5)).transpose(0, 3, 1, 2)
    void = maps.argmax(1)
    void[:, 0] = 255
    np.savez(tmp_path / "m.npz", probs=maps, labels=void)
    done = sfumato("compare", "m.npz", "m.npz", *settings)
    assert "--ignore-index" in done.stderr
    done = sfumato("compare", "m.npz", "m.npz", "--ignore-index", "255", *settings)
    assert done.status == 0, done.stderr
    texts = np.array(NAMES)[labels]
    np.savez(tmp_path / "t.npz", probs=rng.dirichlet([1, 1, 1], 60), labels=texts)
    done = sfumato("compare", "t.npz", "t.npz", "--classes", "cat,dog,owl", *settings)
    assert done.status == 0, done.stderr
    done = sfumato("compare", "t.npz", "t.npz", "--split", "test", *settings)
    assert done.status == 2
    assert "--split test: names stored predictions of a run" in done.stderr


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
    monkeypatch.setattr("sfumato.auditing.workers.LARGEST_IN_MEMORY", source.bytes() - 1)
    assert plan_reading([source])[0].jobs
    path.write_text("")
    assert workers.find_sources([str(path)])[0].bytes() == 0


def test_a_mapping_of_columns_without_quotes_is_no_file() -> None:
    with pytest.raises(PredictionFileError, match="quote all that belongs to --columns"):
        find_sources(["a.csv", "probs=cat,dog"])


@pytest.mark.parametrize("suffix", ["npy", "pt"])
def test_labels_in_a_file_of_their_own(tmp_path: Path, suffix: str) -> None:
    probs, labels = torch.eye(3).repeat(4, 1) * 0.7 + 0.1, torch.arange(12) % 3
    files = [tmp_path / f"{name}.{suffix}" for name in ("probs", "labels")]
    for file, values in zip(files, (probs, labels), strict=True):
        torch.save(values, file) if suffix == "pt" else np.save(file, values.numpy())
    found = read_predictions(files[0], Reading(labels=files[1]))
    assert torch.equal(found.labels, labels)
    assert sfumato.audit(files[0], label=files[1], resamples=0).metrics["accuracy"] == 1
    (tmp_path / "labels.csv").touch()
    with pytest.raises(PredictionFileError, match=r"one array of class numbers in \.npy or \.pt"):
        read_predictions(files[0], Reading(labels=tmp_path / "labels.csv"))


def test_a_saved_network_is_refused_without_advice_to_run_it(tmp_path: Path) -> None:
    torch.save({"probs": torch.nn.Linear(2, 2)}, tmp_path / "model.pt")
    with pytest.raises(PredictionFileError, match="more than tensors, numbers and text") as caught:
        read_predictions(tmp_path / "model.pt")
    assert "weights_only" not in str(caught.value)
