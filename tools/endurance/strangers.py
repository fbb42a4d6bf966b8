"""Hostile content from strangers: reading runs, fetches, writes and leaks nothing, and ends.

Each surface builds something hostile from a number and hands it to the readers of its kind. The
generators and oracles are those of the tests; only the combinations are drawn here.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import random
import re
import signal
import socket
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import torch
from PIL import Image

from sfumato._core.files import FREE_BYTES
from sfumato.auditing.files import read_predictions
from sfumato.data import load_camvid, load_newsgroups, load_tiny_imagenet, read_npz
from sfumato.data.archives import read_members
from sfumato.data.sources.coco import read_coco_detection
from sfumato.data.sources.cub import load_cub
from sfumato.engine import RunDirectory, load_network
from sfumato.engine.evaluation.analyses import Effort, read_analysed_run
from sfumato.models import OnnxModel
from sfumato.models.weights import read_weights
from sfumato.predictions import Calibrator, choose_calibrator, load_calibrator
from sfumato.predictions.calibrator import SCALERS
from sfumato.predictions.onnx_calibrator import append_to_onnx
from sfumato.report import read_study
from tests import test_strangers_files as plants
from tests.core import test_text as texts, test_torch_files as values
from tests.data.test_archives import _link
from tests.predictions import test_calibrator as calibrators
from tools.endurance import pages
from tools.endurance.files import (
    TOKENS,
    VALUES,
    command,
    damaged,
    inside,
    library,
    rewritten,
    study_folder,
)
from tools.endurance.trials import ViolationError

LONGEST = 60  # seconds of a trial; one that waits for a pipe never ends
MOST_MEMORY = 200 << 10  # kilobytes by which a trial may raise the peak
BOMB = 256  # megabytes of zeros
SECRET = "hunter2, which no output may show"
Dice = random.Random


def _study(folder: Path) -> RunDirectory:
    """Write a study of one finished run, with its training."""
    for name, content in study_folder(with_trainings=True).items():
        file = folder / "study" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    index = json.loads((folder / "study" / "study.json").read_text())
    return RunDirectory(folder / "study" / "runs" / index["runs"][0]["run"])


def _read_run(run: RunDirectory, dice: Dice) -> None:
    """Read a run by one of its readers; those that load must leave the folder as it is."""
    readers: tuple[Callable[[], object], ...] = (
        lambda: read_analysed_run(run.path, Effort(), None),
        lambda: load_network(run),
        lambda: command("report", "study"),
        lambda: command("audit", str(run.path), "--out", "page", "--quiet"),
    )
    chosen = dice.randrange(len(readers))
    before = _names(run.path.parents[1])
    library(lambda _: readers[chosen]())(run.path)
    if chosen < 2 and _names(run.path.parents[1]) != before:
        raise ViolationError("reading a run changed its folder")


def _names(folder: Path) -> list[tuple[str, int, int]]:
    facts = [(str(path), path.lstat()) for path in sorted(folder.rglob("*"))]
    return [(name, each.st_ino, each.st_mtime_ns) for name, each in facts]


@cache
def _plants() -> list[dict[str, Any]]:
    return list(plants._plants())


def planted_names(folder: Path, dice: Dice) -> None:
    """Name a module at one to three keys of a run's configuration, also deep inside a loss."""
    run = _study(folder)
    file = run.path / "config.yaml"
    content: dict[str, Any] = dict(plants.TINY)
    for _ in range(dice.choice([1, 1, 2, 3])):
        content = plants._merge(content, dice.choice(_plants()))
    for _ in range(dice.choice([0, 0, 1, 3])):
        inner = content.get("loss", {"name": f"{plants.PLANTED}:Thing"})
        content["loss"] = {"name": "combined", "fidelity": inner}
    file.write_text(json.dumps(content if dice.random() < 0.8 else dice.choice(VALUES)))
    _read_run(run, dice)


def _put_in_place(place: Path, outside: Path, dice: Dice) -> None:
    """Put a link, a pipe, a device or a folder where a file was."""
    if place.is_dir():
        place.rename(place.with_name("moved"))
    else:
        place.unlink(missing_ok=True)
    how = dice.randrange(6)
    if how == 0:
        os.mkfifo(place)
    elif how == 1:
        place.mkdir()
    else:
        up = os.path.relpath(outside, place.parent)
        targets = (str(outside), up, "/dev/zero", "/dev/stdin", place.name, f"{outside.parent}")
        place.symlink_to(dice.choice(targets))


def links_and_pipes(folder: Path, dice: Dice) -> None:
    """Replace files and folders of a run by links, pipes and names that lead outside."""
    run = _study(folder)
    top = folder / "study"
    names = [*study_folder(with_trainings=True), "index.html", "environment.json", "results.csv"]
    names += ["runs", f"runs/{run.path.name}", f"runs/{run.path.name}/error.txt"]
    for turn in range(dice.choice([1, 1, 2])):
        if turn == 0 and dice.random() < 0.3:  # later a link may stand there
            name = dice.choice(["../../..", "../../canary", "/", "..", "a/../../..", "", ".", None])
            (run.path / "training.json").write_text(json.dumps({"training": name}))
            index = json.loads((top / "study.json").read_text())
            index["runs"][0]["run"] = name
            (top / "study.json").write_text(json.dumps(index))
            break
        place = top / dice.choice(names)
        if place.parent.is_dir() and os.path.lexists(place) >= (place.name not in names):
            _put_in_place(place, folder.parent / "canary", dice)
    _read_run(run, dice)


_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".tar": lambda content: content,
    ".tar.gz": gzip.compress,
    ".tgz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lambda content: lzma.compress(content, preset=0),
}
_LOADERS: tuple[Callable[[Path], object], ...] = (
    lambda path: load_camvid(root=path),
    lambda path: load_tiny_imagenet(root=path),
    lambda path: load_newsgroups(root=path),
    lambda path: load_cub(root=path),
    lambda path: list(read_members(path, bool, FREE_BYTES)),
)
_NAMES = ("set/wnids.txt", "set/train/a.png", "20news-bydate-train/a/1", "CUB_200_2011/images.txt")


def _member(dice: Dice, outside: Path) -> tarfile.TarInfo:
    """Draw a member that is a link, leads outside, or is no plain file."""
    target = dice.choice(["../../canary", str(outside), "a.png", "..", "x/" * 200, "/dev/zero"])
    name = dice.choice([*_NAMES, "../written", "/written", "a/../../written", "l" * 254, "set"])
    how = dice.randrange(4)
    if how < 2:
        return _link(name, target, hard=how == 1)
    member = tarfile.TarInfo(name)
    kinds = (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE)
    member.type = dice.choice([tarfile.REGTYPE, *kinds])
    return member


def archives(folder: Path, dice: Dice) -> None:
    """Pack links, devices and names that lead outside, in each compression."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for _ in range(dice.choice([2, 4, 8])):
            if dice.random() < 0.5:
                member = tarfile.TarInfo(dice.choice(_NAMES))
                member.size = 600
                archive.addfile(member, io.BytesIO(dice.randbytes(600)))
            else:
                archive.addfile(_member(dice, folder.parent / "canary"))
    suffix = dice.choice(sorted(_PACKERS))
    content = found.getvalue()
    content = damaged(content, dice) if dice.random() < 0.2 else content
    (folder / f"set{suffix}").write_bytes(_PACKERS[suffix](content))
    library(dice.choice(_LOADERS))(folder / f"set{suffix}")


_COMPRESSED = (".tar.gz", ".tar.bz2", ".tar.xz")
_HEADERS = (tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_ZIPPED = (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


@cache
def _tar_bomb(suffix: str, kind: bytes) -> bytes:
    member = tarfile.TarInfo("20news-bydate-train/a/1")
    member.size, member.type = BOMB << 20, kind
    found = io.BytesIO()
    openers: dict[str, Callable[..., Any]] = {
        ".tar.gz": gzip.open,
        ".tar.bz2": bz2.open,
        ".tar.xz": partial(lzma.open, preset=0),
    }
    with openers[suffix](found, mode="wb") as file:
        file.write(member.tobuf())
        for _ in range(BOMB + 1):
            file.write(bytes(2**20))
    return found.getvalue()


def archive_bombs(folder: Path, dice: Dice) -> None:
    """Pack zeros, far more than may be held, to kilobytes."""
    suffix, kind = dice.choice(_COMPRESSED), dice.choice(_HEADERS)
    path = folder / f"set{suffix}"
    path.write_bytes(_tar_bomb(suffix, kind))
    library(dice.choice(_LOADERS))(path)


@cache
def _zip_bomb(compression: int, lies: bool) -> bytes:
    with tempfile.TemporaryDirectory() as top:
        return plants._npz_bomb(Path(top) / "a.npz", compression, BOMB, lies).read_bytes()


def zip_bombs(folder: Path, dice: Dice) -> None:
    """Put an .npz of zeros where predictions, arrays, weights and results are read."""
    bomb = _zip_bomb(dice.choice(_ZIPPED), dice.random() < 0.5)
    run = _study(folder)
    path, read = dice.choice(
        [
            (folder / "a.npz", read_predictions),
            (folder / "a.npz", read_npz),
            (folder / "a.pt", read_weights),
            (folder / "a.zip", read_weights),
            (run.path / "replicates.npz", lambda path: read_study(path.parents[2])),
            (run.path / "replicates.npz", lambda _: command("report", "study")),
            (run.path / "predictions" / "test.npz", lambda _: command("audit", str(run.path))),
        ]
    )
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bomb)
    library(read)(path)


_OPERATIONS = (
    *(b"}", b")", b"]", b"(", b"t", b"d", b"l", b"s", b"u", b"a", b"e", b"0", b"2", b"N", b"K\x01"),
    *(b"\x85", b"\x86", b"q\x01", b"h\x01", b"h\x01\x86q\x01", b"X\x01\x00\x00\x00a", b"R", b"b"),
    *(b"c__builtin__\nbytearray\n", b"ctorch\nFloatStorage\n", b"ctorch\nSize\n", b"Q"),
    *(b"ctorch.storage\nUntypedStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n"),
    *(b"J\x00\x00\x00\x7f", b"\x8a\x08" + b"\x7f" * 8, b"ccollections\nOrderedDict\n"),
)


def torch_files(folder: Path, dice: Dice) -> None:
    """Unpickle drawn operations from a file of torch.save, or change its bytes."""
    pieces = [dice.choice(_OPERATIONS) * dice.choice([1, 1, 1, 60, 20_000]) for _ in range(12)]
    content = values.with_pickle(b"\x80\x02}" + b"".join(pieces[: dice.randint(1, 12)]) + b".")
    if dice.random() < 0.3:
        content = damaged(values.saved({"probs": torch.ones(9, 3) / 3}), dice)
    (folder / "a.pt").write_bytes(content)
    library(dice.choice([read_predictions, read_weights]))(folder / "a.pt")


@cache
def _calibrators() -> tuple[Calibrator, ...]:
    logits, labels = calibrators.draw(400)
    return (
        Calibrator("none", 4),
        *(choose_calibrator(logits=logits, target=labels, methods=[name]) for name in SCALERS),
    )


def calibrator_files(folder: Path, dice: Dice) -> None:
    """Change a calibrator's file: in one place, or its bytes. What loads gives probabilities."""
    path = folder / "calibrator.json"
    dice.choice(_calibrators()).save(path)
    content = json.loads(path.read_text())
    for _ in range(dice.choice([1, 1, 2])):
        place = dice.choice(list(calibrators._paths(content))[1:] or [()])
        value = dice.choice([calibrators.DELETED, *calibrators.SCALARS, *VALUES])
        if not place and value is calibrators.DELETED:
            continue
        content = calibrators._changed(content, place, value)
        if not isinstance(content, dict):
            break
    path.write_text(json.dumps(content))
    if dice.random() < 0.3:
        path.write_bytes(damaged(path.read_bytes(), dice))

    def read(path: Path) -> None:
        found = load_calibrator(path)
        if found.classes < 10_000:
            sums = found.predict_proba(logits=torch.randn(3, found.classes)).sum(1)
            if not torch.allclose(sums, torch.ones(3).double()):
                raise ViolationError(f"probabilities sum to {sums.tolist()}")

    library(read)(path)


def onnx_models(folder: Path, dice: Dice) -> None:
    """Append a calibrator to models of any precision, and to garbage. What is written runs."""
    model, out = folder / "m.onnx", folder / "out.onnx"
    kinds = ("FLOAT", "FLOAT16", "DOUBLE", "INT64", "BFLOAT16", "STRING", "BOOL")
    classes = dice.choice([4, 4, 4, 5, 1, "C", None])
    calibrators._identity(onnx, model, dice.choice(kinds), classes, softmax=dice.random() < 0.2)
    if dice.random() < 0.5:
        model.write_bytes(damaged(model.read_bytes(), dice))
    calibrator = dice.choice(_calibrators())

    def read(path: Path) -> None:
        if dice.random() < 0.3:
            OnnxModel(path)
        append_to_onnx(calibrator, path, out, kind=dice.choice(["logits", "logits", "probs"]))
        session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
        rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
        name = session.get_inputs()[0].name
        probs = session.run(["calibrated_probs"], {name: rows})[0]
        if not np.allclose(probs.sum(1), 1, atol=1e-3):
            raise ViolationError("the written model gives no probabilities")

    library(read)(model)
    if sorted(os.listdir(folder)) not in (["m.onnx"], ["m.onnx", "out.onnx"]):
        raise ViolationError(f"{os.listdir(folder)} were left")


def coco_detection(folder: Path, dice: Dice) -> None:
    """Write NaN, null, huge and other values into annotations, and decode what is accepted."""
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    content: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "a.png", "width": 8, "height": 8}],
        "categories": [{"id": 2, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 2, "bbox": [1, 1, 4, 4]}],
    }
    content["annotations"][0] |= {"area": 16, "iscrowd": 0}
    numbers = (30_000, 2**31, 1e308, float("nan"), float("inf"), -1, 0, 0.5)
    for _ in range(dice.choice([1, 1, 2])):
        entry = content[dice.choice(sorted(content))][0]
        key = dice.choice(sorted(entry))
        value = dice.choice([*VALUES, *numbers])
        if key == "bbox" and isinstance(entry[key], list) and dice.random() < 0.7:
            entry[key] = [*entry[key]]
            entry[key][dice.randrange(len(entry[key]))] = value
        else:
            entry[key] = value
    path = folder / "annotations.json"
    path.write_text(json.dumps(content))
    if dice.random() < 0.3:
        path.write_bytes(rewritten(path.read_bytes(), dice) or b"")

    def read(path: Path) -> None:
        found = read_coco_detection(path, folder, on_bad_box=dice.choice(["error", "skip"]))
        for image, objects in zip(found.images, found.objects, strict=True):
            if not bool(torch.isfinite(objects.boxes).all()) or image.numel() > 10**6:
                raise ViolationError(f"{objects.boxes.tolist()} of {tuple(image.shape)}")

    library(read)(path)


_PIECES = (
    *(texts.TITLE, texts.HOSTILE, "\x9b2J", "\x1b[31m", "\r", "\n", "\t", "\x00", "\x7f", "\uffff"),
    *("![x](http://h/p.png)", "[x](javascript:1)", "<http://h>", "www.h.org", "[x]: http://h"),
    *("=1+1", "@x", "-1+cmd|' /C calc'!A0", "[1ex]", "*", "\\\\", "\\input{x}", "&", "%", "$", "|"),
    *(
        "`",
        "~~",
        "#",
        "> ",
        "- ",
        "+ ",
        "1. ",
        "```",
        "---",
        "\u202e",
        "\u2028",
        "\ud800",
        "é",
        "日",
    ),
)
# The properties of tests/core/test_text.py, each on any text.
_PROPERTIES: tuple[Callable[..., None], ...] = tuple(
    getattr(texts, name).hypothesis.inner_test
    for name in (
        "test_every_format_is_seen",
        "test_html_is_text",
        "test_markdown_is_text",
        "test_latex_is_text",
        "test_csv_is_text",
        "test_yaml_is_the_same_text",
        "test_the_terminal_gets_what_is_seen",
    )
)


def _name(dice: Dice) -> str:
    pieces = (*_PIECES, *pages.SCRIPTS, *pages.BREAKS, *(each.decode() for each in TOKENS))
    return "".join(dice.choice(pieces) for _ in range(dice.choice([1, 2, 5])))


def escaped_text(folder: Path, dice: Dice) -> None:
    """Escape hostile text for each format, and check it with a parser of that format."""
    text = _name(dice)
    for check in _PROPERTIES:
        check(text)


def exported_names(folder: Path, dice: Dice) -> None:
    """Export and print a study whose names are hostile."""
    run = _study(folder)
    index = json.loads((folder / "study" / "study.json").read_text())
    method = _name(dice)
    index |= {"title": _name(dice), "methods": [method], "study": {"name": _name(dice)}}
    index["runs"][0]["method"] = method
    (folder / "study" / "study.json").write_text(json.dumps(index))
    metrics = json.loads((run.path / "metrics.json").read_text())
    metrics["test"][_name(dice)] = 0.5
    (run.path / "metrics.json").write_text(json.dumps(metrics))
    form = dice.choice(["markdown", "csv", "latex", "html"])
    out = ["--out", "table"] if form != "html" else []
    shown = re.sub(r"\x1b\[[\d;]*m", "", command("report", "study", "--format", form, *out))
    written = (folder / "table").read_text() if (folder / "table").is_file() else ""
    if not texts._is_seen(shown) or not texts._is_seen(written):
        raise ViolationError(f"hidden characters were written: {shown + written!r}")
    if form == "markdown":
        kinds, _ = texts._markdown(written)
        if found := {"image", "link_open", "html_inline", "html_block"} & kinds:
            raise ViolationError(f"{found} in Markdown: {written!r}")


KINDS: dict[str, Callable[[Path, Dice], None]] = {
    "run directories, planted import names": planted_names,
    "run directories, links, pipes and `..`": links_and_pipes,
    "archives, links and odd members": archives,
    "archives, bombs by ratio": archive_bombs,
    ".npz and .zip, bombs by ratio": zip_bombs,
    "files of torch.save": torch_files,
    "calibrators, JSON": calibrator_files,
    "ONNX models": onnx_models,
    "COCO detection annotations": coco_detection,
    "text escaped for terminal, Markdown, LaTeX, CSV, HTML, YAML": escaped_text,
    "tables exported with hostile names": exported_names,
}


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """Fail where a trial imports a planted module, connects, or takes long or much memory."""

    def late(*_: object) -> NoReturn:
        raise ViolationError(f"not finished after {LONGEST} seconds")

    def connect(*address: object, **_: object) -> NoReturn:
        raise ViolationError(f"connects to {address}")

    imports = plants._Imports()
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    held = _peak(reset=True)
    try:
        with (
            mock.patch.object(sys, "meta_path", [imports, *sys.meta_path]),
            mock.patch.object(socket, "getaddrinfo", connect),
            mock.patch.object(socket.socket, "connect", connect),
        ):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if imports.seen:
        raise ViolationError(f"{imports.seen} were imported")
    if (grown := _peak() - held) > MOST_MEMORY:
        raise ViolationError(f"the process grew by {grown >> 10} MB")


def _peak(*, reset: bool = False) -> int:
    """Return the most kilobytes that the process has held since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(line)


class Strangers:
    """Hostile content; trial N takes the kind N modulo the number of kinds."""

    name = "strangers"

    def trial(self, number: int) -> dict[str, int]:
        kind = list(KINDS)[number % len(KINDS)]
        with tempfile.TemporaryDirectory() as top:
            folder = Path(top) / "inner"
            folder.mkdir()
            canary = Path(top) / "canary"
            canary.write_text(SECRET)
            try:
                _warm(kind)
                with inside(folder), _guarded():
                    KINDS[kind](folder, random.Random(number))
                _check_outside(Path(top))
            except Exception as error:
                raise ViolationError(
                    f"{kind}, trial {number}: {type(error).__name__}: {error}"
                ) from error
        return {kind: 1}


@cache
def _warm(kind: str) -> None:
    """Build what trials share before memory is measured."""
    study_folder(with_trainings=True)
    if kind.startswith(("calibrators", "ONNX")):
        _calibrators()


def _check_outside(top: Path) -> None:
    """Fail where something beside the folder has changed, or where the secret was copied."""
    if sorted(os.listdir(top)) != ["canary", "inner"] or (top / "canary").read_text() != SECRET:
        raise ViolationError(f"{sorted(os.listdir(top))} were touched outside")
    for path in (top / "inner").rglob("*"):
        if path.is_file() and not path.is_symlink() and SECRET.encode() in path.read_bytes():
            raise ViolationError(f"{path.name} shows a file from outside")


STRANGERS = Strangers()
