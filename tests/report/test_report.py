"""The page shows what the result files say, and nothing that a user wrote can run in it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from sfumato.report import read_study, summarise, write_report
from sfumato.report.summary import pooled_bins

EVIL = "<script>alert(1)</script>"


def _metrics(shift: float) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in (("accuracy", 0.8), ("nll", 0.6), ("ece", 0.05), ("aece", 0.06)):
        values[name] = value + shift
        values[f"{name}_interval"] = [value + shift - 0.01, value + shift + 0.01]
    bins = {"counts": [10, 0, 30], "confidence": [0.2, None, 0.9], "accuracy": [0.1, None, 0.8]}
    return {"test": {**values, "reliability": bins}}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    runs = []
    for method in ("plain", EVIL):
        for seed in (0, 1):
            name = f"{len(runs):012d}"
            folder = tmp_path / "runs" / name
            folder.mkdir(parents=True)
            (folder / "metrics.json").write_text(json.dumps(_metrics(0.02 * seed)))
            (folder / "config.yaml").write_text(yaml.safe_dump({"loss": EVIL, "seed": seed}))
            (folder / "log.jsonl").write_text('{"epoch": 0}\n')
            runs.append({"method": method, "seed": seed, "run": name})
    runs.append({"method": "plain", "seed": 2, "run": "unfinished"})
    index = {"title": EVIL, "methods": ["plain", EVIL], "runs": runs, "study": {"name": EVIL}}
    (tmp_path / "study.json").write_text(json.dumps(index))
    return tmp_path


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name in ("src", "href") for name, _ in attrs), "the page must not load"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_summary_is_the_mean_over_seeds(study: Path) -> None:
    method = read_study(study).methods[0]
    value = summarise(method, "accuracy")
    assert value is not None
    assert (value.mean, value.low, value.high) == pytest.approx((0.81, 0.80, 0.82))
    assert value.text(percent=True) == "81.0 [80.0, 82.0]"
    assert method.unfinished == [2]
    bins = pooled_bins(method)
    assert bins is not None
    assert bins.counts == [20, 0, 60]
    assert bins.accuracy == pytest.approx([0.1, 0.0, 0.8])


def test_page_shows_the_numbers_and_escapes_the_rest(study: Path) -> None:
    page = write_report(study).read_text()
    tags = _Tags()
    tags.feed(page)
    assert "script" not in tags.seen
    assert "81.0<br>" in page
    assert "[80.0, 82.0]" in page
    assert tags.seen.count("svg") == 2
    assert EVIL in "".join(tags.text)
    assert "2 (1 unfinished)" in page
    assert not re.search(r"https?://", page)


def test_folder_without_a_study(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no study\.json"):
        read_study(tmp_path)
