"""Damaged and hostile files: never a traceback, never a file outside, never much memory.

A file is written as its owner would, damaged by a number, and handed to whoever reads it. What may
come is a result, or one of the errors that the command line shows as a message.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from sfumato.cli import main
from sfumato.data.annotations import read_coco, read_voc
from sfumato.data.archives import read_members
from sfumato.engine.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sfumato.models.weights import read_weights
from sfumato.study.config import load_study, plan
from tests.endurance.campaign import BrokenPromiseError

MOST_MEMORY = 1 << 20  # kilobytes by which the process may grow
HOSTILE = (b"\x00" * 64, b"\xff\xfe\xfd", b"../../../../tmp/out", b"<script>x</script>", b"'\"")
TOKENS = (b"nan", b"-inf", b"1e999", b"null", b"true", b"[[[[", b"{}", b"&x;", b"9" * 400, b"-1")


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Args:
        suffix: of its name.
        write: as its owner would.
        read: as we do; errors that are messages are caught in it.
    """

    suffix: str
    write: Callable[[Path], None]
    read: Callable[[Path], None]


def _command(*arguments: str) -> Callable[[Path], None]:
    """The command line in this process; what it shows as a message ends it with SystemExit."""

    def read(path: Path) -> None:
        words = [path.as_posix() if word == "FILE" else word for word in arguments]
        silent = io.StringIO()
        with (
            mock.patch.object(sys, "argv", ["sfumato", *words]),
            contextlib.redirect_stdout(silent),
            contextlib.redirect_stderr(silent),
            contextlib.suppress(SystemExit),
        ):
            main()
        if "Traceback" in silent.getvalue():
            raise AssertionError(silent.getvalue())

    return read


def _library(function: Callable[[Path], object]) -> Callable[[Path], None]:
    """A reader of ours, whose documented errors are these."""

    def read(path: Path) -> None:
        try:
            found = function(path)
            if isinstance(found, Iterator):
                for _ in found:
                    pass
        except UnicodeError:
            raise
        except (ValueError, OSError):
            pass

    return read


def _predictions() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4), 30)
    return probs.astype(np.float32), rng.integers(0, 4, 30)


def _npz(path: Path) -> None:
    probs, labels = _predictions()
    np.savez_compressed(path, probs=probs, labels=labels)


def _csv(path: Path) -> None:
    probs, labels = _predictions()
    lines = [",".join(map(str, [*row, label])) for row, label in zip(probs, labels, strict=True)]
    path.write_text("\n".join(["p0,p1,p2,p3,label", *lines]))


def _json_lines(path: Path) -> None:
    probs, labels = _predictions()
    rows = zip(probs.tolist(), labels.tolist(), strict=True)
    path.write_text("\n".join(json.dumps({"probs": row, "label": label}) for row, label in rows))


def _parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    probs, labels = _predictions()
    columns = {f"p{k}": probs[:, k] for k in range(4)}
    parquet.write_table(pyarrow.table({**columns, "label": labels}), path)


def _study(path: Path) -> None:
    path.write_text(
        "name: tried\nseeds: [0, 1]\nrecipe:\n  data: {name: scenes, train: 20, test: 10}\n"
        "  model: {name: resnet, depth: 8}\n  train: {epochs: 1, milestones: []}\n"
        "methods:\n  CE: {}\n  ACLS: {loss: {name: acls, margin: 6.0}}\n"
    )


def _read_study(path: Path) -> object:
    return plan(load_study(path))


def _safetensors(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, path)


def _pickled(path: Path) -> None:
    torch.save({"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, path)


def _coco(path: Path) -> None:
    image = {"id": 1, "file_name": "a.png", "width": 8, "height": 8}
    box = {"id": 1, "image_id": 1, "category_id": 2, "bbox": [1, 1, 4, 4]}
    category = {"id": 2, "name": "cat"}
    content = {"images": [image], "annotations": [box], "categories": [category]}
    path.write_text(json.dumps(content))


def _voc(path: Path) -> None:
    corners = "".join(f"<{name}>{n}</{name}>" for n, name in enumerate(("xmin", "ymin")))
    corners += "<xmax>5</xmax><ymax>6</ymax>"
    path.write_text(
        "<annotation><filename>a.png</filename><size><width>8</width><height>8</height></size>"
        f"<object><name>cat</name><bndbox>{corners}</bndbox></object></annotation>"
    )


def _read_coco(path: Path) -> object:
    (path.parent / "a.png").touch()
    return read_coco(path, path.parent)


def _read_voc(path: Path) -> object:
    (path.parent / "given.png").touch()
    return read_voc(path.parent, path.parent)


def _tar(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name in ("train/a/1.txt", "train/b/2.txt"):
            content = io.BytesIO(b"some words\n" * 5)
            entry = tarfile.TarInfo(name)
            entry.size = len(content.getvalue())
            archive.addfile(entry, content)


def _state(path: Path) -> None:
    """A checkpoint's `state.pt`, with the rest of its folder beside it."""
    folder = path.parent / "checkpoint"
    weights = {"weight": torch.ones(3, 4)}
    save_checkpoint(folder, Checkpoint(1, weights, {}, {}, {}))
    (folder / "state.pt").replace(path)


def _read_state(path: Path) -> object:
    folder = path.parent / "checkpoint"
    folder.mkdir(exist_ok=True)
    path.replace(folder / "state.pt")
    return load_checkpoint(folder)


_AUDIT = _command("audit", "FILE", "--out", "page", "--quiet")
KINDS: dict[str, Kind] = {
    "predictions.npz": Kind(".npz", _npz, _AUDIT),
    "predictions.csv": Kind(".csv", _csv, _AUDIT),
    "predictions.jsonl": Kind(".jsonl", _json_lines, _AUDIT),
    "predictions.parquet": Kind(".parquet", _parquet, _AUDIT),
    "study.yaml": Kind(".yaml", _study, _library(_read_study)),
    "weights.safetensors": Kind(".safetensors", _safetensors, _library(read_weights)),
    "weights.pt": Kind(".pt", _pickled, _library(read_weights)),
    "state.pt": Kind(".pt", _state, _library(_read_state)),
    "coco.json": Kind(".json", _coco, _library(_read_coco)),
    "voc.xml": Kind(".xml", _voc, _library(_read_voc)),
    "texts.tar.gz": Kind(".tar.gz", _tar, _library(read_members)),
}


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
    """The attack: trial N damages a file of one kind by the dice of N."""

    name = "files"

    def trial(self, number: int) -> dict[str, int]:
        dice = random.Random(number)
        name = sorted(KINDS)[number % len(KINDS)]
        kind = KINDS[name]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with tempfile.TemporaryDirectory() as top:
            inner = Path(top) / "inner"
            inner.mkdir()
            path = inner / f"given{kind.suffix}"
            with _inside(inner):
                kind.write(path)
                path.write_bytes(damaged(path.read_bytes(), dice))
                self._read(kind, path, name, number, path.read_bytes())
            if sorted(os.listdir(top)) != ["inner"]:
                raise BrokenPromiseError(f"{name}: {os.listdir(top)} were written outside")
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
