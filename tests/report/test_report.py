"""The page shows what the result files say, and nothing that a user wrote can run in it."""

from __future__ import annotations

import base64
import json
import os
import random
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sfumato._core.files import UnreadableFileError
from sfumato.cli import app
from sfumato.report import (
    compare_methods,
    read_studies,
    read_study,
    recommend,
    write_report,
)
from sfumato.report.columns import pooled_bins
from sfumato.report.export import summary_lines
from sfumato.report.page import payload

MakeStudy = Callable[..., Path]


class Page(HTMLParser):
    """Tags, attributes and the embedded data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data: dict[str, Any] = {}
        self._inside_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside_data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        if self._inside_data:
            self.data = json.loads(data)
            self._inside_data = False
            for method in self.data["methods"]:
                for part in ("values", "differences"):
                    method[part] = {
                        key: self._unpacked(part, method[part][key]) for key in method[part]
                    }

    def _unpacked(self, part: str, row: list[Any]) -> dict[str, Any]:
        shared = self.data["shared"]
        found = dict(zip(self.data["fields"][part], row, strict=True))
        return {
            name: shared[value] if name in self.data["shared_fields"] else value
            for name, value in found.items()
        }


def test_bins_of_all_seeds_are_pooled(make_study: MakeStudy) -> None:
    method = read_study(make_study({"plain": 0.0}, noise=0.0)).methods[0]
    bins = pooled_bins(method)
    assert bins is not None
    assert bins["counts"] == [30, 0, 90]
    assert bins["accuracy"] == pytest.approx([0.1, 0.0, 0.8])


def test_page_holds_the_numbers_and_loads_nothing(make_study: MakeStudy, hostile: str) -> None:
    folder = make_study({"plain": 0.0, hostile: 0.02})
    path = write_report(folder)
    page = Page(path.read_text(encoding="utf-8"))
    assert "img" not in page.tags
    assert page.tags.count("script") == 2
    assert not any(name in ("src", "href") or name.startswith("on") for name, _ in page.attributes)
    plain, other = page.data["methods"]
    assert other["name"] == hostile
    stored = [
        json.loads((folder / "runs" / f"{n:012d}" / "metrics.json").read_text()) for n in (0, 2, 4)
    ]
    mean = sum(each["test"]["accuracy"] for each in stored) / 3
    assert plain["values"]["test.accuracy"]["mean"] == pytest.approx(mean, rel=1e-5)
    assert other["differences"]["test.accuracy"]["verdict"] == "better"
    assert other["differences"]["test.accuracy"]["reason"].endswith("adjusted for 1 compared")
    errors = {each["id"]: each["error"] for each in page.data["columns"]}
    assert errors["test.accuracy"] == "≤ 5 % over 1"
    assert errors["test.odd_thing"] == ""  # no direction, no verdict
    assert plain["corrupted"]["cells"]["error"][0][0] == pytest.approx(
        sum(each["corrupted"]["cells"]["error"][0][0] for each in stored) / 3, rel=1e-5
    )
    assert plain["cost"] == [6.0, 0.001]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text(encoding="utf-8"))
    assert sorted(p.name for p in path.parent.iterdir()) == [
        *("index.html", "results.csv", "results.md", "results.tex")
    ]


def test_policy_allows_our_script_only(make_study: MakeStudy) -> None:
    page = Page(write_report(make_study({"plain": 0.0})).read_text(encoding="utf-8"))
    policy = next(value for name, value in page.attributes if value and "default-src" in value)
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_twenty_methods_stay_light(make_study: MakeStudy) -> None:
    names = {f"method {number}": 0.001 * number for number in range(20)}
    path = write_report(make_study(names, seeds=range(5), epochs=200))
    assert path.stat().st_size < 600_000


def test_a_page_like_that_of_the_quickstart_is_below_its_limit(make_study: MakeStudy) -> None:
    """Five methods, five seeds, forty metrics, eight thumbnails of each method."""
    names = ("cross entropy", "ACLS", "mollification", "spatial smoothing", "all of them")
    folder = make_study(dict.fromkeys(names, 0.0), seeds=range(5), epochs=30)
    dice = random.Random(0)
    pictures = [base64.b64encode(dice.randbytes(1150)).decode() for _ in range(30)]
    for run in (folder / "runs").iterdir():
        metrics = json.loads((run / "metrics.json").read_text())
        for number in range(32):
            value = dice.random()
            metrics["test"] |= {f"own_{number}": value, f"own_{number}_interval": [value, value]}
        (run / "metrics.json").write_text(json.dumps(metrics))
        samples = json.loads((run / "samples.json").read_text())["samples"]
        shown = dice.sample(pictures, 8)
        found = [{**samples[0], "image": f"data:image/png;base64,{each}"} for each in shown]
        (run / "samples.json").write_text(json.dumps({"samples": found}))
    findings = compare_methods(read_study(folder))
    assert len(findings.columns) >= 40
    assert write_report(folder).stat().st_size < 200_000


def test_samples_that_are_no_pictures_are_left_as_they_are(make_study: MakeStudy) -> None:
    folder, odd = make_study({"plain": 0.0}), [{"image": ["a list"]}, "a text", None]
    for run in (folder / "runs").iterdir():
        (run / "samples.json").write_text(json.dumps({"samples": odd}))
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert page.data["methods"][0]["samples"] == odd


def test_failed_and_missing_runs_are_named(make_study: MakeStudy) -> None:
    folder = make_study({"plain": 0.0, "smooth": 0.02, "broken": 0.0}, seeds=(0, 1))
    for number in (2, 5):
        (folder / "runs" / f"{number:012d}" / "metrics.json").unlink()
    (folder / "runs" / f"{3:012d}" / "metrics.json").unlink()
    (folder / "runs" / f"{2:012d}" / "error.txt").write_text("Traceback\nValueError: too hot\n")
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    plain, smooth, broken = page.data["methods"]
    assert plain["seeds"] == "1 (1 unfinished)"
    assert broken["seeds"] == "0 (1 failed, 1 unfinished)"
    assert broken["failures"] == ["seed 0: ValueError: too hot"]
    assert broken["values"] == {}
    assert smooth["differences"]["test.ece"]["verdict"] == "inconclusive"


def test_metrics_that_are_not_numbers(make_study: MakeStudy) -> None:
    folder = make_study({"plain": 0.0}, seeds=(0,))
    path = folder / "runs" / f"{0:012d}" / "metrics.json"
    metrics = json.loads(path.read_text())
    metrics["test"]["nll"] = None
    del metrics["test"]["reliability"], metrics["corrupted"], metrics["ensemble"]
    path.write_text(json.dumps(metrics))
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "test.nll" not in page.data["methods"][0]["values"]
    assert page.data["methods"][0]["reliability"] is None


def test_leftovers_of_a_killed_report_are_removed(make_study: MakeStudy) -> None:
    """What another process writes at this moment stays."""
    folder = make_study({"plain": 0.0}, seeds=(0,))
    (folder / "report").mkdir()
    dead, living, foreign = (
        folder / "report" / name
        for name in (".index.html.ab12.html", ".results.csv.cd34.csv", ".notes.html")
    )
    for path in (dead, living, foreign):
        path.write_text("half")
    for path in (dead, foreign):
        os.utime(path, (1, 1))
    write_report(folder)
    assert not dead.exists()
    assert living.exists()
    assert foreign.exists()


def test_folder_without_a_study(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no study\.json"):
        read_study(tmp_path)


def test_folders_may_be_strings(make_study: MakeStudy, tmp_path: Path) -> None:
    folder = str(make_study({"plain": 0.0, "smooth": 0.02}))
    assert [method.name for method in read_study(folder).methods] == [
        method.name for method in read_studies([folder]).methods
    ]
    assert write_report(folder) == Path(folder) / "report" / "index.html"
    assert write_report([folder], str(tmp_path / "page")) == tmp_path / "page" / "index.html"
    with pytest.raises(ValueError, match="must be a list"):
        read_studies(folder)


def test_figures_know_every_metric_that_they_draw(make_study: MakeStudy) -> None:
    results = read_studies([make_study({"plain": 0.0, "smooth": 0.02})])
    scores = payload(results, compare_methods(results))["scores"]
    assert scores["ece"] == ["ECE", True]
    assert scores["nll"] == ["NLL", False]
    assert scores["validation_accuracy"] == ["validation accuracy", True]
    assert scores["train_loss"] == ["train loss", False]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("study.json", "{}"),
        ("study.json", '{"title": {}, "methods": [""], "study": {}, "runs": []}'),
        ("study.json", "[" * 100_000),
        ("config.yaml", ""),
        ("metrics.json", "true"),
        ("log.jsonl", '{"seconds": []}'),
    ],
)
@pytest.mark.parametrize("form", ["html", "csv"])
def test_well_formed_files_that_say_something_else(
    make_study: MakeStudy, name: str, content: str, form: str
) -> None:
    """Found by the stress test: such folders, which may be a stranger's, ended in a traceback."""
    study = make_study({"plain": 0.0}, seeds=(0,))
    (path,) = [study / name] if name == "study.json" else sorted(study.rglob(name))
    path.write_text(content)
    done = CliRunner().invoke(app, ["report", str(study), "--format", form])
    assert isinstance(done.exception, UnreadableFileError | None), done.exception


def test_a_link_in_place_of_the_report_is_not_followed(make_study: MakeStudy) -> None:
    study = make_study({"plain": 0.0}, seeds=(0,))
    outside = study.parent / "outside"
    outside.mkdir()
    (study / "report").symlink_to(outside)
    with pytest.raises(UnreadableFileError, match="is a link"):
        write_report(study)
    assert not list(outside.iterdir())
    assert write_report(study, study / "report" / "here").exists()


def test_recognition_of_strange_inputs_is_said(make_study: MakeStudy) -> None:
    folder = make_study({"plain": 0.0, "spoilt": 0.0, "alike": 0.0}, noise=0.0)
    gains = {"plain": 0.0, "spoilt": -0.1, "alike": 0.0}
    random_numbers = random.Random(0)
    index = json.loads((folder / "study.json").read_text())
    for run in index["runs"]:
        path = folder / "runs" / run["run"] / "metrics.json"
        content = json.loads(path.read_text())
        scores = {
            score: {"auroc": 0.8 + gain * gains[run["method"]] + random_numbers.gauss(0, 0.005)}
            for score, gain in (("energy", 1), ("entropy", 0))
        }
        path.write_text(json.dumps({**content, "ood": {"near": scores}}))
    findings = compare_methods(read_study(folder))
    sentence = (
        "Recognition of strange inputs, by 2 AUROCs against the baseline: spoilt is significantly "
        "worse in 1; alike is not significantly different."
    )
    assert sentence in recommend(findings).reasons
    shown = [
        each.plain
        for each in summary_lines(findings, recommend(findings))
        if hasattr(each, "plain")
    ]
    assert sentence in shown
    assert sentence in write_report(folder).read_text(encoding="utf-8")
    without = compare_methods(read_study(make_study({"plain": 0.0, "other": 0.0}, name="without")))
    assert "strange" not in recommend(without).text
