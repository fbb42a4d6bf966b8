"""The site's own files: what its pages link to, and that it asks no other host for anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(set(DOCS.rglob("*.md")) - set((DOCS / "assets").rglob("*.md")))
ASSETS = [path for path in (DOCS / "assets").rglob("*") if path.suffix in (".css", ".js")]


def pages(entry: Any) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in pages(part)]


def test_every_document_has_its_place() -> None:
    """A new page of docs/ needs a line under `nav` of mkdocs.yml."""
    named = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    assert len(named) == len(set(named))
    assert {path.relative_to(DOCS).as_posix() for path in PAGES} <= set(named)


def test_every_page_begins_with_its_title() -> None:
    for path in PAGES:
        assert path.read_text(encoding="utf-8").startswith("# "), path.name


@pytest.mark.parametrize("path", ASSETS, ids=lambda path: path.name)
def test_assets_load_nothing_from_other_hosts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?:url\(|src=|import |@import )[\"']?https?://[^)\"']+", text) == []


WITHOUT_LIBRARIES = """
import runpy, sys, types

sys.modules["mkdocs.structure.files"] = types.SimpleNamespace(File=None)
hooks = runpy.run_path("docs/site_hooks.py")
pages = [hooks["api_page"](*each) for each in hooks["public_names"]().items()]
assert "::: sfumato.integrations.lightning.EvaluationCallback" in "".join(pages)
assert "::: sfumato.labels.acls.acls_loss" in "".join(pages)
"""


def test_api_pages_need_no_library() -> None:
    """Neither torch nor what we integrate with: `-I -S` hides all that is installed."""
    command = [sys.executable, "-I", "-S", "-c", WITHOUT_LIBRARIES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_builds_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("mkdocs is not installed: python3 -m pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=settings
    )
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<title>" in text
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=\"(https?:[^\"]+)", text)
        loaded += re.findall(r"<link[^>]*stylesheet[^>]*href=\"(https?:[^\"]+)", text)
        assert loaded == [], page.name
