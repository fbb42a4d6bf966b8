"""Verdicts of audits: on known truths, after scaling, with thresholds, without labels."""

from __future__ import annotations

import io
import json
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
import torch
from pyarrow import parquet
from rich.console import Console

from sfumato._core.statistics import bin_index
from sfumato.auditing.columns import PredictionFileError
from sfumato.auditing.files import ConfidenceFile, PredictionFile
from sfumato.auditing.judge import Target, audit, honest_draws, sets_of, verdict_of
from sfumato.auditing.page import audit_view, scaling_sentence, sentences, warnings_of
from sfumato.auditing.totals import Model, Tallies, tallies_of_histogram, whole_sums
from sfumato.metrics.groups import Samples, group_by_value
from sfumato.predictions import expected_accuracy


def _file(
    factor: float, *, seed: int = 0, name: str = "model", count: int = 2000, **extra: Any
) -> PredictionFile:
    """Predictions that are `factor` times too sure of labels drawn from their own distribution."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, 4, generator=generator) * 1.5
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return PredictionFile(name=name, labels=labels, logits=logits * factor, **extra)


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(3.0, "overconfident"), (0.3, "underconfident"), (1.0, "no miscalibration found")],
)
def test_verdict(factor: float, verdict: str) -> None:
    found = audit([_file(factor)], resamples=50)["models"][0]
    assert found["verdict"] == verdict
    low, high = found["gap"]["interval"]
    metrics = found["metrics"]
    assert found["gap"]["gap"] == pytest.approx(
        metrics["average_confidence"] - metrics["accuracy"], abs=1e-6
    )
    assert low < found["gap"]["gap"] < high


def test_errors_that_cancel_are_seen() -> None:
    """Half the predictions say 0.9 and are right in 0.6, half say 0.6 and are right in 0.9."""
    sure = torch.tensor([0.9] * 1000 + [0.6] * 1000)
    right = torch.cat([torch.arange(1000) < 600, torch.arange(1000) < 900])
    probs = torch.stack([sure, 1 - sure], 1)
    file = PredictionFile("cancels", labels=(~right).long(), probs=probs)
    found = audit([file], resamples=20)["models"][0]
    assert found["gap"]["gap"] == pytest.approx(0.0, abs=1e-6)
    assert found["verdict"] == "right on average, wrong in places"
    assert found["metrics"]["ece"] == pytest.approx(0.3, abs=1e-6)


def test_breakdown_finds_the_bad_group() -> None:
    good, bad = _file(1.0), _file(4.0)
    file = PredictionFile(
        name="both",
        labels=torch.cat([good.labels, bad.labels]),
        logits=torch.cat([good.predictions, bad.predictions]),
        groups=["day"] * 2000 + ["night"] * 2000,
        classes=["a", "b", "c", "d"],
    )
    found = audit([file], resamples=20)["models"][0]
    assert [(r["name"], r["direction"]) for r in found["by_group"]] == [
        ("night", "overconfident"),
        ("day", "inconclusive"),
    ]
    assert {row["name"] for row in found["by_class"]} == {"a", "b", "c", "d"}
    assert sum(row["count"] for row in found["by_class"]) == 4000


def test_comparison_aligns_by_index_and_scaling_helps() -> None:
    first = _file(3.0, name="old", index=torch.arange(2000))
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    plain = _file(1.0)
    second = PredictionFile(
        "new", labels=plain.labels[order], logits=plain.predictions[order], index=order
    )
    found = audit([first, second], [first, second], resamples=100)
    ece = found["comparisons"][0]["metrics"]["ece"]
    assert ece["high"] < 0
    assert found["comparisons"][0]["metrics"]["accuracy"]["difference"] == pytest.approx(0)
    scaled = found["models"][0]["scaled"]
    assert scaled["temperature"] == pytest.approx(3.0, rel=0.1)
    assert scaled["metrics"]["ece"] < 0.3 * found["models"][0]["metrics"]["ece"]


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(PredictionFileError, match="they hold 2,000 and 100 samples"):
        audit([_file(1.0), _file(1.0, count=100)], resamples=10)
    with pytest.raises(PredictionFileError, match="1 validation files for 2"):
        audit([_file(1.0), _file(2.0)], [_file(1.0)], resamples=10)
    bad = PredictionFile("bad", labels=torch.tensor([0, 1]), probs=torch.tensor([[0.6, 0.6]] * 2))
    with pytest.raises(PredictionFileError, match="bad: "):
        audit([bad], resamples=10)


def test_one_image_has_no_verdict() -> None:
    sure, wrong = torch.full((50,), 0.99), torch.zeros(50, dtype=torch.bool)
    detections = ConfidenceFile("boxes", sure, wrong, images=["a"] * 50)
    probs = torch.tensor([0.99, 0.01]).view(1, 2, 1, 1).expand(1, 2, 8, 8)
    map_ = PredictionFile("map", torch.ones(1, 8, 8, dtype=torch.int64), probs=probs)
    summed = Tallies()
    summed.add(map_)
    for file in (detections, map_, Model("sums", summed)):
        found = audit([file], resamples=20)
        assert found["models"][0]["verdict"] == "inconclusive"
        [line, *_] = sentences(found)
        assert "all of one image, which has no interval" in line
        assert "nan" not in line
    counts = [torch.tensor([[0.0, 50.0]]), torch.zeros(1, 2), torch.tensor([[0.0, 49.5]])]
    counted = Model("bins", tallies_of_histogram("bins", *(each.double() for each in counts)))
    assert "a histogram without images has no interval" in sentences(audit([counted]))[0]


def test_maps_without_a_labelled_pixel_hold_no_prediction() -> None:
    labels = torch.full((2, 4, 4), 255)
    file = PredictionFile("void", labels, probs=torch.full((2, 2, 4, 4), 0.5), void=255)
    summed = Tallies()
    summed.add(file)
    for each in (file, Model("void", summed)):
        with pytest.raises(PredictionFileError, match="void: holds no prediction that counts"):
            audit([each], resamples=20)


def test_where_most_of_the_error_is_is_not_called_the_worst() -> None:
    """900 say 0.95 and are 0.03 off, 100 say 0.55 and are 0.15 off."""
    sure = torch.tensor([0.95] * 900 + [0.55] * 100)
    right = torch.cat([torch.arange(900) < 828, torch.arange(100) < 40])
    file = PredictionFile("m", (~right).long(), probs=torch.stack([sure, 1 - sure], 1))
    [line] = sentences(audit([file], resamples=0))
    assert line.endswith("The largest part of it is where it says 93 to 100 %: +3.0 points.")


def test_sets_cover_each_class_with_an_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(800, 3, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    found = sets_of(PredictionFile("a", labels, logits=logits, classes=["x", "y", "z"]))
    assert found is not None
    plain, per_class = found["by_class"]
    assert (plain["name"], per_class["name"]) == ("THR", "THR per class")
    assert plain["classes"] == ["x", "y", "z"]
    for kind, row in ((plain, found["rows"][0]), (per_class, found["rows"][1])):
        assert min(kind["coverage"]) == pytest.approx(row["worst_class"], abs=1e-4)
        for low, value, high in zip(kind["low"], kind["coverage"], kind["high"], strict=True):
            assert low < value < high


def test_honest_sets_by_cells_are_those_drawn_one_by_one() -> None:
    """How often a model of true confidences shows this ECE: cells against every prediction."""
    generator = torch.Generator().manual_seed(0)
    confidence = 0.3 + 0.7 * torch.rand(4000, generator=generator, dtype=torch.float64)
    bins = bin_index(confidence, 15)
    errors = []
    for _ in range(2000):
        right = torch.rand(4000, generator=generator, dtype=torch.float64) < confidence
        gaps = torch.zeros(15, dtype=torch.float64)
        gaps.index_add_(0, bins, confidence - right.double())
        errors.append(float(gaps.abs().sum() / 4000))
    for quantile in (0.1, 0.5, 0.9):
        error = float(np.quantile(errors, quantile))
        samples = Samples(confidence, torch.zeros(4000, dtype=torch.bool), confidence)
        share = honest_draws(group_by_value(samples), generator, 2000).share(error)
        assert share == pytest.approx(1 - quantile, abs=0.04)


def test_terminal_ends_with_the_verdict_and_fits_80_columns() -> None:
    long = "a_name_that_is_long_and_has_no_space_" * 2
    files = [_file(3.0, name=long, groups=[long] * 2000), _file(1.0, name="right")]
    found = audit(files, files, resamples=20)
    console = Console(width=80, record=True, file=io.StringIO())
    for part in audit_view(found, verbose=True):
        console.print(part)
    text = console.export_text()
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    words = " ".join(text.split())
    verdict = words.index(f"{long} is overconfident: it says")
    assert words.rindex("━") < words.index("warning: ") < verdict
    assert verdict < words.index("right: no miscalibration found")
    for word in ("coverage", "verdict", "difference"):
        assert word in text


def test_terminal_has_at_most_20_lines() -> None:
    found = audit([_file(3.0)], target=Target(0.3), resamples=20)
    console = Console(width=80, record=True, file=io.StringIO())
    for part in audit_view(found):
        console.print(part)
    text = console.export_text()
    assert len(text.splitlines()) < 20  # and one line for the report
    assert "━" not in text
    assert text.index("is overconfident") < text.index("Accept model from a confidence")


def test_command(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    file = _file(3.0)
    evil = np.array(["<script>alert(1)</script>", "[red]b", "c", "d"])
    np.savez(
        tmp_path / "a.npz",
        logits=file.predictions.numpy(),
        labels=file.labels.numpy(),
        classes=evil,
    )
    done = sfumato("audit", "a.npz", "--resamples", "50")
    assert done.status == 0, done.stderr
    assert "overconfident" in done.stdout
    assert "(replaced)" not in done.stdout
    assert "Report (replaced): " in sfumato("audit", "a.npz", "--resamples", "50").stdout
    page = (tmp_path / "audit" / "index.html").read_text()
    assert "<script>" not in page
    assert "overconfident" in page
    (tmp_path / "broken.npz").write_bytes(b"not a zip")
    np.savez(tmp_path / "one.npz", probs=np.array([[0.7, 0.3]]), labels=np.array([1]))
    for more in ([], ["--resamples", "0"]):
        done = sfumato("audit", "one.npz", *more)
        assert done.status == 0, done.stderr
        assert "inconclusive; one prediction" in done.stdout
    done = sfumato("audit", "broken.npz")
    assert done.status == 2
    assert "broken.npz: can't be read" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("copies", [1, 3])
def test_few_right_predictions_are_no_evidence(copies: int) -> None:
    """That six of six are right happens to an honest model of 65 % in 8 of 100 cases."""
    probs = torch.tensor([[0.7, 0.3], [0.4, 0.6]]).repeat(copies, 1)
    labels = torch.tensor([0, 1]).repeat(copies)
    model = audit([PredictionFile("few", labels, probs=probs)])["models"][0]
    assert model["verdict"] == "no miscalibration found"
    low, high = model["gap"]["interval"]
    assert low < -0.35 < 0 < high


@pytest.mark.parametrize("kind", ["any", "sure", "nearly sure"])
@pytest.mark.parametrize("count", [30, 300, 3000])
def test_two_tests_accuse_five_percent_of_honest_models(kind: str, count: int) -> None:
    """Both tests of the verdict on labels that are drawn from the confidences themselves."""
    generator, accused, draws = torch.Generator().manual_seed(count), 0, 400
    for _ in range(draws):
        uniform = torch.rand(count, generator=generator, dtype=torch.float64)
        confidence = {"any": uniform**0.25, "sure": 1 - uniform / 50, "nearly sure": None}[kind]
        if confidence is None:
            confidence = torch.full((count,), 0.99, dtype=torch.float64)
        correct = torch.rand(count, generator=generator, dtype=torch.float64) < confidence
        groups = group_by_value(Samples(confidence, correct, confidence))
        sums = whole_sums(confidence, correct, None)
        verdict, _, _ = verdict_of(sums, groups, generator, draws=120)
        accused += verdict != "no miscalibration found"
    assert accused <= 32  # of 20 expected, at most; 32 or more in 1 of 100


def test_each_of_two_tests_has_half_of_the_five_percent() -> None:
    """Of 1,000 predictions at 50 %, 533 or more on one side have p = 0.04, and 540 have 0.012."""
    confidence = torch.full((1000,), 0.5, dtype=torch.float64)
    for right, expected in ((533, "no miscalibration found"), (540, "underconfident")):
        correct = torch.arange(1000) < right
        groups = group_by_value(Samples(confidence, correct, confidence))
        sums = whole_sums(confidence, correct, None)
        generator = torch.Generator().manual_seed(0)
        verdict, share, _ = verdict_of(sums, groups, generator, draws=2000)
        assert verdict == expected
        assert (0.03 < share < 0.05) == (right == 533)


def test_images_that_err_together_accuse_no_honest_model() -> None:
    """Twenty detections an image share its luck: independent tests would accuse nearly all."""
    generator, accused = torch.Generator().manual_seed(1), 0
    for _ in range(100):
        luck = torch.randint(0, 2, (60, 1), generator=generator, dtype=torch.float64)
        confidence = torch.full((60, 20), 0.5, dtype=torch.float64)
        confidence += 0.2 * torch.rand(60, 20, generator=generator, dtype=torch.float64) - 0.1
        correct = torch.rand(60, 20, generator=generator, dtype=torch.float64) < (
            confidence + 0.4 * (luck - 0.5)
        )
        unit = torch.arange(60).repeat_interleave(20)
        groups = group_by_value(
            Samples(confidence.flatten(), correct.flatten(), confidence.flatten())
        )
        sums = whole_sums(confidence.flatten(), correct.flatten(), unit)
        accused += verdict_of(sums, groups, generator, draws=100)[0] != "no miscalibration found"
    assert accused <= 11  # of 5 expected; 11 or more in 1 of 100


_few = partial(_file, count=1500)


def test_probabilities_of_zero_in_a_real_file(real_data: Callable[[str], Path]) -> None:
    """It ended at temperature 100, with an ECE of 67 % instead of 20 %, without a word."""
    probs = torch.from_numpy(np.load(real_data("predictions/20news-probs.npy")))
    labels = torch.from_numpy(np.load(real_data("predictions/20news-labels.npy"))).long()
    test, held_out = (
        PredictionFile("news", labels=labels[part::2], probs=probs[part::2]) for part in (0, 1)
    )
    found = audit([test], [held_out], resamples=50)
    scaled = found["models"][0]["scaled"]
    impossible = int((held_out.probabilities.gather(1, held_out.labels[:, None]) == 0).sum())
    assert [f"{impossible} of 3,766 held-out labels" in text for text in scaled["warnings"]] == [
        True
    ]
    assert 0 < scaled["uniform"] < 0.99
    assert 0.01 < scaled["temperature"] < 1
    assert scaled["metrics"]["ece"] < 0.03 < 0.2 < found["models"][0]["metrics"]["ece"]
    assert scaled["verdict"] == "better"
    assert "NLL infinite to 0." in scaling_sentence(found["models"][0])


def test_harm_is_never_a_repair() -> None:
    """Fitted on predictions of another kind, the temperature makes good ones worse."""
    found = audit([_few(1.0)], [_few(4.0, seed=1)], resamples=100)
    assert found["models"][0]["scaled"]["verdict"] == "worse"
    assert "makes model worse, don't use it" in scaling_sentence(found["models"][0])


def test_no_gain_is_not_called_one() -> None:
    found = audit([_few(1.0)], [_few(1.0, seed=1)], resamples=100)
    assert found["models"][0]["scaled"]["verdict"] == "inconclusive"
    assert "no significant gain" in scaling_sentence(found["models"][0])
    assert warnings_of(found) == []


def test_bound_and_own_predictions_are_warned_of() -> None:
    logits = _few(1.0).predictions
    hopeless = PredictionFile("model", labels=logits.argmin(1), logits=logits)
    found = audit([hopeless], [hopeless], resamples=20)
    bound, own = warnings_of(found)
    assert "model: the temperature ended at its bound" in bound
    assert "holds the audited predictions themselves" in own


def test_without_zeros_the_temperature_is_that_of_the_logits() -> None:
    file, held_out = _few(3.0), _few(3.0, seed=1)
    as_probs = [
        PredictionFile(each.name, labels=each.labels, probs=each.probabilities)
        for each in (file, held_out)
    ]
    first = audit([file], [held_out], resamples=0)["models"][0]["scaled"]
    second = audit([as_probs[0]], [as_probs[1]], resamples=0)["models"][0]["scaled"]
    assert second["uniform"] is None
    assert second["temperature"] == pytest.approx(first["temperature"], rel=1e-4)
    assert first["verdict"] == "not resampled"


def test_one_prediction_is_audited_without_intervals() -> None:
    one = PredictionFile("one", labels=torch.tensor([1]), probs=torch.tensor([[0.7, 0.3]]))
    found = audit([one], resamples=1000)
    model = found["models"][0]
    assert model["verdict"] == "inconclusive"
    assert "ece_interval" not in model["metrics"]
    assert sentences(found) == [
        "one: inconclusive; one prediction does not show whether confidences are right."
    ]
    with pytest.raises(PredictionFileError, match="share one sample"):
        audit([one, one], resamples=10)


def test_bad_validation_files_are_named() -> None:
    bad = PredictionFile("held", labels=torch.tensor([0]), probs=torch.tensor([[0.9, -0.3, 0, 0]]))
    with pytest.raises(PredictionFileError, match=r"held: probs must not be negative, got -0\.3"):
        audit([_few(1.0)], [bad], resamples=0)
    other = PredictionFile("held", labels=torch.tensor([0]), probs=torch.tensor([[0.9, 0.1]]))
    with pytest.raises(PredictionFileError, match="held has 2 classes, model has 4"):
        audit([_few(1.0)], [other], resamples=0)


RISKS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)


def _tallies(file: PredictionFile) -> Tallies:
    found = Tallies()
    found.add(file)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [2.0, 8.0])
def test_a_threshold_of_sums_accepts_the_rows_that_it_counts(
    dtype: torch.dtype, spread: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(5000, 4, generator=generator, dtype=dtype)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    file = PredictionFile("m", labels, probs=logits.softmax(1))
    tallies = _tallies(file)
    confidence, predicted = file.predictions.max(1)
    found = [audit([Model("m", tallies)], resamples=0, target=Target(risk)) for risk in RISKS]
    chosen = [each["models"][0]["thresholds"]["accept"] for each in found]
    assert sum(each["confidence"] is not None for each in chosen) >= 5
    for each, model in zip(chosen, (each["models"][0] for each in found), strict=True):
        if each["confidence"] is None:
            continue
        kept = confidence.double() >= each["confidence"]
        assert int(kept.sum()) == each["accepted"]
        assert int((predicted != labels)[kept].sum()) == each["errors"]
        curve = model["curve"]
        place = bisect_left(curve["threshold"], each["confidence"])
        assert (curve["kept"][place], curve["wrong"][place]) == (each["accepted"], each["errors"])


def test_empty_cells_do_not_move_a_threshold() -> None:
    """Of 0.3 and 0.6 alone: all that lies between is a threshold of the upper ones."""
    sure = torch.tensor([0.3] * 500 + [0.6] * 500, dtype=torch.float64)
    rest = ((1 - sure) / 4)[:, None].expand(-1, 4)
    labels = torch.tensor([1] * 500 + [0] * 500)
    file = PredictionFile("m", labels, probs=torch.cat([sure[:, None], rest], 1))
    summed = Model("m", _tallies(file))
    accept = audit([summed], resamples=0, target=Target(0.1))["models"][0]["thresholds"]["accept"]
    exact = audit([file], resamples=0, target=Target(0.1))["models"][0]["thresholds"]["accept"]
    assert (
        (accept["accepted"], accept["errors"]) == (exact["accepted"], exact["errors"]) == (500, 0)
    )
    assert accept["confidence"] == pytest.approx(exact["confidence"], abs=1e-4)


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


def test_a_column_of_images_beside_scores(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    rows = [f"i{row // 3},{p:.6f},{1 - p:.6f}" for row, p in enumerate(_probs()[:90, 0])]
    (tmp_path / "a.csv").write_text("\n".join(["image,prob_0,prob_1", *rows]))
    (model,) = _found(tmp_path, sfumato("audit", "a.csv", "--unlabelled", "--quiet"))["models"]
    assert sum(model["counts"]) == 90


def test_the_assumption_is_said_everywhere(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    np.save(tmp_path / "a.npy", _probs())
    done = sfumato("audit", "a.npy", "--unlabelled")
    found = _found(tmp_path, done)
    page = (tmp_path / "audit" / "index.html").read_text()
    for text in (" ".join(done.stdout.split()), page):
        assert "Assumption: each confidence is right on these data" in text
        assert "Left out, because it needs labels: calibration errors" in text
        assert "if its confidences are right" in text
        assert "sfumato audit LABELLED_SAMPLE" in text
        assert "--target-risk" not in text  # which error can be kept is not known yet
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
    assert "predictions of one image err together" in " ".join(done.stdout.split())
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
