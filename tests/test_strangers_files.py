"""Files from others: reading them imports, fetches, writes and deletes nothing, and ends.

Each kind of danger has one door in `sfumato._core`; the last test lists what goes round them.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.abc import MetaPathFinder
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from sfumato.auditing.files import read_predictions, stored_predictions
from sfumato.corruptions.storage import _decode
from sfumato.data import load_data, read_npz
from sfumato.data.files import open_image
from sfumato.engine import RunConfig, RunDirectory, load_network, parse, run
from sfumato.engine.config.components import COMPONENTS
from sfumato.engine.evaluation.analyses import Effort, read_analysed_run
from sfumato.engine.training.checkpoint import _no_larger_than
from sfumato.features import Smooth
from sfumato.report import read_study

TINY: dict[str, Any] = {
    "data": {"name": "scenes", "train": 24, "validation": 10, "test": 12, "size": 16},
    "model": {"name": "resnet", "depth": 8, "width": 4},
    "train": {"epochs": 1, "batch_size": 12},
    "evaluate": {"resamples": 10},
}
PLANTED = "planted_by_a_stranger"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished run, which the tests of this file copy or leave as it is."""
    return run(parse(RunConfig, TINY), tmp_path_factory.mktemp("finished"), show=False)


class _Imports(MetaPathFinder):
    """Notes each attempt to import what a stranger has planted; never finds it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == PLANTED:
            self.seen.append(fullname)


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> _Imports:
    finder = _Imports()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    return finder


def _places(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The keys of a JSON schema, each with those above it; `x` stands for a name of one's own."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for each in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _places(each, root)
    for key, inner in schema.get("properties", {}).items():
        yield (key,)
        yield from ((key, *below) for below in _places(inner, root))
    if isinstance(inner := schema.get("additionalProperties"), dict | bool) and inner:
        yield ("x",)


def _plants() -> Iterator[dict[str, Any]]:
    """Configurations with the name of a module at one key each: of the schema, and of each part."""
    schema = RunConfig.model_json_schema()
    names = (f"{PLANTED}:Thing", {"name": f"{PLANTED}:Thing"}, {"x": {"name": f"{PLANTED}:Thing"}})
    for keys in sorted(set(_places(schema, schema))):
        for name in (*names, [names[0]], [names[1]]):
            content: Any = name
            for key in reversed(keys):
                content = {key: content}
            yield content
    for part in COMPONENTS:
        if part.kind in ("data", "model", "loss", "augment", "inputs", "labels"):
            for option in part.options:
                for name in names[:2]:
                    yield {part.kind: {"name": part.name, option: name}}


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict) and "name" not in value
        merged[key] = _merge(base[key], value) if both else value
    return merged


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_no_key_of_a_run_s_configuration_imports(
    copied: RunDirectory, imports: _Imports, step: int
) -> None:
    """Every seventh place, which meets all five forms of a name; all of them if slow."""
    file, found = copied.path / "config.yaml", []
    for changes in islice(_plants(), 0, None, step):
        file.write_text(json.dumps(_merge(TINY, changes)))  # JSON is YAML, and quickly written
        with suppress(ValueError, TypeError, FileNotFoundError):
            read_analysed_run(
                copied.path, Effort(), None
            )  # all that analyse and load_network build
        if imports.seen:
            found.append(changes)
            imports.seen.clear()
    assert found == []


def test_a_command_in_a_loss_is_one_line(
    copied: RunDirectory, sfumato: Callable[..., Any], tmp_path: Path
) -> None:
    inner = {"name": "os:system", "command": f"touch {tmp_path / 'executed'}"}
    content = {**TINY, "loss": {"name": "combined", "fidelity": inner}}
    (copied.path / "config.yaml").write_text(json.dumps(content))
    found = sfumato("analyse", str(copied.path), "--quiet")
    assert found.status == 2
    assert "nothing was imported" in found.stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", ["some words", "[1, 2]", "3", "null", ""])
def test_a_configuration_is_a_mapping(copied: RunDirectory, content: str) -> None:
    """Found by the stress test: it ended in an AttributeError."""
    (copied.path / "config.yaml").write_text(content)
    with pytest.raises(ValueError, match=r"config\.yaml.*mapping"):
        load_network(copied)


@pytest.mark.parametrize("content", [[], 3, {}, {"image_size": 8}, {"image_size": [8, 8]}])
def test_facts_of_a_network_are_checked(copied: RunDirectory, content: Any) -> None:
    (copied.training / "network.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"network\.json is unreadable"):
        load_network(copied)


def test_reports_import_nothing(copied: RunDirectory, imports: _Imports) -> None:
    planted = {key: f"{PLANTED}:Thing" for key in RunConfig.model_fields if key != "seed"}
    (copied.path / "config.yaml").write_text(json.dumps(planted))
    read_study(copied.path.parents[1])
    read_study(copied.path)
    assert imports.seen == []


@pytest.fixture
def copied(finished: RunDirectory, tmp_path: Path) -> RunDirectory:
    """The finished run with its training, in a study of one run, to be changed by a stranger."""
    folder = tmp_path / "study"
    shutil.copytree(finished.path.parent, folder / "runs")
    entry = {"method": "plain", "seed": 0, "run": finished.path.name}
    index = {"title": "a", "study": {"name": "a"}, "methods": ["plain"], "runs": [entry]}
    (folder / "study.json").write_text(json.dumps(index))
    return RunDirectory(folder / "runs" / finished.path.name)


def _snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(
    "name", ["../../../other", "/", "..", ".", "", "a/b", "\x1b]0;x", 3, None, ["x"]]
)
def test_a_training_has_a_plain_name(copied: RunDirectory, tmp_path: Path, name: Any) -> None:
    other = shutil.copytree(copied.training, tmp_path / "other")
    shutil.copytree(other / "checkpoint", other / "checkpoint.old")
    (other / "network.json").write_text("{")
    before = _snapshot(tmp_path / "other")
    (copied.path / "training.json").write_text(json.dumps({"training": name}))
    with pytest.raises(ValueError, match=r"training.json is unreadable .*must be a plain name"):
        load_network(copied)
    assert _snapshot(other) == before


def test_loading_changes_nothing(copied: RunDirectory) -> None:
    expected = load_network(copied).state_dict()
    training = copied.training
    # A crash between two renames: the whole checkpoint is the new one.
    shutil.copytree(training / "checkpoint", training / "checkpoint.old")
    (training / "checkpoint").rename(training / "checkpoint.new")
    before = _snapshot(copied.path.parent)
    found = load_network(copied).state_dict()
    assert all((found[key] == value).all() for key, value in expected.items())
    (training / "network.json").write_text("{")
    before["trainings/" + training.name + "/network.json"] = b"{"
    with pytest.raises(ValueError, match=r"network.json is unreadable"):
        load_network(copied)
    assert _snapshot(copied.path.parent) == before


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses that something asks for; none answers."""
    asked: list[Any] = []

    def refuse(*address: Any, **_: Any) -> Any:
        asked.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


def test_loading_fetches_nothing(copied: RunDirectory, offline: list[Any], tmp_path: Path) -> None:
    (copied.training / "network.json").unlink()
    content = yaml.safe_load((copied.path / "config.yaml").read_text())
    content["data"] = {"name": "cifar10", "root": str(tmp_path / "data"), "download": True}
    (copied.path / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(FileNotFoundError, match=r"network\.json: no such file"):
        load_network(copied)
    facts = {"classes": ["a", "b"], "in_channels": 3, "image_size": [8, 8]}
    facts |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    (copied.training / "network.json").write_text(json.dumps(facts))
    with suppress(ValueError, OSError, RuntimeError):
        read_analysed_run(copied.path, Effort(), None)
    assert offline == []
    assert not (tmp_path / "data").exists()


def _with_model(copied: RunDirectory, model: dict[str, Any]) -> RunDirectory:
    (copied.path / "config.yaml").write_text(json.dumps({**TINY, "model": model}))
    return copied


@pytest.mark.parametrize(
    ("name", "error"),
    [("~nobody_of_this_name/net.onnx", ValueError), ("a" * 5000, FileNotFoundError)],
)
def test_names_that_no_onnx_file_can_have(
    copied: RunDirectory, name: str, error: type[Exception]
) -> None:
    model = {"name": f"onnx:{name}", "file_digest": "0" * 16}
    content = {**TINY, "model": model, "train": {"epochs": 0}}
    (copied.path / "config.yaml").write_text(json.dumps(content))
    with pytest.raises(error, match=name[:20]) as found:
        load_network(copied)
    assert len(str(found.value)) < 1000


def test_names_of_weights_are_quoted_in_one_short_line(copied: RunDirectory) -> None:
    file = copied.checkpoint / "model.safetensors"
    names = {f"two\nlines {'x' * 10**6} end": torch.zeros(3)}
    save_file({**load_file(file), **names}, file)
    with pytest.raises(ValueError, match=r'Unexpected key.*"two lines x+\.\.\.x+ end"') as found:
        load_network(copied)
    assert len(str(found.value)) < 1000


def test_a_log_that_is_nested_too_deeply(copied: RunDirectory) -> None:
    """Such a line is left out, as others that can't be read."""
    before = copied.log()
    with (copied.training / "log.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n")
    assert copied.log() == before


@pytest.mark.parametrize(
    "name", ["fasterrcnn_mobilenet_v3_large_fpn", "ssd300_vgg16", "retinanet_resnet50_fpn"]
)
def test_no_detector_of_a_library_is_fetched(
    copied: RunDirectory, offline: list[Any], name: str
) -> None:
    """torchvision fetches the backbones of its detectors unasked."""
    with pytest.raises(ValueError, match="torchvision has no classifier"):
        load_network(_with_model(copied, {"name": f"torchvision:{name}"}))
    assert offline == []


@pytest.mark.parametrize(
    "model",
    [
        {"name": "resnet", "depth": 8, "width": 300},
        {"name": "resnet", "depth": 8, "width": 10**9},
        {"name": "torchvision:vit_b_16", "image_size": 224},
        {"name": "vgg", "depth": 16, "width": 64},
        {**TINY["model"], "smooth": {"kernel": [1] * 7_000}},
    ],
)
def test_a_network_is_no_larger_than_its_weights(
    copied: RunDirectory, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    """A line of a configuration took gigabytes before the weights were compared with it."""
    built = 0
    register = torch.nn.Module.register_parameter

    def count(self: torch.nn.Module, name: str, value: torch.nn.Parameter | None) -> None:
        nonlocal built
        built += 0 if value is None else value.numel()
        register(self, name, value)

    monkeypatch.setattr(torch.nn.Module, "register_parameter", count)
    with pytest.raises(ValueError, match=r"not those of the network.*(far more|overflow|at most)"):
        load_network(_with_model(copied, model))
    assert built < 10**7


def test_buffers_are_numbers_of_a_network() -> None:
    with _no_larger_than({}), pytest.raises(RuntimeError, match="far more numbers"):
        torch.nn.ModuleList(Smooth([1] * 1_000) for _ in range(5))


def test_a_network_is_tried_with_no_huge_image(copied: RunDirectory) -> None:
    model = {"name": "torchvision:shufflenet_v2_x0_5", "image_size": 10**6}
    with pytest.raises(ValueError, match="images of 1000000 x 1000000 pixels"):
        load_network(_with_model(copied, model))


@pytest.mark.parametrize("inside", ["model", "classifier"])
def test_a_run_names_no_file_without_its_digest(
    copied: RunDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inside: str
) -> None:
    secret = tmp_path / "secret.pt"
    secret.write_bytes(b"secret")
    monkeypatch.setattr(Path, "is_file", lambda path: path != secret or pytest.fail("was read"))
    plain = {"name": "resnet", "depth": 8, "width": 4}
    for spec in (f"onnx:{secret}", {"name": f"onnx:{secret}"}, {**plain, "weights": str(secret)}):
        own = {"model": spec} if inside == "model" else {"classifier": {**TINY, "model": spec}}
        (copied.path / "config.yaml").write_text(json.dumps({**TINY, **own}))
        with pytest.raises(ValueError, match=r"names a file without a \w+_digest"):
            load_network(copied)


FILES = ("study.json", "environment.json", "profiles.json")
OF_RUNS = (
    "config.yaml",
    "metrics.json",
    "log.jsonl",
    "samples.json",
    "cost.json",
    "replicates.npz",
)


def _place(copied: RunDirectory, name: str) -> Path:
    return (copied.path.parents[1] if name in FILES else copied.path) / name


@pytest.mark.parametrize("name", [*FILES, *OF_RUNS, "error.txt"])
def test_reports_follow_no_link_outside(copied: RunDirectory, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"password": "hunter2"}')
    if name == "error.txt":
        (copied.path / "metrics.json").unlink()
    _place(copied, name).unlink(missing_ok=True)
    _place(copied, name).symlink_to(secret)
    with pytest.raises(ValueError, match=r"leads out of"):
        read_study(copied.path.parents[1])


def test_weights_of_another_network_are_one_line(copied: RunDirectory) -> None:
    path = copied.training / "network.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "classes": [*facts["classes"], "one more"]}))
    with pytest.raises(ValueError, match="not those of the network") as caught:
        load_network(copied.path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"in_channels": "x"},
        {"in_channels": 10**30},
        {"mean": ["a", "a", "a"]},
        {"std": [10**400] * 3},
        {"vocabulary": {"words": ["a"], "length": 4, "drop_unknown": True, "vector_width": 10**9}},
        {"vocabulary": {"words": ["a"], "length": 4, "drop_unknown": True, "vector_width": -1}},
    ],
)
def test_odd_facts_of_a_network(copied: RunDirectory, change: dict[str, Any]) -> None:
    path = copied.training / "network.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"network\.json"):
        load_network(copied)


@pytest.mark.parametrize("width", [10**9, 10**30])
def test_a_network_of_any_width(copied: RunDirectory, width: int) -> None:
    with pytest.raises(ValueError, match="weights are not those of the network"):
        load_network(_with_model(copied, {"name": "resnet", "depth": 8, "width": width}))


def test_a_huge_cell_is_not_quoted_whole(tmp_path: Path, sfumato: Any) -> None:
    path = tmp_path / "p.csv"
    path.write_text(f"label,prob_a,prob_b\n{'x' * 10**6},0.5,0.5\n")
    done = sfumato("audit", str(path), "--out", str(tmp_path / "out"))
    assert (done.status, len(done.stderr) < 30_000) == (2, True)


def test_links_in_a_run_lead_nowhere(copied: RunDirectory, tmp_path: Path) -> None:
    trainings = copied.path.parent / "trainings"
    for place in (copied.path / "predictions" / "test.npz", trainings):
        outside = tmp_path / f"outside-{place.name}"
        place.rename(outside)
        place.symlink_to(outside)
    with pytest.raises(ValueError, match="leads out of"):
        stored_predictions(copied.path, "test")
    with pytest.raises(ValueError, match="leads out of"):
        load_network(copied.path)


def test_a_circle_of_links_is_one_line(copied: RunDirectory, sfumato: Callable[..., Any]) -> None:
    runs = copied.path.parent
    shutil.rmtree(runs)
    runs.symlink_to(runs.name)
    done = sfumato("compare", str(copied.path), str(copied.path))
    assert (done.status, len(done.stderr.splitlines()) < 5) == (2, True)


def test_an_image_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would hand PostScript to Ghostscript, whatever the file is called."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\necho 9.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    picture = tmp_path / "a.png"
    picture.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    with (
        pytest.raises(ValueError, match="unreadable image: cannot identify"),
        open_image(picture) as image,
    ):
        image.load()
    with pytest.raises(ValueError, match="unreadable image: cannot identify"):
        _decode(picture)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", [*FILES, "metrics.json", "samples.json", "cost.json"])
@pytest.mark.parametrize("depth", [120, 500, 900, 100_000])
def test_deep_results_are_one_line(copied: RunDirectory, name: str, depth: int) -> None:
    """What is nested less deeply than Python's parser goes still ended in a RecursionError."""
    _place(copied, name).write_text(f'{{"study": {"[" * depth}{"]" * depth}}}')
    with pytest.raises(ValueError, match=r"is nested (more than 100|too) deep"):
        read_study(copied.path.parents[1])


def test_reports_stay_in_their_folder(copied: RunDirectory, tmp_path: Path) -> None:
    folder = copied.path.parents[1]
    elsewhere = shutil.copytree(copied.path, tmp_path / "elsewhere")
    index = json.loads((folder / "study.json").read_text())
    index["runs"][0]["run"] = "../../elsewhere"
    (folder / "study.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="must be a plain name"):
        read_study(folder)
    index["runs"][0]["run"] = "linked"
    (folder / "study.json").write_text(json.dumps(index))
    (folder / "runs" / "linked").symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"leads out of"):
        read_study(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are POSIX's")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", [*FILES, *OF_RUNS])
def test_reports_wait_for_no_pipe(copied: RunDirectory, name: str, kind: str) -> None:
    place = _place(copied, name)
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    refusal = {"pipe": "is no plain file", "device": "leads out of"}[kind]
    with pytest.raises(ValueError, match=refusal):
        read_study(copied.path.parents[1])


def _npz_bomb(path: Path, compression: int, mebibytes: int, lies: bool = False) -> Path:
    """An npz whose array of zeros takes far more than the file; `lies`: it says less."""
    header = np.lib.format.magic(1, 0)
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({mebibytes << 17},)}}"
    padded = text.ljust(128 - len(header) - 3) + "\n"
    with (
        zipfile.ZipFile(path, "w", compression) as archive,
        archive.open("probs.npy", "w") as file,
    ):
        file.write(header + len(padded).to_bytes(2, "little") + padded.encode())
        for _ in range(mebibytes):
            file.write(bytes(2**20))
    if lies:
        content = path.read_bytes()
        size = (mebibytes << 20) + len(header) + 2 + len(padded)
        path.write_bytes(content.replace(size.to_bytes(4, "little"), (4096).to_bytes(4, "little")))
    return path


def _peak(read: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"unpack|compressed|bytes, not|CRC"):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("lies", [False, True])
@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_bombs_take_no_memory(copied: RunDirectory, tmp_path: Path, kind: int, lies: bool) -> None:
    bomb = _npz_bomb(copied.path / "replicates.npz", kind, 80, lies)
    assert _peak(lambda: read_study(copied.path.parents[1])) < 20 * 2**20
    assert _peak(lambda: read_predictions(bomb)) < 20 * 2**20
    assert _peak(lambda: read_npz(bomb)) < 20 * 2**20


def _parquet(path: Path, group: Any) -> Any:
    """Write three columns, of which `group` is one block of pages; what the footer says of it."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"confidence": np.full(len(group), 0.5), "correct": np.ones(len(group), np.int64)}
    parquet.write_table(arrow.table({**columns, "group": group}), path, compression="zstd")
    return parquet.ParquetFile(path).metadata.row_group(0).column(2)


def _refused_parquet(path: Path, reason: str) -> None:
    for read in (
        lambda: read_predictions(path),
        lambda: load_data({"name": "table", "train": path, "text": "group", "label": "correct"}),
    ):
        with pytest.raises(ValueError, match=rf"{path.name}.*{reason}"):
            read()


def test_words_of_fixed_size_take_no_memory(tmp_path: Path) -> None:
    """One word of a dictionary, in each of 10,000 rows: 0.8 GB from some kB."""
    arrow = pytest.importorskip("pyarrow")
    words = arrow.array([bytes(80_000)], arrow.binary(80_000))
    rows = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(10_000, np.int32)), words)
    _parquet(tmp_path / "a.parquet", rows)
    _refused_parquet(tmp_path / "a.parquet", "'group' unpacks to 800,000,000 bytes")


def test_a_footer_that_understates_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    size = _parquet(path, ["a" * 80_000_000, "b"]).total_uncompressed_size
    there, less = (  # as the footer writes numbers, in four bytes
        bytes([(2 * each >> 7 * place) & 127 | (128 if place < 3 else 0) for place in range(4)])
        for each in (size, 100)
    )
    content = path.read_bytes()
    assert there in content
    path.write_bytes(content.replace(there, less))
    _refused_parquet(path, r"'group' unpacks to 80,\d{3},\d{3} bytes")


@pytest.mark.parametrize(
    "header",
    [
        bytes(9),  # empty
        bytes([0x15, 0, 0x15, 1, 0x15, 1, 0x2C, 0x15, 1, 0, 0]),  # all sizes are -1
        bytes([0x15, 0, 0x15, *[255] * 9]),  # a number without end
        bytes([0x15, 0, 0x15, 2, 0x15, 2, 0x2C, 0x15, 8, 0, 0]),  # four values instead of two
        bytes([0x05, 2, 0, 0x15, 2, 0x15, 2, 0x2C, 0x15, 4, 0, 0]),  # a field named in long
        b"\x1c" * 9,  # structs in structs
        b"\x19" * 9,  # a list
    ],
)
def test_pages_are_those_of_the_footer(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.parquet"
    start = _parquet(path, ["a", "b"]).dictionary_page_offset
    content = path.read_bytes()
    path.write_bytes(content[:start] + header + content[start + len(header) :])
    _refused_parquet(path, "the pages of 'group' are not as its footer says")


SOURCE = Path(__file__).resolve().parents[1] / "src" / "sfumato"
# Functions by their full names, and methods of any object: all that open, unpack, import, execute
# or print. Names are followed through `import x as y`, `from x import y` and being handed on.
_FUNCTIONS = """
    open print exec eval __import__ breakpoint
    io.open os.open os.fdopen os.popen os.system codecs.open mmap.mmap fileinput.input
    runpy.run_path runpy.run_module importlib.import_module pkgutil.resolve_name pydoc.locate
    importlib.util.spec_from_file_location importlib.machinery.SourceFileLoader
    shutil.copyfile shutil.copy shutil.copy2 shutil.copytree shutil.move
    csv.reader csv.DictReader zipfile.ZipFile zipfile.Path
    tarfile.open tarfile.TarFile shutil.unpack_archive
    gzip.open gzip.GzipFile bz2.open bz2.BZ2File lzma.open lzma.LZMAFile
    pickle.load pickle.loads pickle.Unpickler marshal.loads shelve.open joblib.load
    compile importlib.__import__ importlib.reload sfumato._core.exports.optional
    yaml.load yaml.load_all yaml.unsafe_load yaml.full_load yaml.Loader yaml.UnsafeLoader
    numpy.load numpy.loadtxt numpy.genfromtxt numpy.fromfile numpy.memmap
    numpy.lib.format.open_memmap torch.load torch.jit.load torch.hub.load torch.from_file
    torchvision.io.read_image torchvision.io.read_file torchvision.io.decode_image PIL.Image.open
    torchvision.datasets.folder.default_loader numpy.lib.npyio.load torch.package.PackageImporter
    ctypes.CDLL zlib.decompress zlib.decompressobj scipy.io.loadmat
    safetensors.safe_open safetensors.torch.load_file safetensors.torch.load_model
    safetensors.numpy.load_file
    subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen
    os.execl os.execle os.execv os.execvp os.spawnl os.spawnv os.posix_spawn os.startfile
    torch.hub.load_state_dict_from_url onnxruntime.InferenceSession
    onnx.load onnx.load_model pandas.read_csv pandas.read_parquet pandas.read_json
    pandas.read_pickle pyarrow.parquet.ParquetFile pyarrow.parquet.read_table pyarrow.memory_map
    pyarrow.OSFile pyarrow.csv.read_csv pyarrow.json.read_json pyarrow.dataset.dataset
    xml.etree.ElementTree.parse xml.etree.ElementTree.iterparse urllib.request.urlopen
    typer.echo typer.secho click.echo click.secho rich.print rich.console.Console
    sys.stdout.write sys.stdout.buffer sys.stderr.write sys.stderr.buffer
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
# Modules that any file may import: what opens, imports or prints in them is above. One that is not
# here, such as a client of the network, has its places below.
_MODULES = """
    __future__ ast base64 collections concurrent contextlib contextvars copy csv ctypes dataclasses
    datetime difflib enum errno fnmatch functools glob hashlib heapq html importlib inspect io
    itertools json lightning lightning_fabric math matplotlib multiprocessing numbers numpy onnx
    onnxruntime os pathlib PIL platform pyarrow pydantic re reprlib rich safetensors scipy sfumato
    shlex shutil signal sklearn statistics sys tempfile threading time timm torch torchmetrics
    torchvision traceback typer types typing typing_extensions uuid warnings weakref xml yaml zlib
"""
MODULES = frozenset(_MODULES.split())
PLACES = {
    "datasets": ["data/sources/huggingface.py"],
    "mlflow": ["integrations/trackers.py"],
    "logging": ["engine/fabric.py", "_core/ray_cluster.py"],
    "pickle": ["auditing/workers.py", "_core/torch_files.py"],
    "pycocotools": ["engine/evaluation/detection.py"],
    "ray": ["_core/ray_cluster.py"],
    "simplejpeg": ["data/files.py"],
    "transformers": ["integrations/transformers.py"],
    "triton": ["ops/softmax_triton.py"],
    "wandb": ["integrations/trackers.py"],
}
METHODS = {"open", "read_text", "read_bytes", "fromfile", "memmap", "extractall", "extract"}
# Places that open or import by themselves, each with its reason; everything else uses a door.
TRUSTED = {
    "_core/text.py": "the door to the terminal",
    "_core/files.py": "the door to files",
    "_core/torch_files.py": "the door to files of torch.save",
    "_core/exports.py": "Sfumato's own modules, and libraries that the code names",
    "_core/import_path.py": "the door to modules, and digests of those that a study named",
    "data/archives.py": "the door to archives",
    "ops/sources.py": "Sfumato's own files",
    "ops/library.py": "Sfumato's own kernels",
    "metrics/robustness.py": "Sfumato's own table",
    "report/document.py": "Sfumato's own assets",
    "cli/studies.py": "opens the browser",
    "engine/runs/directory.py": "/proc of this machine",
    "study/claims.py": "claims of running workers, in the study's own folder",
    "corruptions/camera.py": "a JPEG that was made in memory",
    "corruptions/storage.py": "writes",
}
# What a door has opened, handed on to a library.
HANDED_ON = (
    ("auditing/workers.py", "pickle.loads"),  # of processes that it started itself
    ("corruptions/storage.py", "Image.open(file, formats=_FORMATS)"),
    ("data/files.py", "Image.open(content, formats=FORMATS)"),
    (  # what this run has just computed
        "engine/tasks/segment.py",
        "shutil.copytree(kept_maps, directory.path / 'maps', dirs_exist_ok=True)",
    ),
    (
        "predictions/onnx_calibrator.py",  # what it has written itself, and bytes that it has made
        "onnxruntime.InferenceSession(str(path), settings, providers=['CPUExecutionProvider'])",
    ),
    (
        "predictions/onnx_calibrator.py",
        "onnxruntime.InferenceSession(made.SerializeToString(), "
        "providers=['CPUExecutionProvider'])",
    ),
)


def _imported(tree: ast.AST) -> dict[str, str]:
    """The full name of each name that a file imports, wherever in it."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (library := _library(node.value)):
            found |= {each.id: library for each in node.targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.Import):
            found |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom):
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def _library(node: ast.expr) -> str | None:
    """`onnxruntime` of `optional("onnxruntime", ...)`."""
    if _is_named_call(node) and node.func.id == "optional" and node.args:
        return str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else None
    return None


def _modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of each library that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name.partition(".")[0]) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and (library := _library(node)):
            yield node.lineno, library.partition(".")[0]


def _full_name(node: ast.expr, imported: dict[str, str]) -> str:
    """`numpy.load` of `np.load`; `?.load` of a method of an expression."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, imported)}.{node.attr}".removeprefix("builtins.")
    return "?"


def _is_safe(call: ast.Call) -> bool:
    """True if a call writes, names a library, or is handed what a door has checked."""
    if _library(call):
        return True
    arguments = [*call.args, *(each.value for each in call.keywords)]
    modes = [each.value for each in arguments if isinstance(each, ast.Constant)]
    doors = [each.func.id for each in arguments if _is_named_call(each)]
    return any(mode in ("w", "wb", "a", "x", "r+b") for mode in modes) or any(
        "file" in door or door == "visible" for door in doors
    )


def _is_named_call(node: ast.expr) -> TypeGuard[Any]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _round_the_doors(source: str, place: str = "") -> list[str]:
    """The expressions that open, unpack, import, execute or print without a door."""
    tree = ast.parse(source)
    imported, found = _imported(tree), []
    for line, library in _modules(tree):
        if library not in MODULES and place not in PLACES.get(library, ()):
            found.append(f"line {line}: import {library}")
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        call, name = calls.get(id(node)), _full_name(node, imported)
        is_method = isinstance(node, ast.Attribute) and node.attr in METHODS
        if (name in FUNCTIONS or is_method) and not (call is not None and _is_safe(call)):
            found.append(f"line {node.lineno}: {ast.unparse(call or node)}")
    return found


def test_nothing_goes_round_the_doors() -> None:
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        handed_on = [call for place, call in HANDED_ON if place == name]
        calls = [
            each
            for each in _round_the_doors(file.read_text(), name)
            if each.partition(": ")[2] not in handed_on
        ]
        if calls and name not in TRUSTED and file.name != "__init__.py":  # lazy names of ours
            found[name] = calls
    assert found == {}, "open, import and print through sfumato._core"


@pytest.mark.parametrize(
    "code",
    """open(p)|read = open|print(name)|Path(p).read_bytes()|p.read_text()|p.open()|p.open('rb')
    import numpy as np; np.load(p)|import numpy; numpy.load(p)|from numpy import load; load(p)
    import numpy as np; list(map(np.load, files))|import numpy as np; np.fromfile(p)
    import torch; torch.load(p, weights_only=True)|from torch import load as get; get(p)
    import importlib; importlib.import_module(n)|from importlib import import_module as m; m(n)
    import subprocess; subprocess.run(c)|from subprocess import Popen; Popen(c)
    __import__(n)|exec(text)|eval(text)|import os; os.system(text)|import io; io.open(p)
    import zipfile; zipfile.ZipFile(p)|import csv; csv.DictReader(f)
    from zipfile import ZipFile; ZipFile(p)
    import tarfile; tarfile.open(p)|archive.extractall(p)|import shutil; shutil.unpack_archive(p)
    import typer; typer.echo(name)|from rich.console import Console; Console().print(name)
    import sys; sys.stderr.write(name)|import yaml; yaml.load(text)|import pickle; pickle.load(f)
    from PIL import Image; Image.open(p)|import gzip; gzip.open(p)
    from safetensors.torch import load_file; load_file(p)|map(Path.read_text, files)|read = p.open
    import builtins; builtins.print(n)|import sys; sys.stdout.buffer.write(n)|import socket
    import requests|from urllib.request import urlopen|import http.client|import httpx|import cv2
    import dill|import h5py|import sqlite3|import asyncio|import datasets|import subprocess as s
    from sfumato._core.exports import optional; optional(name, "it", "all")|optional("httpx", "")
    ort = optional('onnxruntime', 'a', 'b'); ort.InferenceSession(p)|import os; os.execl(c)
    compile(text, '', 'exec')|import shutil; shutil.copyfile(p, q)""".replace("\n", "|").split("|"),
)
def test_a_new_place_is_found(code: str) -> None:
    assert _round_the_doors(code.strip()) != []


def test_the_trusted_places_exist() -> None:
    assert [name for name in TRUSTED if not (SOURCE / name).is_file()] == []
