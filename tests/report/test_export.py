"""Tables as Markdown, CSV and LaTeX, several studies as one, runs compared in the terminal."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato._core.text import markdown_line
from sfumato.report import compare_methods, read_studies, recommend, to_csv, to_latex, to_markdown


def test_csv_has_every_number(make_study: Callable[..., Path]) -> None:
    folder = make_study({"plain": 0.0, "=cmd|x": 0.02}, noise=0.0)
    rows = list(csv.DictReader(io.StringIO(to_csv(compare_methods(read_studies([folder]))))))
    found = {(row["method"], row["metric"]): row for row in rows}
    assert float(found["plain", "test.accuracy"]["mean"]) == pytest.approx(0.8)
    hostile = found["'=cmd|x", "test.accuracy"]
    assert float(hostile["difference"]) == pytest.approx(0.02)
    assert (hostile["verdict"], hostile["shared_seeds"]) == ("better", "3")
    assert found["'=cmd|x", "test.odd_thing"]["verdict"] == ""
    assert found["plain", "test.accuracy"]["difference"] == ""


def test_markdown_and_latex_escape_names(make_study: Callable[..., Path]) -> None:
    folder = make_study({"plain": 0.0, "a|b_<c>$": 0.02}, noise=0.0)
    findings = compare_methods(read_studies([folder]))
    markdown, latex = to_markdown(findings), to_latex(findings)
    widths = {line.replace("\\|", "").count("|") for line in markdown.splitlines()[:4]}
    assert len(widths) == 1
    assert "82.0 [82.0, 82.0] ✓" in markdown
    assert markdown_line(recommend(findings).headline) == markdown.splitlines()[-1]
    assert r"a\|b\_&lt;c>\$" in markdown
    assert r"a|b\_\textless{}c\textgreater{}\$ &" in latex
    assert r"accuracy \% $\uparrow$" in latex
    assert latex.count(r"\\") == 3


def test_same_method_of_two_studies_is_one_with_all_seeds(make_study: Callable[..., Path]) -> None:
    first = make_study({"plain": 0.0, "smooth": 0.02}, name="a", seeds=(0, 1))
    second = make_study({"plain": 0.0, "other": 0.01}, name="b", seeds=(1, 2))
    merged = read_studies([first, second])
    seeds = {method.name: [run.seed for run in method.runs] for method in merged.methods}
    assert seeds == {"plain": [0, 1, 2], "smooth": [0, 1], "other": [1, 2]}
    assert merged.title == "a + b"
    assert compare_methods(merged).row("other").differences["test.nll"].seeds == 2


def test_other_data_has_its_own_baseline(make_study: Callable[..., Path]) -> None:
    first = make_study({"plain": 0.0, "smooth": 0.02}, name="a")
    second = make_study({"plain": 0.0, "smooth": 0.02}, name="b", data="photos")
    findings = compare_methods(read_studies([first, second]))
    assert [(row.name, row.baseline) for row in findings.rows] == [
        ("plain", None),
        ("smooth", "plain"),
        ("plain (b)", None),
        ("smooth (b)", "plain (b)"),
    ]


def test_other_damage_is_not_compared(make_study: Callable[..., Path]) -> None:
    folder = make_study({"plain": 0.0, "smooth": 0.02})
    for number in (1, 3, 5):
        path = folder / "runs" / f"{number:012d}" / "metrics.json"
        metrics = json.loads(path.read_text())
        metrics["corrupted"]["severities"] = [1, 2, 3]
        path.write_text(json.dumps(metrics))
    differences = compare_methods(read_studies([folder])).row("smooth").differences
    assert "corrupted.error" not in differences
    assert "test.ece" in differences


def test_command_merges_prints_and_writes(
    sfumato: Callable[..., Any], make_study: Callable[..., Path], tmp_path: Path
) -> None:
    first = make_study({"plain": 0.0, "smooth": 0.02}, name="a")
    second = make_study({"plain": 0.0, "other": 0.01}, name="b", seeds=(0, 3))
    outcome = sfumato("report", str(first), str(second), "--out", str(tmp_path / "page"))
    assert outcome.status == 0
    assert "Use smooth." in outcome.stdout
    assert len(outcome.stdout.splitlines()) <= 22  # and two lines around it make a screen
    assert "in brackets its 95 % interval" not in outcome.stdout
    told = sfumato("report", str(first), "--verbose").stdout
    assert "in brackets its 95 % interval" in " ".join(told.split())
    assert (tmp_path / "page" / "index.html").exists()
    printed = sfumato("report", str(first), "--format", "csv").stdout
    assert printed == to_csv(compare_methods(read_studies([first])))
    sfumato("report", str(first), "--format", "latex", "--out", str(tmp_path / "t.tex"))
    assert (tmp_path / "t.tex").read_text().startswith(r"\begin{tabular}")


def _save_predictions(run: Path, sharpness: float) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 300)
    logits = generator.normal(size=(300, 3)) + 1.5 * np.eye(3)[labels]
    (run / "predictions").mkdir()
    arrays = {"logits": sharpness * logits, "labels": labels, "index": np.arange(300)}
    np.savez(run / "predictions" / "test.npz", **arrays)


def test_compare_in_the_terminal(
    sfumato: Callable[..., Any], make_study: Callable[..., Path]
) -> None:
    folder = make_study({"plain": 0.0, "[bold]odd": 0.0}, seeds=(0,))
    runs = [folder / "runs" / f"{number:012d}" for number in (0, 1)]
    for run, sharpness in zip(runs, (1.0, 6.0), strict=True):
        _save_predictions(run, sharpness)
    outcome = sfumato("compare", *map(str, runs), "--resamples", "100")
    assert outcome.status == 0
    named = [f"{folder}:plain:0", f"{folder}:[bold]odd:0"]
    assert sfumato("compare", *named, "--resamples", "100").stdout == outcome.stdout
    listed = sfumato("runs", str(folder)).stdout
    assert all(text in listed for text in (*(run.name for run in runs), "[bold]odd", "finished"))
    unknown = sfumato("compare", named[0], f"{folder}:plain:7")
    assert unknown.status == 2
    assert "has no run of 'plain' with seed 7" in unknown.stderr
    assert "[bold]odd, seed 0 against plain, seed 0, same 300 samples" in outcome.stdout
    lines = {re.split("  +", line)[0]: line for line in outcome.stdout.splitlines()}
    assert re.search(r"\d\.\d+ +\d\.\d+ .*✗", lines["NLL ↓"])  # both values, at 80 columns
    assert lines["accuracy % ↑"].rstrip().endswith("?")  # the same ranking: no difference at all
    assert "−0.0 [" in lines["accuracy % ↑"] or "+0.0 [" in lines["accuracy % ↑"]


def test_compare_says_what_is_missing(
    sfumato: Callable[..., Any], make_study: Callable[..., Path]
) -> None:
    run = str(make_study({"plain": 0.0}, seeds=(0,)) / "runs" / f"{0:012d}")
    outcome = sfumato("compare", run, run)
    assert outcome.status == 2
    assert "holds no predictions of 'test' (has none)" in outcome.stderr
    assert "at least two runs" in sfumato("compare", run).stderr
