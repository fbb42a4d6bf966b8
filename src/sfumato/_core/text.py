r"""Text that others wrote, escaped for where it goes: terminal, HTML, Markdown, LaTeX, CSV, YAML.

Nothing else in the package escapes or prints, so that a name can't forget it on some way out.
Every function begins with `visible`: a character that no reader sees becomes its code, such as
`\x1b`, and so does a byte that is no UTF-8 (`\xe9`), which Python keeps as a lone surrogate.
"""

from __future__ import annotations

import csv
import html
import inspect
import io
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


# C0 besides tab and line feed, DEL, C1; marks that reorder or hide text; lone surrogates;
# noncharacters. U+200C and U+200D, which join letters and emoji, stay.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e0fff"
    + "".join(chr(0x10000 * plane + last) for plane in range(1, 17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
_LONGEST = 4_000  # of a message
_LONG_WORD = re.compile(r"[^\s/\\]{256,}")  # longer than the name of any file or folder
_MARKDOWN = re.compile(
    r"[\\`*|~$]"
    r"|\[(?![0-9+\-−., %:]*\](?![(\[:]))"  # an interval such as [0.1, 0.2] is no link
    r"|(?<=[(\[:])\]|(?<![0-9+\-−., %:])\]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # label_smoothing is one word
    r"|:(?=//)|(?<=www)\.",
    re.IGNORECASE,
)
_MARKDOWN_BLOCK = re.compile(r"[#>+\-=]|\d{1,9}(?=[.)])")
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "✓": r"$\checkmark$",
    "✗": r"$\times$",
    "\u2212": "$-$",
}
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
# Digits, words and signs: a formula that does something needs brackets, a bar or another sign.
_SIGNED_NUMBER = re.compile(r"[+-]\.?\d[\w.,:%\[\] ✓✗?+\-−]*")


def visible(text: str) -> str:
    r"""Return text in which every hidden character is its code; line feeds and tabs stay.

    Example:
        >>> visible("caf\udce9 \x1b[2J")
        'caf\\xe9 \\x1b[2J'
    """
    return _HIDDEN.sub(_code, text)


def _code(found: re.Match[str]) -> str:
    number = ord(found[0])
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a name that is no UTF-8
        number -= 0xDC00
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def surrogates_as_codes(text: str) -> str:
    """Return text whose lone surrogates, which UTF-8 can't hold, are their codes."""
    return re.sub("[\ud800-\udfff]", _code, text)


def brief(message: str) -> str:
    """Shorten what a message quotes of a stranger's file: itself, and words that name no file.

    Example:
        >>> brief(f"a.json: no class {'x' * 5000} in it")
        'a.json: no class xxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxx in it'
    """
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2]}...{message[-_LONGEST // 2 :]}"
    return _LONG_WORD.sub(lambda found: f"{found[0][:20]}...{found[0][-20:]}", message)


def reason(error: Exception) -> str:
    """Return what an error says, or its kind where it says nothing."""
    return str(error) or type(error).__name__


def one_line(text: str) -> str:
    """Return visible text without line breaks and tabs."""
    return visible(" ".join(text.split()))


def print_line(line: str) -> None:
    """Print a line, visibly."""
    print(visible(line))


def print_place(what: str, path: Path) -> None:
    """Print where something was written; a path is text, whatever brackets it holds."""
    from rich.text import Text

    terminal().print(Text.assemble(f"{what}: ", (str(path), "bold")), soft_wrap=True)


def visible_content(content: Any) -> Any:
    """Return plain data, as JSON has it, with every text in it visible."""
    if isinstance(content, str):
        return visible(content)
    if isinstance(content, Mapping):
        return {visible(str(key)): visible_content(each) for key, each in content.items()}
    if isinstance(content, list | tuple):
        return [visible_content(each) for each in content]
    return content


def html_text(text: str) -> str:
    """Escape text for HTML, between tags and inside of quoted attributes."""
    return html.escape(visible(text), quote=True)


def markdown_text(text: str) -> str:
    r"""Escape text inside of a line of Markdown: no link, picture, HTML or emphasis is in it.

    Example:
        >>> markdown_text("![a](http://b) 0.5 [0.4, 0.6]")
        '!\\[a\\](http\\://b) 0.5 [0.4, 0.6]'
    """
    escaped = _MARKDOWN.sub(r"\\\g<0>", one_line(text))
    return re.sub(r"&(?=[#\w])", "&amp;", escaped).replace("<", "&lt;")


def markdown_line(text: str) -> str:
    """Escape text that is a line of Markdown: it is no heading, list, quotation or rule either."""
    escaped = markdown_text(text)
    start = _MARKDOWN_BLOCK.match(escaped)
    place = start.end() if start is not None and start[0].isdecimal() else 0
    return escaped if start is None else f"{escaped[:place]}\\{escaped[place:]}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first column is a name and whose others are numbers."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(markdown_text, cells)) + " |"

    rule = "| --- |" + " ---: |" * (len(head) - 1)
    return [line(head), rule, *map(line, rows)]


def latex_row(cells: Sequence[str]) -> str:
    r"""Return a row of a LaTeX table.

    A cell that begins with `[` or `*` would be read as an argument of the `\\` before it.
    """
    return " & ".join(map(_latex_cell, cells)) + r" \\"


def _latex_cell(text: str) -> str:
    escaped = "".join(_LATEX.get(each, each) for each in one_line(text))
    return f"{{}}{escaped}" if escaped.lstrip().startswith(("[", "*")) else escaped


def csv_text(rows: Iterable[Sequence[str | float | None]]) -> str:
    """Return CSV in which no text is a formula: an apostrophe keeps a spreadsheet from running it.

    Example:
        >>> csv_text([["=1+1", "-0.5", 2.0, None]])
        "'=1+1,-0.5,2.0,\\n"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow([_csv_cell(each) if isinstance(each, str) else each for each in row])
    return text.getvalue()


def _csv_cell(text: str) -> str:
    shown = visible(text)
    is_formula = shown.lstrip().startswith(_FORMULA) and not _SIGNED_NUMBER.fullmatch(shown)
    return f"'{shown}" if is_formula else shown


def yaml_text(text: str) -> str:
    r"""Return a YAML string, in quotes, that is read as the same text, whatever it holds.

    Example:
        >>> yaml_text('a "b" \x7f')
        '"a \\"b\\" \\x7F"'
    """
    import yaml

    width = float("inf")
    quoted = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=width).strip()
    # YAML allows some characters that reorder or hide what is seen.
    return _HIDDEN.sub(lambda found: f"\\U{ord(found[0]):08X}", quoted)


def terminal(*, stderr: bool = False, **options: Any) -> Console:
    """Return a console whose every text is made visible, whatever prints it."""
    return _console_class()(stderr=stderr, **options)


@cache
def _console_class() -> type[Console]:
    """The class, made when it is needed: a plain install has no rich."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class VisibleConsole(Console):
        """Makes texts visible before they are laid out, and once more as they are written."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            if isinstance(renderable, Text) and _HIDDEN.search(renderable.plain):
                renderable = renderable.blank_copy(visible(renderable.plain))  # without its colours
            for segment in super().render(renderable, options):
                if segment.control is None and _HIDDEN.search(segment.text):
                    segment = Segment(visible(segment.text), segment.style)
                yield segment

    return VisibleConsole


def show_messages_visibly() -> None:
    """Make the warnings and tracebacks of this process visible: they quote names of files."""
    plain = inspect.unwrap(warnings.formatwarning)

    @wraps(plain)
    def formatted(*arguments: Any, **options: Any) -> str:
        return visible(plain(*arguments, **options))

    def show(*found: Any) -> None:
        sys.stderr.write(visible("".join(traceback.format_exception(*found))))

    warnings.formatwarning = formatted
    sys.excepthook = show


@dataclass(frozen=True)
class Bar:
    """Handle on a running bar; silent when made without one."""

    progress: Progress | None = None
    task: TaskID | None = None

    def advance(self, note: str | None = None) -> None:
        """One step done; `note` replaces the text behind the bar."""
        if self.progress is not None and self.task is not None:
            self.progress.advance(self.task)
            if note is not None:
                self.progress.update(self.task, note=note)


@contextmanager
def progress_bar(label: str, total: int, *, show: bool = True) -> Iterator[Bar]:
    """A bar on standard error that vanishes when done, or a line where that is no terminal.

    Nothing where `show` is false.
    """
    screen = terminal(stderr=True) if show else None
    if screen is None or not (screen.is_terminal or screen.is_jupyter):
        if screen is not None:
            screen.print(f"{label[:1].upper()}{label[1:]}", markup=False, soft_wrap=True)
        yield Bar()
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", style="dim", markup=False),
    )
    with progress.Progress(*columns, console=screen, transient=True) as found:
        yield Bar(found, found.add_task(label, total=total, note=""))
