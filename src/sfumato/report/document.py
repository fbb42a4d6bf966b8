"""The frame of every page: one self-contained file, light or dark as the reader likes it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from sfumato._core.text import html_text, visible_content


def document(title: str, sections: Iterable[str]) -> str:
    """A whole page; `title` is escaped here, `sections` are finished HTML."""
    return (
        f"{head(title)}"
        f"<body><main><h1>{html_text(title)}</h1>{''.join(sections)}</main></body></html>\n"
    )


def head(title: str, *, style: str = "", script: str | None = None) -> str:
    """Return all before the body, with a content security policy, the same for every page.

    Nothing is loaded from elsewhere, and no script runs but `script`, letter for letter: a name
    that slipped through as markup would still do nothing.
    """
    digest = base64.b64encode(hashlib.sha256((script or "").encode()).digest()).decode()
    scripts = "'none'" if script is None else f"'sha256-{digest}'"
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:"
    )
    shared = resources.files("sfumato.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html_text(title)}</title><style>{shared}{style}</style></head>"
    )


def asset(name: str) -> str:
    """A script or a style sheet of the package."""
    place = resources.files("sfumato.report").joinpath("assets")
    return place.joinpath(name).read_text(encoding="utf-8")


def script_of(names: Iterable[str]) -> str:
    """Several scripts as one, in a scope of its own, without indentation and comments."""
    lines = (line.strip() for name in names for line in asset(name).splitlines())
    kept = (line for line in lines if not line.startswith("//"))
    return '(() => {\n"use strict";\n' + "\n".join(kept) + "\n})();\n"


def embedded(content: Mapping[str, Any]) -> str:
    """JSON that can't end the script element that holds it."""
    shown = visible_content(content)
    text = json.dumps(shown, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def section(title: str, content: str) -> str:
    """A titled part of a page; `title` is escaped here, `content` is finished HTML."""
    return f"<section><h2>{html_text(title)}</h2>{content}</section>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the row; cells are escaped, a second line is set small."""
    heads = "".join(f"<th scope='col'>{html_text(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th scope='row'>{html_text(row[0])}</th>"
        + "".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    inside = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f"<div class='wide'><table>{inside}</table></div>"


def _cell(text: str) -> str:
    first, _, second = text.partition("\n")
    small = f"<br><span class='note'>{html_text(second)}</span>" if second else ""
    return html_text(first) + small
