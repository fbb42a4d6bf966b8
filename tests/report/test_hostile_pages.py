"""Names from strangers' files stay text: in every page, in a real browser, and on the terminal."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

import sfumato
from sfumato._core.text import visible
from sfumato.auditing.files import read_predictions
from sfumato.auditing.judge import audit
from sfumato.auditing.page import write_audit
from sfumato.report import (
    compare_methods,
    read_studies,
    to_csv,
    to_latex,
    to_markdown,
    write_report,
)
from sfumato.report.document import document
from sfumato.report.export import results_tables
from sfumato.report.page import write_analysis_page

EVIL = "<svg onload=document.title='taken'>"
MARKUP = "[red]a[/red] [/nonsense]"


def _predictions(folder: Path, name: str = EVIL, **extra: Any) -> Path:
    random_numbers = np.random.default_rng(0)
    logits = random_numbers.normal(size=(60, 3)).astype(np.float32)
    path = folder / f"{name}.npz"
    labels = random_numbers.integers(3, size=60)
    np.savez(path, logits=logits, labels=labels, **extra)
    return path


def _audit_page(folder: Path, make_study: Callable[..., Path]) -> Path:
    arrays = {"classes": np.array([EVIL, "b", "c"]), "group": np.array([EVIL, "day"] * 30)}
    file = read_predictions(_predictions(folder, **arrays))
    return write_audit(audit([file, file], [file, file], resamples=5), folder / "audit")


def _analysis_page(folder: Path, make_study: Callable[..., Path]) -> Path:
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJg"
        "gg=="
    )
    (folder / "odd.png").write_bytes(pixel)
    section = {"name": EVIL, "caption": EVIL, "picture": "odd.png", "results": {EVIL: {}}}
    content = {"titles": [EVIL], "summary": {EVIL: {EVIL: 1.0}}, "sections": [section]}
    (folder / "analysis.json").write_text(json.dumps(content))
    return write_analysis_page(folder)


def _study_page(folder: Path, make_study: Callable[..., Path]) -> Path:
    study = make_study({"plain": 0.0, EVIL: 0.01}, name="evil", seeds=(0, 1))
    index = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps({**index, "title": EVIL}))
    return write_report(study)


PAGES = [_audit_page, _analysis_page, _study_page]


@pytest.mark.parametrize("write", PAGES)
def test_no_name_becomes_markup(
    write: Callable[..., Path], tmp_path: Path, make_study: Callable[..., Path]
) -> None:
    page = write(tmp_path, make_study).read_text()
    assert EVIL not in page
    assert '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';' in page


@pytest.mark.parametrize("write", PAGES)
def test_nothing_runs_in_a_browser(
    write: Callable[..., Path], tmp_path: Path, make_study: Callable[..., Path], browser: Any
) -> None:
    browser.get(write(tmp_path, make_study).as_uri())
    assert browser.title != "taken"
    assert browser.get_log("browser") == []  # nor was anything refused by the policy
    assert not browser.find_elements("css selector", "[onload]")
    assert EVIL in browser.find_element("tag name", "body").get_attribute("textContent")
    broken = "return [...document.images].filter(image => !image.naturalWidth).length"
    assert browser.execute_script(broken) == 0


def test_the_policy_stops_what_was_not_escaped(tmp_path: Path, browser: Any) -> None:
    page = tmp_path / "page.html"
    page.write_text(document("calm", [EVIL, "<script>document.title = 'taken'</script>"]))
    browser.get(page.as_uri())
    assert browser.title == "calm"
    assert len(browser.get_log("browser")) == 2


def test_every_page_is_framed_in_one_place() -> None:
    package = Path(sfumato.__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    framed = [path.name for path, text in texts.items() if re.search("<!doctype", text, re.I)]
    assert framed == ["document.py"]


def test_terminal_tables_show_brackets_as_they_are(make_study: Callable[..., Path]) -> None:
    study = make_study({"plain": 0.0, MARKUP: 0.01}, name="s", seeds=(0, 1))
    index = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps({**index, "title": f"title {MARKUP}"}))
    console = Console(width=100, record=True)
    for table in results_tables(compare_methods(read_studies([study]))):
        console.print(table)
    assert f"title {MARKUP}" in console.export_text()


def test_command_line_shows_brackets_as_they_are(
    tmp_path: Path, sfumato: Callable[..., Any]
) -> None:
    name = "[red]a[bold]"
    path = _predictions(tmp_path, name=name, group=np.array([name] * 60))
    done = sfumato("audit", path.name, path.name, "--resamples", "5", "--out", f"out-{name}")
    assert done.status == 0, done.stderr
    assert f"{name} against {name}" in done.stdout
    assert f"out-{name}/index.html" in done.stdout


TITLE = "\x1b]0;taken\x07"
HOSTILE = f"a{TITLE}\x9b2J\u202egpj.exe caf\udce9 \ud800"


def _is_seen(text: str) -> bool:
    return visible(text) == text


def test_names_of_files_reach_no_terminal_raw(
    tmp_path: Path, sfumato: Callable[..., Any], make_study: Callable[..., Path]
) -> None:
    numbers = np.random.default_rng(0)
    file = tmp_path / f"{HOSTILE[:-1]}.npz"
    names = np.array([f"{TITLE}{place}" for place in range(3)])
    labels = numbers.integers(3, size=90)
    np.savez(file, logits=numbers.normal(size=(90, 3)), labels=labels, classes=names)
    study = make_study({"plain": 0.0, f"x{HOSTILE}": 0.02}, name="s", seeds=(0, 1))
    for arguments in (
        ("audit", file.name, "--resamples", "5", "--target-risk", "0.2"),
        ("audit", f"{HOSTILE}.npz"),
        ("calibrate", file.name, "--folds", "2", "--methods", "temperature"),
        ("report", str(study)),
        *(("report", str(study), "--format", form) for form in ("csv", "markdown", "latex")),
        ("check", HOSTILE),
        ("list", HOSTILE),
        ("run", "s.yaml", "--only"),
        (HOSTILE,),
    ):
        done = sfumato(*arguments)
        assert "Traceback" not in done.stderr
        assert _is_seen(done.stdout + done.stderr), arguments
    assert done.status == 2
    assert "names no file" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("key", ["group", "image"])
def test_names_in_json_lines_may_be_no_text(
    tmp_path: Path, sfumato: Callable[..., Any], key: str
) -> None:
    rows = [
        {"label": at % 2, "probs": [0.7, 0.3], key: f"\ud800{at % 4}", "index": at}
        for at in range(40)
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for workers in ("1", "2"):
        done = sfumato("audit", "p.jsonl", "--resamples", "5", "--quiet", "--workers", workers)
        assert done.status == 0, done.stderr
        assert _is_seen(done.stdout)
        (tmp_path / "audit" / "index.html").read_text(encoding="utf-8")


def test_exports_of_hostile_names(make_study: Callable[..., Path]) -> None:
    names = ("[5cm]x", "*x", "![x](http://h)", "<b>", HOSTILE)
    findings = compare_methods(
        read_studies([make_study({"plain": 0.0, **dict.fromkeys(names, 0.02)}, noise=0.0)])
    )
    markdown, latex = to_markdown(findings), to_latex(findings)
    for text in (markdown, latex, to_csv(findings)):
        assert _is_seen(text)
    page = MarkdownIt("commonmark").enable("table").render(markdown)
    assert not re.search("<(img|a|b)[ >]", page)
    assert not [line for line in latex.splitlines() if line.startswith(("[", "*"))]
    assert "{}[5cm]x &" in latex
