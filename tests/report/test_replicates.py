"""Stored resamples of the test images: read, paired, and said to be missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sfumato.report import compare_methods, read_studies, recommend, to_csv, to_markdown
from sfumato.report.columns import column
from sfumato.report.findings import judge_column
from sfumato.report.read import MethodResults, RunResult
from sfumato.report.statistics import Scale, image_variance

MakeStudy = Callable[..., Path]
RNG = np.random.default_rng(0)
COMMON = RNG.normal(size=4000)  # what the images do to every run
NLL = column("nll")


def run(seed: int, own: float, *, units: str = "200-aa", draws: int = 4000) -> RunResult:
    """A run with NLL 0.5 that images move by 0.01, by `own` in a way of its own."""
    found = 0.5 + 0.01 * COMMON[:draws] + own * RNG.normal(size=draws)
    replicates = {"test.nll": found.astype(np.float32), "test.units": np.array(units)}
    return RunResult(seed, {"test": {"nll": 0.5}}, {}, [], replicates=replicates)


def test_what_seeds_share_does_not_average_out() -> None:
    """Logarithm: a change of 0.01 in 0.5 is 0.02. What is a seed's own is in the seeds' spread."""
    scale = Scale("nonnegative")
    for seeds in (2, 5):
        found = image_variance([run(seed, 0.02) for seed in range(seeds)], NLL, scale)
        assert found == pytest.approx((0.02**2, 0.04**2 / seeds), rel=0.1)
    single = image_variance([run(0, 0.02)], NLL, scale)
    assert single == pytest.approx((0.02**2 + 0.04**2, 0.0), rel=0.1)


def test_what_is_hard_for_both_cancels() -> None:
    ours, theirs = ([run(seed, 0.001) for seed in range(3)] for _ in range(2))
    found = image_variance(ours, NLL, Scale("any"), theirs)
    assert sum(found) < 1e-6


@pytest.mark.parametrize(
    "other",
    [
        run(0, 0.01, units="200-bb"),
        run(0, 0.01, draws=100),
        RunResult(0, {"test": {"nll": 0.5}}, {}, []),
    ],
    ids=["other images", "other resamples", "none"],
)
def test_other_images_are_not_subtracted(other: RunResult) -> None:
    assert np.isnan(image_variance([run(0, 0.01)], NLL, Scale("any"), [other])).all()


def test_seeds_that_agree_by_chance_scatter_as_their_images_do() -> None:
    """Three seeds with the same NLL; what each makes of its images would have them differ."""
    methods = [MethodResults(name, [run(s, 0.02) for s in range(3)]) for name in ("a", "b")]
    found = judge_column(methods, methods[0], NLL).estimates["a"]
    expected = 0.5 * np.exp(-1.96 * np.hypot(0.02, 0.04 / np.sqrt(3)))
    assert found.low == pytest.approx(expected, rel=0.005)


def add_replicates(folder: Path, keys: tuple[str, ...]) -> None:
    """Resamples of these test metrics for every run of a study that was made of files."""
    for path in (folder / "runs").iterdir():
        values = json.loads((path / "metrics.json").read_text())["test"]
        draws = {f"test.{key}": values[key] + 0.004 * COMMON[:200] for key in keys}
        np.savez(path / "replicates.npz", **draws, **{"test.units": np.array("200-aa")})


def test_report_counts_images_where_they_are_kept(make_study: MakeStudy) -> None:
    folder = make_study({"plain": 0.0, "smooth": 0.02})
    before = compare_methods(read_studies([folder])).row("plain").values["test.nll"]
    add_replicates(folder, ("nll", "accuracy"))
    findings = compare_methods(read_studies([folder]))
    after = findings.row("plain").values["test.nll"]
    assert (before.over, after.over) == ("seeds", "seeds and images")
    assert before.low is not None
    assert after.low is not None
    assert after.low < before.low
    text = to_markdown(findings)
    assert "No resamples are kept of ECE, corrupted error and odd thing: there, seeds only" in text
    assert findings.row("smooth").differences["test.nll"].over == "seeds and images"
    assert "seeds and images" in to_csv(findings)
    assert "3 shared seeds and, where kept, test images" in recommend(findings).certainty


def test_older_runs_say_that_images_are_not_counted(make_study: MakeStudy) -> None:
    findings = compare_methods(read_studies([make_study({"plain": 0.0, "smooth": 0.02})]))
    assert "all intervals are over seeds only" in to_markdown(findings)


def test_one_seed_compares_networks_and_not_methods(make_study: MakeStudy) -> None:
    folder = make_study({"plain": 0.0, "smooth": 0.02}, seeds=(0,))
    add_replicates(folder, ("nll",))
    findings = compare_methods(read_studies([folder]))
    found = findings.row("smooth").differences["test.nll"]
    assert (found.over, found.verdict, found.p) == ("images", "inconclusive", None)
    assert found.low is not None
    assert "there is no verdict about methods" in to_markdown(findings)


def test_broken_file_is_named(make_study: MakeStudy) -> None:
    folder = make_study({"plain": 0.0}, seeds=(0,))
    path = next((folder / "runs").iterdir()) / "replicates.npz"
    path.write_bytes(b"PK broken")
    with pytest.raises(ValueError, match=r"replicates\.npz is unreadable .*'sfumato run'"):
        read_studies([folder])
