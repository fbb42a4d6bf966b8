"""Text of strangers is escaped for where it goes, and nothing in the package goes round that."""

from __future__ import annotations

import ast
import csv
import html
import io
import re
import sys
import unicodedata
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings, strategies as st
from markdown_it import MarkdownIt
from rich.table import Table
from rich.text import Text

from sfumato._core.text import (
    csv_text,
    html_text,
    latex_row,
    markdown_line,
    markdown_table,
    markdown_text,
    one_line,
    terminal,
    visible,
    visible_content,
    yaml_text,
)

SOURCE = Path(__file__).resolve().parents[2] / "src" / "sfumato"
TITLE = "\x1b]0;taken\x07"
HOSTILE = f"a{TITLE}\x9b2J\u202egpj.exe caf\udce9 \ud800"
SHOWN = r"\x9b2J\u202egpj.exe caf\xe9 \ud800"
# Any text, and above all what ends a string, a cell, a tag or a line in some format.
texts = st.text(
    st.characters() | st.sampled_from("\\`*_[]()<>|~$&#:/!-+=@'\"{}%^.0 \n\t\r\x1b\x9b")
)


def _is_seen(text: str) -> bool:
    text.encode()  # no lone surrogate
    hidden = ("Cc", "Cs", "Zl", "Zp")
    return all(c in "\n\t" or unicodedata.category(c) not in hidden for c in text) and not set(
        text
    ) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\ufeff\uffff")


def test_hidden_characters_become_their_codes() -> None:
    assert visible(HOSTILE) == rf"a\x1b]0;taken\x07{SHOWN}"
    assert visible("Zürich 👩‍🔬 日本\n\tα") == "Zürich 👩‍🔬 日本\n\tα"
    assert visible_content({"\x00": [HOSTILE[-1], 1.5, None]}) == {r"\x00": [r"\ud800", 1.5, None]}


@given(texts)
@example("a\u202eb")
def test_every_format_is_seen(text: str) -> None:
    assert _is_seen(visible(text))
    assert visible(visible(text)) == visible(text)
    for escape in (html_text, markdown_text, markdown_line, yaml_text):
        assert _is_seen(escape(text))
    assert _is_seen(latex_row([text, text]))
    assert _is_seen(csv_text([[text]]))


@given(texts)
def test_html_is_text(text: str) -> None:
    class Reader(HTMLParser):
        tags: tuple[str, ...] = ()
        attributes: tuple[Any, ...] = ()
        seen = ""

        def handle_starttag(self, tag: str, attributes: Any) -> None:
            self.tags, self.attributes = (*self.tags, tag), attributes

        def handle_data(self, data: str) -> None:
            self.seen += data

    reader = Reader()
    reader.feed(f"<p title='{html_text(text)}'>{html_text(text)}</p>")
    reader.close()
    assert (reader.tags, reader.seen) == (("p",), visible(text))
    assert html.unescape(html_text(text)) == visible(text)


def _inline(tokens: Any) -> Iterator[Any]:
    for token in tokens:
        yield token
        yield from _inline(token.children or ())


def _markdown(text: str) -> tuple[set[str], str]:
    found = list(_inline(MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)))
    kinds = {token.type for token in found}
    return kinds, "".join(t.content for t in found if t.type.startswith("text"))


@settings(max_examples=500)
@given(texts)
def test_markdown_is_text(text: str) -> None:
    kinds, seen = _markdown(markdown_line(f"{text}x"))
    assert kinds <= {"paragraph_open", "inline", "text", "text_special", "paragraph_close"}
    assert seen == one_line(f"{text}x")


@settings(max_examples=500)
@given(texts, texts)
def test_markdown_cells_are_text(first: str, second: str) -> None:
    lines = markdown_table(["a", "b"], [[f"x{first}", f"x{second}"]])
    kinds, seen = _markdown("\n".join(lines))
    inside = {kind for kind in kinds if not kind.startswith(("table", "thead", "tbody"))}
    inside -= {f"{tag}_{end}" for tag in ("tr", "th", "td") for end in ("open", "close")}
    assert inside <= {"inline", "text", "text_special"}
    assert seen == f"ab{one_line(f'x{first}')}{one_line(f'x{second}')}"


@pytest.mark.parametrize(
    "text",
    [
        "![x](http://h/p.png)",
        "[x](javascript:1)",
        "<img src=http://h>",
        "<http://h>",
        "https://h/p",
        "www.h.org",
        "[x]: http://h",
        "[1](http://h)",
        "[0.1, 0.2]: http://h",
        "&lt;b>",
        "$x$",
    ],
)
def test_markdown_has_no_links_pictures_or_html(text: str) -> None:
    kinds, seen = _markdown(markdown_line(text))
    assert kinds <= {"paragraph_open", "inline", "text", "text_special", "paragraph_close"}
    assert seen == text
    assert not re.search(r"(?<!\\)\$|https?:/|www\.", markdown_line(text))  # nor on GitHub


def test_markdown_of_ours_is_readable() -> None:
    assert markdown_text("82.0 [−1.2, 83.1] ✓ label_smoothing") == (
        "82.0 [−1.2, 83.1] ✓ label_smoothing"
    )


@given(texts)
def test_latex_is_text(text: str) -> None:
    row = latex_row([text, text])
    assert row.endswith(r" \\")
    bare = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater)\{\}", "", row
    )
    bare = re.sub(r"\$(\\uparrow|\\downarrow|\\checkmark|\\times|-)\$", "", bare[:-3])
    bare = re.sub(r"\\[&%$#_{}]", "", bare)
    assert not set(bare) & set("\\%$#_~^")
    assert bare.count("&") == 1
    for cell in row[:-3].split(" & "):
        assert not cell.lstrip().startswith(("[", "*"))


@given(texts)
def test_csv_is_text(text: str) -> None:
    read = list(csv.reader(io.StringIO(csv_text([[text, 1.5, None]]), newline="")))
    assert read in ([[visible(text), "1.5", ""]], [[f"'{visible(text)}", "1.5", ""]])
    begins_as_formula = (
        read[0][0].lstrip()[:1] in tuple("=+-@＝＋－＠") and read[0][0].strip() != ""
    )
    assert not begins_as_formula or not set(read[0][0]) & set("()|!'\"=@{")


@pytest.mark.parametrize("text", ["=1", "-1+cmd|' /C calc'!A0", " =1", "\t=1", "@x", "-1 (x)"])
def test_formulas_are_text(text: str) -> None:
    assert csv_text([[text]]).strip('"').startswith("'")


@given(texts)
def test_yaml_is_the_same_text(text: str) -> None:
    assert yaml.safe_load(f"a: [{yaml_text(text)}]  # {one_line(text)}") == {"a": [text]}


@given(texts)
def test_the_terminal_gets_what_is_seen(text: str) -> None:
    table = Table(title=Text(text), caption=text.replace("[", ""))
    table.add_column(Text(text))
    table.add_row(Text(text, style="red"))
    for options in ({}, {"force_terminal": True, "color_system": "truecolor"}):
        screen = terminal(file=io.StringIO(), width=60, **options)
        screen.print(table, Text(text), soft_wrap=False)
        screen.print(text, markup=False, highlight=False, soft_wrap=True)
        written = re.sub(r"\x1b\[[\d;]*m", "", screen.file.getvalue())  # its own colours
        assert _is_seen(written)


def test_warnings_and_tracebacks_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    from sfumato._core.text import show_messages_visibly

    kept = warnings.formatwarning, sys.excepthook
    try:
        show_messages_visibly()
        show_messages_visibly()
        assert _is_seen(warnings.formatwarning(HOSTILE, UserWarning, "file", 1))
        sys.excepthook(ValueError, ValueError(HOSTILE), None)
    finally:
        warnings.formatwarning, sys.excepthook = kept
    assert capsys.readouterr().err == f"ValueError: {visible(HOSTILE)}\n"


# What prints, escapes or writes without the doors, and why that place may.
_PRINTS = {
    ("_core/text.py", "print"): "a line that was made visible",
    ("_core/text.py", "stderr.write"): "the door of tracebacks",
    ("_core/text.py", "html"): "the door",
    ("_core/text.py", "csv.writer"): "the door",
    ("_core/text.py", "Console"): "the door",
    ("cli/shared.py", "echo"): "made visible there: files for another program",
    ("_core/files.py", "write_bytes"): "the door",
    ("_core/files.py", "open"): "the door",
    ("corruptions/storage.py", "open"): "inside of the door: writes to its temporary file",
    ("corruptions/storage.py", "write_bytes"): "images, in a folder that is renamed when whole",
    ("data/archives.py", "open"): "files of an archive, in a temporary folder",
    ("engine/runs/directory.py", "open"): "appends a line of JSON an epoch",
    ("engine/training/checkpoint.py", "open"): "tensors, in a folder that is renamed when whole",
    ("integrations/trackers.py", "write_bytes"): "copies into the store of what the door has read",
    ("study/claims.py", "open"): "a claim is there before it has content",
    ("study/claims.py", "write_text"): "JSON, linked into place",
}


def _is_writing(argument: ast.AST) -> bool:
    given = argument.value if isinstance(argument, ast.keyword) else argument
    mode = given.value if isinstance(given, ast.Constant) else None
    return isinstance(mode, str) and re.fullmatch("[wax][bt+]*", mode) is not None


def _round_the_doors(tree: ast.AST) -> Iterator[str]:
    """Each way by which a file prints, or writes text, of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            modules = [alias.name for alias in node.names]
            module = getattr(node, "module", None)
            yield from (["html"] if "html" in (module, *modules) else [])
            if module in ("rich", "rich.console", "rich.progress", "rich.live"):
                yield from ("Console" for name in modules if name in ("Console", "print"))
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if last in ("echo", "secho", "pprint", "Console") or name in ("print", "rich.print"):
            yield last
        elif name in ("csv.writer", "csv.DictWriter"):
            yield name
        elif last in ("write_text", "write_bytes") and "." in name:
            yield last
        elif name.endswith(("stdout.write", "stderr.write")):
            yield ".".join(name.split(".")[-2:])
        elif last == "open":
            yield from ("open" for each in (*node.args, *node.keywords) if _is_writing(each))


def test_nothing_prints_or_escapes_elsewhere() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), way)
        for path in SOURCE.rglob("*.py")
        for way in _round_the_doors(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(_PRINTS)


@pytest.mark.parametrize(
    "code",
    [
        "print(x)",
        "typer.echo(x)",
        "from rich.console import Console",
        "rich.console.Console()",
        "from rich import print",
        "sys.stdout.write(x)",
        "from html import escape",
        "import html",
        "csv.writer(x)",
        "path.write_text(x)",
        "path.open('wb')",
        "open(x, mode='a')",
    ],
)
def test_the_walk_sees(code: str) -> None:
    assert list(_round_the_doors(ast.parse(code)))
