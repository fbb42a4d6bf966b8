"""Files are whole or absent."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sfumato._core.files import (
    UnreadableFileError,
    file_in_the_way,
    index_entries,
    is_file,
    map_array,
    open_file,
    plain_name,
    read_arrays,
    read_bytes,
    read_json,
    write_arrays,
    write_atomically,
    write_json,
    write_text,
)
from sfumato._core.yaml_files import read_yaml


def test_a_failing_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert read_json(path) == {"x": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "a.json"

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        OSError, match=r"no room on the disk \([\d,]+ kB are left\); free"
    ) as raised:
        write_atomically(path, fail)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(path))
    assert not list(path.parent.iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 0))
    with pytest.raises(OSError, match="no room on the disk"):  # as NumPy and Pillow say it
        write_atomically(path, lambda _: (_ for _ in ()).throw(OSError("9 requested, 3 written")))


def test_text_without_utf8_is_written_as_its_codes(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "caf\udce9 \ud800 é")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == r"caf\xe9 \ud800 é"


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder; name a file in it") as raised:
        write_json(tmp_path, {})
    assert raised.value.filename == str(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_file_that_is_in_a_folder_s_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert file_in_the_way(tmp_path / "new" / "one") is None
    assert file_in_the_way(tmp_path / "file") == tmp_path / "file"
    assert file_in_the_way(tmp_path / "file" / "a" / "b") == tmp_path / "file"


def test_json_has_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": float("nan"), "y": [float("inf"), 1.5]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": None, "y": [None, 1.5]}


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Object arrays"):
        write_arrays(tmp_path / "a.npz", {"x": np.array([{}], dtype=object)})
    assert list(tmp_path.iterdir()) == []


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "a.yaml").write_text("a: [")
    with pytest.raises(ValueError, match=r"a\.json is unreadable \(not valid JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"a\.yaml is not valid YAML"):
        read_yaml(tmp_path / "a.yaml")


def test_an_array_that_claims_more_than_it_has_gets_no_room(tmp_path: Path) -> None:
    """Found by the stress test: forty gigabytes were asked for, for a file of a kilobyte."""
    header = io.BytesIO()
    claim = {"descr": "<f4", "fortran_order": False, "shape": (10**10,)}
    np.lib.format.write_array_header_1_0(header, claim)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(100))
    with pytest.raises(UnreadableFileError, match=r"a\.npy has 228 bytes, not 40000000000"):
        read_arrays(path)


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0
    with pytest.raises(
        UnreadableFileError, match=rf"{tmp_path.name} is unreadable \(it is no plain"
    ):
        open_file(tmp_path)
    if before:
        assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b", "a\0b", "a" * 5000, None, 5])
def test_names_in_files_are_plain_and_short(tmp_path: Path, name: object) -> None:
    with pytest.raises(UnreadableFileError, match="must be a plain name") as raised:
        plain_name(name, tmp_path / "study.json")
    assert len(str(raised.value)) < len(str(tmp_path)) + 250
    assert not is_file(tmp_path / str(name))


def _npy(shape: tuple[int, ...], kind: str) -> bytes:
    header = io.BytesIO()
    content = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, content)
    return header.getvalue() + bytes(64)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_npy((2**62, 2**62), "<f4"), "has 192 bytes, not "),
        (_npy((-5,), "<f4"), "has 192 bytes, not -20"),
        (_npy((2,), "|O"), "holds object values; save plain numbers"),
        (_npy((2,), "|V8"), "save plain numbers"),
        (b"PK\3\4 and more", r"rename it to end in \.npz"),
        (b"label\n0\n", r"no \.npy file; write it with np\.save"),
        (b"", r"no \.npy file"),
    ],
)
def test_arrays_are_checked_before_they_are_mapped(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        map_array(path)


def test_a_file_may_be_replaced_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker writes its log anew, under the same name, between any two steps of a reader."""
    path = tmp_path / "log.jsonl"
    opened = os.open

    def open_then_replace(name: os.PathLike[str], flags: int) -> int:
        number = opened(name, flags)
        newer = tmp_path / "newer"
        newer.write_text("new")
        newer.replace(path)
        return number

    path.write_text("old")
    monkeypatch.setattr("sfumato._core.files.os.open", open_then_replace)
    assert read_bytes(path, within=tmp_path) == b"old"


@pytest.mark.parametrize(
    "content",
    [
        "null",
        "[1]",
        '{"runs": 3}',
        '{"runs": [3]}',
        '{"runs": [{"run": "a"}]}',
        '{"runs": [{"run": "..", "method": "m", "seed": 0}]}',
        '{"runs": [{"run": "a", "method": 1, "seed": 0}]}',
    ],
)
def test_an_index_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(UnreadableFileError, match=r"study\.json"):
        index_entries(tmp_path)
