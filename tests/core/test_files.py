"""Files are whole or absent."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sfumato._core.files import (
    DamagedFileError,
    file_in_the_way,
    read_arrays,
    read_json,
    write_arrays,
    write_atomically,
    write_json,
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
    with pytest.raises(ValueError, match=r"a\.json is damaged \(not valid JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"a\.yaml is not valid YAML"):
        read_yaml(tmp_path / "a.yaml")


def test_an_array_that_claims_more_than_it_has_gets_no_room(tmp_path: Path) -> None:
    """Found by the campaign: forty gigabytes were asked for, for a file of a kilobyte."""
    header = io.BytesIO()
    claim = {"descr": "<f4", "fortran_order": False, "shape": (10**10,)}
    np.lib.format.write_array_header_1_0(header, claim)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(100))
    with pytest.raises(DamagedFileError, match=r"a\.npy has 228 bytes, not 40000000000"):
        read_arrays(path)
