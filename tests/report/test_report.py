"""The page shows what the result files say, and nothing that a user wrote can run in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sfumato._core.files import DamagedFileError
from sfumato.cli import app
from sfumato.report import (
    compare_methods,
    read_studies,
    read_study,
    summarise,
    write_report,
)
from sfumato.report.payload import payload
from sfumato.report.summary import pooled_bins

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


def test_summary_is_the_mean_over_seeds(make_study: MakeStudy) -> None:
    method = read_study(make_study({"plain": 0.0}, noise=0.0)).methods[0]
    value = summarise(method, "accuracy")
    assert value is not None
    assert (value.mean, value.low, value.high) == pytest.approx((0.80, 0.79, 0.81))
    bins = pooled_bins(method)
    assert bins is not None
    assert bins.counts == [30, 0, 90]
    assert bins.accuracy == pytest.approx([0.1, 0.0, 0.8])


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
    assert smooth["differences"]["test.ece"]["verdict"] == "can't tell"


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
    """Found by the campaign: such folders, which may be a stranger's, ended in a traceback."""
    study = make_study({"plain": 0.0}, seeds=(0,))
    (path,) = [study / name] if name == "study.json" else sorted(study.rglob(name))
    path.write_text(content)
    done = CliRunner().invoke(app, ["report", str(study), "--format", form])
    assert isinstance(done.exception, DamagedFileError | None), done.exception


def test_a_link_in_place_of_the_report_is_not_followed(make_study: MakeStudy) -> None:
    study = make_study({"plain": 0.0}, seeds=(0,))
    outside = study.parent / "outside"
    outside.mkdir()
    (study / "report").symlink_to(outside)
    with pytest.raises(DamagedFileError, match="is a link"):
        write_report(study)
    assert not list(outside.iterdir())
    assert write_report(study, study / "report" / "here").exists()
