"""Verdicts and intervals keep their promises in thousands of studies whose truth is known.

The functions are those of the report, given all simulated studies at once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sfumato.report.columns import column
from sfumato.report.inference import LEVEL, ImageNoise, compare_with_first, method_intervals
from sfumato.report.judgement import judge_column
from sfumato.report.noise import spread_of_differences
from sfumato.report.read import MethodResults, RunResult
from sfumato.report.scales import Scale

STUDIES = 1000
NOISE = 0.05  # of one run, on the scale: 5 % of an NLL
MONTE_CARLO = 2 * np.sqrt(LEVEL * (1 - LEVEL) / STUDIES)
SEEDS = (2, 3, 5)
UNKNOWN = ImageNoise(np.array(np.nan), np.array(np.nan))
ACCURACY, NLL = column("accuracy"), column("nll")


def simulate(
    rng: np.random.Generator,
    scale: Scale,
    methods: int,
    seeds: int,
    *,
    unequal: float = 0.0,
    gains: float = 0.0,
    shared: float = 0.5,
    studies: int = STUDIES,
) -> np.ndarray:
    """Metrics around 0.8 (studies, methods, seeds); all but the first method move by `gains`.

    `unequal` is the standard deviation of the logarithm of the methods' spreads; `shared` is the
    part of the noise that a seed gives to all methods alike. Both in units of `NOISE`.
    """
    spreads = np.exp(unequal * rng.normal(size=(studies, methods, 1)))
    noise = spreads * rng.normal(size=(studies, methods, seeds))
    noise += shared * rng.normal(size=(studies, 1, seeds))
    noise[:, 1:] += gains
    return scale.inverse(scale.forward(np.array(0.8)) + NOISE * noise)


@pytest.mark.parametrize("scale", [Scale("nonnegative"), Scale("share"), Scale("any")])
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("methods", [2, 3, 7, 12])
def test_identical_methods_are_told_apart_in_5_percent_of_studies(
    scale: Scale, seeds: int, methods: int
) -> None:
    values = simulate(np.random.default_rng(0), scale, methods, seeds)
    found = compare_with_first(values, scale, UNKNOWN)
    assert (found.adjusted < LEVEL).any(-1).mean() <= LEVEL + MONTE_CARLO


@pytest.mark.parametrize("unequal", [0.0, 0.5])
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("methods", [3, 7, 12])
def test_intervals_cover_with_unequal_spreads(methods: int, seeds: int, unequal: float) -> None:
    """With 0.5 the noisiest of seven methods scatters four times as much as the calmest."""
    scale = Scale("nonnegative")
    rng = np.random.default_rng(1)
    values = simulate(rng, scale, methods, seeds, unequal=unequal, gains=2.0)
    differences = compare_with_first(values, scale, UNKNOWN).intervals
    true = scale.inverse(np.log(0.8) + NOISE * np.array([0.0] + [2.0] * (methods - 1)))
    gain = true[1:] - true[0]
    covered = (differences.low <= gain) & (gain <= differences.high)
    assert 0.938 <= covered.mean() <= 0.98
    own = method_intervals(values, scale, UNKNOWN)
    assert 0.938 <= ((own.low <= true) & (true <= own.high)).mean() <= 0.98


@pytest.mark.parametrize("shared", [0.0, 1.0, 2.0])
def test_own_intervals_cover_whatever_methods_share(shared: float) -> None:
    """Seeds that move all methods alike don't pass for many independent spreads."""
    scale = Scale("share")
    values = simulate(np.random.default_rng(2), scale, 7, 3, shared=shared, studies=4000)
    own = method_intervals(values, scale, UNKNOWN)
    assert 0.925 <= ((own.low <= 0.8) & (own.high >= 0.8)).mean() <= 0.97


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("methods", [3, 7, 12])
def test_a_baseline_noisier_than_all_others_is_the_known_limit(methods: int, seeds: int) -> None:
    """Spreads that differ by design and not by chance; docs/report.md says how much it costs."""
    values = np.random.default_rng(7).normal(size=(4000, methods, seeds))
    values[:, 0] *= 2
    found = compare_with_first(values, Scale("any"), UNKNOWN).intervals
    assert 0.905 <= ((found.low <= 0) & (found.high >= 0)).mean() <= 0.945


def test_missing_runs_keep_the_error() -> None:
    values = simulate(np.random.default_rng(3), Scale("any"), 6, 4)
    for method, seed in ((0, 3), (2, 0), (4, 1), (5, 0), (5, 1)):
        values[:, method, seed] = np.nan
    found = compare_with_first(values, Scale("any"), UNKNOWN)
    assert (found.adjusted < LEVEL).any(-1).mean() <= LEVEL + MONTE_CARLO
    assert np.isnan(found.p[:, -1]).all()  # one shared seed
    covered = ((found.intervals.low <= 0) & (found.intervals.high >= 0))[:, :-1]
    assert 0.94 <= covered.mean() <= 0.98


IMAGES, RESAMPLES = 250, 100
DRAWS = (
    np.random.default_rng(9).multinomial(IMAGES, np.full(IMAGES, 1 / IMAGES), RESAMPLES) / IMAGES
)


def measured(rng: np.random.Generator, methods: int, seeds: int, own: float) -> list[MethodResults]:
    """A study of methods that are equally good on all images that there are.

    Each sees its images as easy or hard in a way of its own, as far as `own` says; with 0 they are
    the same method.
    """
    ease = rng.normal(size=IMAGES) + own * rng.normal(size=(methods, 1, IMAGES))
    training = 0.1 * rng.normal(size=(methods, seeds, 1))
    logit = 1 + ease + training + rng.normal(size=(methods, seeds, IMAGES))
    right = rng.random(logit.shape) < 1 / (1 + np.exp(-logit))
    losses = np.logaddexp(0, np.where(right, -1.0, 1.0) * 1.2) + 0.2 * np.abs(logit)
    return [
        MethodResults(f"method {m}", [_run(s, right[m, s], losses[m, s]) for s in range(seeds)])
        for m in range(methods)
    ]


def _run(seed: int, right: np.ndarray, losses: np.ndarray) -> RunResult:
    metrics = {"accuracy": float(right.mean()), "nll": float(losses.mean())}
    replicates = {
        "test.accuracy": (DRAWS @ right.astype(float)).astype(np.float32),
        "test.nll": (DRAWS @ losses).astype(np.float32),
        "test.units": np.array(f"{IMAGES}-ab12cd34"),
    }
    return RunResult(seed, {"test": metrics}, {}, [], replicates=replicates)


def test_identical_methods_from_images_to_verdicts() -> None:
    rng = np.random.default_rng(4)
    told, studies = dict.fromkeys((ACCURACY, NLL), 0), 300
    for _ in range(studies):
        methods = measured(rng, 4, 3, own=0.0)
        for each in told:
            found = judge_column(methods, methods[0], each).differences.values()
            assert {difference.over for difference in found} == {"seeds and images"}
            told[each] += any(difference.verdict != "can't tell" for difference in found)
    error = 2 * np.sqrt(LEVEL * (1 - LEVEL) / studies)
    assert all(count / studies <= LEVEL + error for count in told.values()), told


def test_images_count_though_no_seed_shows_them() -> None:
    """Five seeds on the same images agree on what another test set would not show."""
    rng = np.random.default_rng(5)
    covered: dict[str, list[bool]] = {"seeds": [], "seeds and images": []}
    for _ in range(200):
        methods = measured(rng, 4, 5, own=2.0)
        older = [_without_replicates(method) for method in methods]
        for study in (methods, older):
            for found in judge_column(study, study[0], ACCURACY).differences.values():
                assert found.low is not None
                assert found.high is not None
                covered[found.over].append(found.low <= 0 <= found.high)
    assert np.mean(covered["seeds"]) < 0.85
    assert 0.93 <= np.mean(covered["seeds and images"]) <= 0.98


def _without_replicates(method: MethodResults) -> MethodResults:
    runs = [RunResult(run.seed, run.metrics, run.config, run.log) for run in method.runs]
    return MethodResults(method.name, runs)


def paired_t_tests(values: np.ndarray) -> np.ndarray:
    """The plain rule: a t test of each difference by itself, at 5 % each."""
    p: np.ndarray = stats.ttest_rel(values[:, 1:], values[:, :1], axis=-1).pvalue
    return p


def power_table() -> list[tuple[Any, ...]]:
    """Seeds, gain, found by both rules in %; gain 0: studies in % with any false verdict.

    Six methods and a baseline; a gain is in standard deviations of one run.
    """
    rows: list[tuple[Any, ...]] = []
    scale = Scale("nonnegative")
    for seeds in SEEDS:
        for gain in (0.0, 2.0, 3.0, 4.0):
            values = simulate(np.random.default_rng(6), scale, 7, seeds, gains=-gain, studies=4000)
            plain = paired_t_tests(np.log(values)) < LEVEL
            ours = compare_with_first(values, scale, UNKNOWN).adjusted < LEVEL
            shares = [(each.any(-1) if gain == 0 else each).mean() for each in (plain, ours)]
            rows.append((seeds, gain, *(100 * share for share in shares)))
    return rows


def dunnett(values: np.ndarray) -> np.ndarray:
    """Rejections at 5 % by the largest of six |t| that share a baseline, for equal spreads."""
    rng = np.random.default_rng(8)
    common, own = rng.normal(size=(50_000, 1)), rng.normal(size=(50_000, 6))
    steps = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0])
    critical = []
    for freedom in steps:
        spread = np.sqrt(rng.chisquare(freedom, size=(50_000, 1)) / freedom)
        largest = np.abs((common + own) / np.sqrt(2) / spread).max(-1)
        critical.append(np.quantile(largest, 1 - LEVEL))
    found = spread_of_differences(values)
    ratio = (values[:, 1:] - values[:, :1]).mean(-1) / np.sqrt(found.variance)
    rejected: np.ndarray = np.abs(ratio) > np.interp(found.freedom, steps, critical)
    return rejected


@pytest.mark.parametrize(("winners", "holm", "other"), [(6, 67, 62), (1, 55, 63)])
def test_holm_finds_more_than_dunnett_where_several_win(
    winners: int, holm: float, other: float
) -> None:
    """Three seeds, a gain of three standard deviations: the shares that docs/report.md gives."""
    values = np.random.default_rng(6).normal(size=(4000, 7, 3))
    values[:, 1 : 1 + winners] += 3
    adjusted = compare_with_first(values, Scale("any"), UNKNOWN).adjusted
    shares = [each[:, :winners].mean() for each in (adjusted < LEVEL, dunnett(values))]
    assert [100 * share for share in shares] == pytest.approx([holm, other], abs=2)


def test_power_is_what_the_documents_say() -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    rows = power_table()
    for seeds in SEEDS:
        of_seeds = [row for row in rows if row[0] == seeds]
        line = re.search(rf"^\| {seeds} \|(.*)\|$", text, re.MULTILINE)
        assert line, f"docs/report.md has no row of {seeds} seeds"
        stated = [float(number) for number in re.findall(r"\d+", line.group(1))]
        found = [share for row in of_seeds for share in row[2:]]
        assert stated == pytest.approx(found, abs=1.5)  # rounded, and a tie may fall either way
    assert all(ours > plain for _, gain, plain, ours in rows if gain >= 3)
