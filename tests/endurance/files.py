"""Damaged and hostile files: never a traceback, never a file outside, never much memory.

A file is written as its owner would, damaged by a number, and handed to whoever reads it. What may
come is a result, or one of the errors that the command line shows as a message.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.endurance.campaign import BrokenPromiseError
from tests.endurance.file_kinds import BOMBS, KINDS, Kind

MOST_MEMORY = 1 << 20  # kilobytes by which the process may grow
HOSTILE = (b"\x00" * 64, b"\xff\xfe\xfd", b"../../../../tmp/out", b"<script>x</script>", b"'\"")
TOKENS = (b"nan", b"-inf", b"1e999", b"null", b"true", b"[[[[", b"{}", b"&x;", b"9" * 400, b"-1")
VALUES = (None, True, -1, 10**30, 1e308, float("nan"), "", "<b>x", "../..", [], {}, [[0]], {"": 0})
NAMES = ("given", "given", "<script>x<", "[red]a[nonsense]", "-q", "a b\n", "%s{x}")


def damaged(content: bytes, dice: random.Random) -> bytes:
    """One to four wounds: bytes flipped, cut, doubled, swapped, or strange ones put in."""
    for _ in range(dice.choice([1, 1, 2, 4])):
        place = dice.randrange(len(content) + 1)
        end = min(len(content), place + dice.choice([1, 4, 30, 300]))
        how = dice.randrange(7)
        if how == 0:
            flipped = bytes(byte ^ (1 << dice.randrange(8)) for byte in content[place:end])
            content = content[:place] + flipped + content[end:]
        elif how == 1:
            content = content[:place]
        elif how == 2:
            content = content[:place] + content[end:]
        elif how == 3:
            content = content[:end] + content[place:end] * dice.choice([1, 50]) + content[end:]
        elif how == 4:
            content = content[place:] + content[:place]
        else:
            strange = dice.choice(HOSTILE + TOKENS)
            content = content[:place] + strange + content[end:]
    return content


def rewritten(content: bytes, dice: random.Random) -> bytes | None:
    """Well-formed JSON that says something else in one place; None where it is no JSON."""
    lines = content.decode(errors="replace").splitlines()
    for text in ("\n".join(lines), dice.choice(lines or [""])):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        return json.dumps(_changed(value, dice)).encode()
    return None


def _changed(value: Any, dice: random.Random) -> Any:
    """The value with one place in it replaced or taken out."""
    if not isinstance(value, dict | list) or not value or dice.random() < 0.15:
        return dice.choice(VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = dice.choice(keys)
    changed = copy.copy(value)
    if dice.random() < 0.2:
        del changed[key]
    else:
        changed[key] = _changed(value[key], dice)
    return changed


def _attacked(path: Path, dice: random.Random) -> bytes:
    """Damage the file, put something hostile in its place, or a link; gives its content."""
    how = dice.random()
    if how < 0.05:
        path.write_bytes(BOMBS[dice.choice(sorted(BOMBS))]())
    elif how < 0.08:
        path.unlink()
        path.symlink_to(dice.choice(["../canary", path.name, ".", "/nowhere", "/dev/null"]))
        return b"a link"
    else:
        content = path.read_bytes()
        path.write_bytes((how < 0.4 and rewritten(content, dice)) or damaged(content, dice))
    return path.read_bytes()


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """With this as the working directory, where commands write by default."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class Files:
    """The attack: trial N damages a file of one kind, or replaces it, by the dice of N."""

    name = "files"

    def trial(self, number: int) -> dict[str, int]:
        dice = random.Random(number)
        name = sorted(KINDS)[number % len(KINDS)]
        kind = KINDS[name]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with tempfile.TemporaryDirectory() as top:
            inner = Path(top) / "inner"
            inner.mkdir()
            canary = Path(top) / "canary"
            canary.write_text("untouched")
            path = inner / f"{dice.choice(NAMES)}{kind.suffix}"
            with _inside(inner):
                kind.write(path)
                kept = _attacked(path, dice)
                self._read(kind, path, name, number, kept)
            found = sorted(os.listdir(top))
            if found != ["canary", "inner"] or canary.read_text() != "untouched":
                raise BrokenPromiseError(f"{name}, trial {number}: {found} were touched outside")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if grown > MOST_MEMORY:
            raise BrokenPromiseError(f"{name}: the process grew by {grown >> 10} MB")
        return {name: 1}

    @staticmethod
    def _read(kind: Kind, path: Path, name: str, number: int, kept: bytes) -> None:
        try:
            kind.read(path)
        except Exception as error:
            example = kept if len(kept) < 400 else kept[:400] + b"..."
            raise BrokenPromiseError(
                f"{name}, trial {number}: {type(error).__name__}: {error}\n{example!r}"
            ) from error


FILES = Files()
