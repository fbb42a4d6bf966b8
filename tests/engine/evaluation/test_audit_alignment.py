"""Two files on the same samples: which rows belong together, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.engine.evaluation.audit_alignment import shared_samples
from sfumato.engine.evaluation.audit_comparisons import compare_files, compare_with_first
from sfumato.engine.evaluation.audit_tallies import Summed, Tallies, Wanted
from sfumato.engine.runs.prediction_rows import (
    AnyPredictions,
    ConfidenceFile,
    PredictionFile,
    PredictionFileError,
)
from sfumato.engine.runs.progress import Bar
from sfumato.metrics import compare_predictions

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
        summed.append(Summed(file.name, tallies))
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


def test_classes_in_another_order_are_the_same_classes() -> None:
    first = _file(classes=NAMES)
    second = _in_other_order(_file(seed=1, classes=NAMES))
    [found] = compare_files([first, second], resamples=20)
    assert first.probs is not None
    expected = compare_predictions(
        first.labels,
        probs=(first.probs, _file(seed=1).probabilities),
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
    with pytest.raises(PredictionFileError, match="0 holds label maps, the other confidences"):
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
