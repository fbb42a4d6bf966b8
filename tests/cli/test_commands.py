"""The command line as typed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from sfumato.cli import app
from sfumato.engine.config.components import COMPONENTS, components
from sfumato.engine.config.kinds import PLURALS, SPEC_KINDS, Kind
from sfumato.study.schema import Section, section_keys, summaries

SMALL = """
name: small
recipe:
  data: {name: scenes, train: 64, validation: 20, test: 30, size: 16}
  model: {name: resnet, depth: 8, width: 4}
  train: {epochs: 1, batch_size: 32}
  evaluate: {resamples: 20}
methods:
  plain: {}
"""
COMMANDS: list[Any] = list(vars(get_command(app))["commands"].values())


def test_as_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sfumato", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("sfumato 0.")


def test_run_then_report(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    done = sfumato("run", "small.yaml", "--quiet")
    assert done.status == 0, done.stderr
    assert "plain, seed 0: training" in done.stdout
    assert (tmp_path / "runs/small/report/index.html").exists()
    again = sfumato("run", "small.yaml")
    assert "finished before" in again.stdout
    assert "Reading the study\nLooking at data" in again.stderr  # piped, it is not silent
    assert again.stdout.rstrip().endswith(
        "Next: sfumato runs runs/small lists the runs that compare takes."
    )
    report = sfumato("report", "runs/small", "--out", "page")
    assert report.status == 0
    assert (tmp_path / "page/index.html").exists()
    for extra, message in (
        (("--out", "small.yaml"), "small.yaml is a file; a page wants a folder (--format csv"),
        (("--format", "latex", "--out", "page"), "page: is a folder; name a file in it"),
    ):
        refused = sfumato("report", "runs/small", *extra)
        assert (refused.status, refused.stdout) == (2, "")
        assert message in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "small.yaml"), "small.yaml is a file; --out wants a folder"),
        (("--out", "small.yaml/runs", "--dry-run"), "small.yaml is a file; --out wants a folder"),
        (("--epochs", "2", "train.epochs=3"), "--epochs and train.epochs=3 both set"),
        (("--seeds", "1", "seeds=[2]"), "--seeds and seeds=[2] both set seeds: keep one"),
    ],
)
def test_refused_before_anything_is_looked_at(
    tmp_path: Path, sfumato: Callable[..., Any], arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    done = sfumato("run", "small.yaml", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert message in done.stderr


def test_check_notes_methods_that_are_the_same(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    (tmp_path / "small.yaml").write_text(f"{SMALL}  again: {{loss: cross_entropy}}\n")
    done = sfumato("check", "small.yaml", "--no-probe")
    assert done.status == 0, done.stderr
    assert "Note: 'plain' and 'again' are the same method" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "absent.yaml"), "absent.yaml: no such study file"),
        (("report", "."), "holds no study.json"),
        (("list", "datasets"), "unknown 'datasets' (did you mean 'data'?). Choose"),
        (("list", "da'ta"), "unknown \"da'ta\" (did you mean 'data'?). Choose"),
        (("list", "data", "scens"), "unknown data 'scens' (did you mean 'scenes'?). Choose"),
        (("corrupt", "a", "b", "--layout", "folder"), "(did you mean 'folders'?). Choose"),
    ],
)
def test_mistakes_are_one_message(
    sfumato: Callable[..., Any], arguments: tuple[str, ...], message: str
) -> None:
    done = sfumato(*arguments)
    assert done.status == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_list_shows_every_name_with_a_line(sfumato: Callable[..., Any]) -> None:
    done = sfumato("list")
    assert done.status == 0, done.stderr
    for part in COMPONENTS:
        assert part.name in done.stdout or part.kind == "predict"
    assert "digest" not in done.stdout
    assert "partial(" not in done.stdout
    for kind in SPEC_KINDS:
        assert all(line.endswith(".") for line in summaries(kind).values()), kind


@pytest.mark.parametrize("kind", PLURALS)
def test_list_takes_every_kind(kind: Kind, sfumato: Callable[..., Any]) -> None:
    done = sfumato("list", PLURALS[kind])
    assert done.status == 0, done.stderr
    assert all(name in done.stdout for name in components(kind))


def test_list_shows_the_options_of_a_component(sfumato: Callable[..., Any]) -> None:
    done = sfumato("list", "losses", "acls")
    assert done.status == 0, done.stderr
    assert re.search(r"^margin +10 +\S", done.stdout, re.MULTILINE)
    assert "digest" not in sfumato("list", "models", "resnet").stdout
    for family in ("torchvision:NAME", "torchvision:resnet18"):
        assert "image_size" in sfumato("list", "models", family).stdout
    unknown = sfumato("list", "losses", "CE")
    assert unknown.status == 2
    assert "did you mean 'cross_entropy'?" in unknown.stderr


@pytest.mark.parametrize("section", ["train", "evaluate", "predict"])
def test_list_shows_the_keys_of_a_section(section: Section, sfumato: Callable[..., Any]) -> None:
    done = sfumato("list", section)
    assert done.status == 0, done.stderr
    for key, _, meaning in section_keys(section):
        assert key in done.stdout
        assert meaning


def test_preview_writes_a_picture(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    done = sfumato("list", "data", "--preview", "scenes", "--out", "grid.png")
    assert done.status == 0, done.stderr
    assert (tmp_path / "grid.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.name)
def test_help_has_examples_that_can_be_copied(
    command: Any, sfumato: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = sfumato(command.name, "--help").stdout
    examples = [line.strip(" •") for line in shown.splitlines() if "•" in line]
    assert examples
    assert examples == re.findall("- `(.+)`", command.callback.__doc__)
    assert all(f"{line} ".startswith(f"sfumato {command.name} ") for line in examples)


@pytest.mark.parametrize(
    ("arguments", "page"),
    [(("run", "absent.yaml"), "docs/studies.md"), (("audit", "README"), "docs/audit.md")],
)
def test_a_terminal_is_told_the_page_about_a_mistake(
    tmp_path: Path,
    sfumato: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    page: str,
) -> None:
    (tmp_path / "README").write_text("no predictions")
    assert page not in sfumato(*arguments).stderr
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    done = sfumato(*arguments)
    assert done.status == 2
    assert page in done.stderr


def test_alone_it_greets_with_three_things_to_try(sfumato: Callable[..., Any]) -> None:
    done = sfumato()
    assert done.status == 0
    for command in ("sfumato quickstart", "sfumato new", "sfumato audit", "sfumato --help"):
        assert command in done.stdout


@pytest.mark.slow
def test_tiny_quickstart_names_report_and_next_step(
    tmp_path: Path, sfumato: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    done = sfumato("quickstart", "--tiny", "--open", "--quiet")
    assert done.status == 0, done.stderr
    page = tmp_path / "quickstart-tiny/report/index.html"
    assert page.exists()
    assert f"Report: {page}" in done.stdout
    assert "decide nothing" in done.stdout
    assert "Next: sfumato new" in done.stdout
    assert opened == [page.as_uri()]
