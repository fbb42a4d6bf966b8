"""When a page is opened: on request, or where somebody is there to look at it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sfumato.cli.studies import open_page


@pytest.mark.parametrize(
    ("wanted", "display", "terminal", "opens"),
    [
        (True, "", False, True),
        (False, ":0", True, False),
        (None, ":0", True, True),
        (None, "", True, False),
        (None, ":0", False, False),
    ],
)
def test_pages_are_opened_where_there_is_a_desktop(
    monkeypatch: pytest.MonkeyPatch, wanted: bool | None, display: str, terminal: bool, opens: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    open_page(Path("report") / "index.html", wanted)
    assert bool(opened) == opens
