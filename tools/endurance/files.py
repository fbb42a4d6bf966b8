"""Damaged and hostile files: never a traceback, never a file outside, never much memory.

A file is written as its owner would, damaged by a number, and handed to whoever reads it. What may
come is a result, or one of the errors that the command line shows as a message.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import pickle
import random
import resource
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

from sfumato._core.files import FREE_BYTES
from sfumato.cli import main
from sfumato.data import load_data
from sfumato.data.annotations import read_coco, read_voc
from sfumato.data.archives import read_members
from sfumato.engine import RunConfig, run
from sfumato.engine.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sfumato.models.weights import read_weights
from sfumato.study.config import load_study, plan
from tools.endurance.trials import ViolationError


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Args:
        suffix: of its name.
        write: as its owner would.
        read: as we do; errors that are messages are caught in it.
    """

    suffix: str
    write: Callable[[Path], object]
    read: Callable[[Path], None]


def command(*words: str) -> str:
    """Run the command line in this process and return what it prints."""
    silent = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["sfumato", *words]),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
        contextlib.suppress(SystemExit),  # after a message
    ):
        main()
    if "Traceback" in silent.getvalue():
        raise AssertionError(silent.getvalue())
    return silent.getvalue()


def _command(*arguments: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        command(*(path.as_posix() if word == "FILE" else word for word in arguments))

    return read


def library(function: Callable[[Path], object]) -> Callable[[Path], None]:
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


def _tensors(path: Path) -> None:
    from safetensors.numpy import save_file

    probs, labels = _predictions()
    save_file({"probs": probs, "labels": labels}, path)


def _checkpoint_weights(path: Path) -> None:
    """The weights of a checkpoint, with the rest of its folder beside them."""
    _state(path)
    path.replace(path.parent / "checkpoint" / "state.pt")
    (path.parent / "checkpoint" / "model.safetensors").replace(path)


def _read_checkpoint_weights(path: Path) -> object:
    path.replace(path.parent / "checkpoint" / "model.safetensors")
    return load_checkpoint(path.parent / "checkpoint")


def _picture(path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def _read_pictures(path: Path) -> object:
    """A folder of images of which one is the given file."""
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            folder = path.parent / "images" / part / name
            folder.mkdir(parents=True)
            _picture(folder / "whole.png")
    shutil.copy(path, path.parent / "images" / "train" / "cat")
    data = load_data({"name": "folder", "root": str(path.parent / "images"), "size": 8})
    return [data.train.images[:]]


@cache
def study_folder(*, with_trainings: bool = False) -> dict[str, bytes]:
    """Return the files of a study of one run, by their names."""
    data = {"name": "scenes", "train": 8, "validation": 4, "test": 6, "size": 16}
    content = {"data": data, "model": {"name": "resnet", "depth": 8, "width": 2}}
    content |= {"train": {"epochs": 1, "batch_size": 4}, "evaluate": {"resamples": 3}}
    with tempfile.TemporaryDirectory() as top:
        found = run(RunConfig(**content), Path(top) / "runs", show=False)
        index = {"name": "given", "title": "given", "methods": ["CE"], "study": {"name": "given"}}
        index["runs"] = [{"method": "CE", "seed": 0, "run": found.path.name}]
        (Path(top) / "study.json").write_text(json.dumps(index))
        return {
            each.relative_to(top).as_posix(): each.read_bytes()
            for each in Path(top).rglob("*")
            if each.is_file() and (with_trainings or "trainings" not in each.parts)
        }


def _part_of_study(name: str) -> Kind:
    """The folder of a study whose file of this name is the given one, read by its report."""

    def place(top: Path) -> Path:
        (found,) = (each for each in study_folder() if Path(each).parts[-1] == name)
        return top / "study" / found

    def write(path: Path) -> None:
        for each, content in study_folder().items():
            file = path.parent / "study" / each
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        place(path.parent).replace(path)

    def read(path: Path) -> None:
        path.replace(place(path.parent))
        _command("report", "study")(path)

    return Kind(".part", write, read)


READ_BY_REPORTS = ("study.json", "metrics.json", "config.yaml", "log.jsonl", "replicates.npz")
_AUDIT = _command("audit", "FILE", "--out", "page", "--quiet")
KINDS: dict[str, Kind] = {
    "predictions.npz": Kind(".npz", _npz, _AUDIT),
    "predictions.csv": Kind(".csv", _csv, _AUDIT),
    "predictions.jsonl": Kind(".jsonl", _json_lines, _AUDIT),
    "predictions.parquet": Kind(".parquet", _parquet, _AUDIT),
    "study.yaml": Kind(".yaml", _study, library(_read_study)),
    "weights.safetensors": Kind(".safetensors", _safetensors, library(read_weights)),
    "weights.pt": Kind(".pt", _pickled, library(read_weights)),
    "state.pt": Kind(".pt", _state, library(_read_state)),
    "coco.json": Kind(".json", _coco, library(_read_coco)),
    "voc.xml": Kind(".xml", _voc, library(_read_voc)),
    "predictions.safetensors": Kind(".safetensors", _tensors, _AUDIT),
    "checkpoint": Kind(".safetensors", _checkpoint_weights, library(_read_checkpoint_weights)),
    "image.png": Kind(".png", _picture, library(_read_pictures)),
    **{f"study folder, {name}": _part_of_study(name) for name in READ_BY_REPORTS},
    "texts.tar.gz": Kind(
        ".tar.gz", _tar, library(lambda path: read_members(path, bool, FREE_BYTES))
    ),
}


def _bomb_npz() -> bytes:
    """A few kilobytes that say they are ten gigabytes."""
    found = io.BytesIO()
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("probs.npy", header.getvalue() + bytes(1 << 20))
        archive.writestr("labels.npy", header.getvalue())
    return found.getvalue()


class _Execution:
    """Runs code where a pickle from a stranger is loaded."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return Path.touch, (Path("../executed"),)


def _pickled_arrays() -> bytes:
    found = io.BytesIO()
    np.savez(found, probs=np.array([_Execution()], object), labels=np.zeros(1))
    return found.getvalue()


def _pickled_weights() -> bytes:
    found = io.BytesIO()
    torch.save({"weight": _Execution()}, found)
    return found.getvalue()


def _hostile_tar() -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        for name in ("../outside.txt", "/tmp/outside.txt", "train/a/" + "x" * 300):
            archive.addfile(tarfile.TarInfo(name))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            entry = tarfile.TarInfo(f"train/a/{kind!r}")
            entry.type, entry.linkname = kind, "../../../../etc/passwd"
            archive.addfile(entry)
    return found.getvalue()


_LAUGHS = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
_ENTITIES = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 9}">' for n in range(1, 30))
_XML = f'<!DOCTYPE x [<!ENTITY l0 "ha">{_ENTITIES}<!ENTITY f SYSTEM "file:///etc/passwd">]>'
# What is no accident: read in place of a damaged file, whatever its name says.
BOMBS: dict[str, Callable[[], bytes]] = {
    "npz of ten gigabytes": _bomb_npz,
    "pickle in npz": _pickled_arrays,
    "pickle in weights": _pickled_weights,
    "pickle": lambda: pickle.dumps(_Execution()),
    "tar that leads outside": _hostile_tar,
    "billion laughs, YAML": lambda: f"a0: &a0 ha\n{_LAUGHS}".encode(),
    "billion laughs, XML": lambda: f"{_XML}<annotation>&l29;&f;</annotation>".encode(),
    "depth": lambda: b"[" * 200_000,
    "object": lambda: b"!!python/object/apply:os.system ['touch ../executed']",
    "zeros": lambda: bytes(1 << 22),
    "nothing": lambda: b"",
}


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
def inside(folder: Path) -> Iterator[None]:
    """With this as the working directory, where commands write by default."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class Files:
    """Damaged files: trial N damages a file of one kind, or replaces it, by the dice of N."""

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
            with inside(inner):
                kind.write(path)
                kept = _attacked(path, dice)
                self._read(kind, path, name, number, kept)
            found = sorted(os.listdir(top))
            if found != ["canary", "inner"] or canary.read_text() != "untouched":
                raise ViolationError(f"{name}, trial {number}: {found} were touched outside")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if grown > MOST_MEMORY:
            raise ViolationError(f"{name}: the process grew by {grown >> 10} MB")
        return {name: 1}

    @staticmethod
    def _read(kind: Kind, path: Path, name: str, number: int, kept: bytes) -> None:
        try:
            kind.read(path)
        except Exception as error:
            example = kept if len(kept) < 400 else kept[:400] + b"..."
            raise ViolationError(
                f"{name}, trial {number}: {type(error).__name__}: {error}\n{example!r}"
            ) from error


FILES = Files()
