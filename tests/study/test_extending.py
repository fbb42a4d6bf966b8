"""docs/extending.md: its files beside its study, checked and run, from another folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfumato.study import load_study, plan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.M | re.S)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "study.yaml"


def test_every_kind_has_an_example(study: Path) -> None:
    for run in plan(load_study(study)):
        named = {run.config.data["name"], run.config.model["name"]}
        assert all(":" in name for name in named)
    text = study.read_text()
    kinds = ("data", "model", "augment", "own", "loss", "inputs", "labels")
    assert all(f"{kind}:" in text for kind in kinds)


def test_the_page_runs_as_it_is_written(
    study: Path, in_this_process: list[Any], sfumato: Callable[..., Any]
) -> None:
    done = sfumato("run", str(study), "--out", "out", "--quiet", "evaluate.resamples=10")
    assert done.status == 0, done.stderr
    found = [json.loads(path.read_text()) for path in Path("out/runs").glob("*/metrics.json")]
    assert len(found) == 5
    for metrics in found:
        assert 0 < metrics["own"]["tail"]["worst"] <= metrics["own"]["tail"]["mean"] < 1
    assert not list(study.parent.glob("__pycache__"))


def test_without_a_probe_nothing_is_built(
    study: Path, in_this_process: list[Any], sfumato: Callable[..., Any]
) -> None:
    data = study.parent / "my_data.py"
    data.write_text(
        data.read_text().replace("self.size, self.count", "1 / 0; self.size, self.count")
    )
    done = sfumato("check", str(study), "--no-probe")
    assert done.status == 0
    assert "5 methods, 5 runs, no mistakes found" in done.stdout
    done = sfumato("check", str(study))
    assert done.status == 2
    assert (
        "data my_data:Dots: ZeroDivisionError: division by zero (my_data.py, line 12)"
        in done.stderr
    )
    assert sfumato("check", str(study), "--no-probe", "data.sice=3").status == 2
