"""Print the longest sentences and the words to replace in documents, help texts and messages.

Run: python tools/voice.py [--sentences 20]

A place to look: it fails nothing. Documents are README.md, CONTRIBUTING.md and docs/, without code,
tables and links; messages are the texts of `raise` and `warn`, help texts those of options.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# What was written -> what to write.
WORDS = {
    r"for certain|measurabl[ye]|can be told": "significantly",
    r"can(?:'|no)t (?:be told|tell)": "inconclusive",
    r"by the means": "on average (not significant)",
    r"too sure|claims? too much": "overconfident",
    r"too modest|claims? too little": "underconfident",
    r"perfect network|\bfloor\b": "expected for a perfectly calibrated model",
    r"\bmend(?:s|ed|ing)?\b|\brepair(?:s|ed)?\b": "fix, correct, recalibrate",
    r"what it buys|\bbuys\b|must be given up": "gain, trade-off",
    r"\btakes? (?:a|the) loss\b": "use",
    r"whole (?:protocol|size)": "full protocol, full size",
    r"label maps?": "segmentation masks, dense predictions",
    r"\bdamag(?:e|es|ed)\b": "corrupted images, unreadable files",
    r"\bpromise[sd]?\b": "guarantee, violation",
    r"\bparts? of (?:a|the|your|its) own\b|\bown parts?\b": "components",
    r"\bsum(?:s|med)? up\b": "accumulate, running totals",
    r"\bblows?\b|\bcampaigns?\b": "fault injections, stress test",
    r"\bthe house\b|\brooms?\b": "packages (fine in design.md)",
}
LEFT_OUT = re.compile(r"^    .*$|^ *\|.*$|^#.*$|^\[[^]]*\]: .*$|<!--.*?-->", re.M)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


class Sentence(NamedTuple):
    place: str
    text: str

    @property
    def length(self) -> int:
        return len(self.text.split())


def documents() -> Iterator[tuple[str, int, str]]:
    """Each paragraph of the documents with its file and line."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        if "assets" in page.parts:
            continue
        text = re.sub(r"^```.*?^```$", _blank, page.read_text("utf-8"), flags=re.M | re.S)
        text = re.sub(r"`[^`]*`", "X", LINK.sub(r"\1", LEFT_OUT.sub("", text)))
        for found in re.finditer(r"(?:^(?!\s*$).*\n?)+", text, re.M):
            line = text.count("\n", 0, found.start()) + 1
            for item in re.split(r"^\s*(?:-|\d+\.) ", found[0], flags=re.M):
                yield str(page.relative_to(ROOT)), line, item


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def messages() -> Iterator[tuple[str, int, str]]:
    """Each text of a `raise`, a `warn` and an option's help with its file and line."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for value in _said_by(node):
                text = _text_of(value)
                if text:
                    yield str(path.relative_to(ROOT)), value.lineno, text


def _said_by(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return list(node.exc.args)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        helps = [each.value for each in node.keywords if each.arg in ("help", "description")]
        return [*helps, *(node.args[:1] if name == "warn" else [])]
    return []


def _text_of(value: ast.expr) -> str:
    """The words of a literal; what is filled in counts as one word."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(_text_of(each) or "X" for each in value.values)
    if isinstance(value, ast.BinOp):
        return _text_of(value.left) + _text_of(value.right)
    return ""


def sentences(place: str, text: str) -> Iterator[Sentence]:
    for words in re.split(r"(?<!Eq\.)(?<!Fig\.)(?<=[.!?;])\W*\s+", " ".join(text.split())):
        yield Sentence(place, words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sentences", type=int, default=20, help="How many sentences to print.")
    number = parser.parse_args().sentences
    for title, texts in (("Documents", documents()), ("Messages", messages())):
        found = list(texts)
        each = [s for file, line, text in found for s in sentences(f"{file}:{line}", text)]
        over = sum(s.length > 30 for s in each)
        print(f"{title}: {len(each)} sentences, {over} of more than 30 words. The longest:")
        for sentence in sorted(each, key=lambda s: -s.length)[:number]:
            print(f"  {sentence.length:3} words  {sentence.place}  {sentence.text[:90]}")
        print(f"{title}: words to replace")
        for pattern, better in WORDS.items():
            places = [f"{f}:{n}" for f, n, text in found if re.search(pattern, text, re.I)]
            if places:
                shown = ", ".join(places[:4]) + (" ..." if len(places) > 4 else "")
                print(f"  {len(places):3}  {pattern} -> {better}: {shown}")


if __name__ == "__main__":
    main()
