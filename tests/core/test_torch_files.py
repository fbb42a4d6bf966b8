"""Files of `torch.save` from strangers: what is read, and what would take memory, time or code."""

from __future__ import annotations

import io
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato._core.torch_files import load_tensors, read_tensors


def saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def with_pickle(pickle: bytes) -> bytes:
    """A file of `torch.save` whose values are unpickled from other bytes."""
    made, file = io.BytesIO(), io.BytesIO(saved(torch.ones(2)))
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(made, "w") as z:
        for entry in source.infolist():
            is_pickle = entry.filename.endswith("data.pkl")
            z.writestr(entry.filename, pickle if is_pickle else source.read(entry))
    return made.getvalue()


CONTENTS = [
    torch.arange(6).view(2, 3),
    {"probs": torch.rand(4, 3), "labels": torch.arange(4), "names": ["a", "b"], "share": 0.5},
    {"model": OrderedDict(w=torch.ones(2, 2, dtype=torch.bfloat16)), "kind": torch.float32},
    {"optimiser": {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1, "n": None}]}},
    {"weight": torch.nn.Parameter(torch.ones(3)), "size": torch.Size([2, 3]), "on": (True, False)},
    {f"layer{number}.weight": torch.full((2,), float(number)) for number in range(500)},
    {"labels": [*range(5000)], "names": [str(number) for number in range(5000)]},
]
DEEP = b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s."  # a segmentation fault
PAIRS = b"K\x01K\x02\x86q\x00" + b"h\x00h\x00\x86q\x00" * 20
BIG = b"}q\x00(" + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(100_000)) + b"u"
COPY = b"ccollections\nOrderedDict\nh\x00\x85R"
VIEW = b"ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n(NNX\x03\x00\x00\x00cpu\x89tR."


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
def test_what_torch_saves_of_tensors_is_read(content: Any, is_new: bool) -> None:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=is_new)
    expected = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert str(load_tensors(file)) == str(expected)


@pytest.mark.parametrize(
    ("pickle", "message"),
    [
        (DEEP, "nested too deeply"),
        (b"\x80\x02}K\x01" + b"q\x01h\x01\x86" * 60 + b"K\x01s.", "far too many"),  # 2^60 hashes
        (b"\x80\x02c__builtin__\nbytearray\nJ\x00\x00\x00\x7f\x85R.", "more than tensors"),
        (b"\x80\x02ctorch.storage\nUntypedStorage\nJ\x00\x00\x00\x7f\x85R.", "more than tensors"),
        (b"\x80\x02" + PAIRS + b"}h\x00Ns" * 400 + b".", "far too many"),  # each hashes 2^21 values
        (b"\x80\x02" + BIG + COPY * 150 + b".", "far too many"),
        (b"\x80\x02" + VIEW, "more than tensors"),
        (b"\x80\x02h\x07.", "not as torch.save writes them"),
        (b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00echo\x85R.", "more than tensors"),
    ],
    ids=["depth", "doubled", "bytearray", "storage", "keys", "copies", "view", "odd", "code"],
)
def test_values_that_would_take_memory_time_or_code(pickle: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_tensors(io.BytesIO(with_pickle(pickle)))


def test_files_of_before_pytorch_1_6_are_looked_at_too() -> None:
    file = io.BytesIO()
    torch.save({"a": 1}, file, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match="nested too deeply"):
        load_tensors(io.BytesIO(file.getvalue().replace(b"\x80\x02}q\x00X\x01", DEEP)))


def test_all_readers_find_the_same_directory(tmp_path: Path) -> None:
    """Python's zipfile finds a directory by its end, PyTorch where that end says it begins."""
    content = saved({"probs": torch.ones(2, 2)})
    read_tensors(_written(tmp_path, content))
    length, start = struct.unpack("<QQ", content[-58:-42])
    other = content[start : start + length]  # a second directory, which nothing points at by place
    two = content[:start] + other + content[start:]
    for changed in (two, content + b"more", b"before" + content, content[:-1], b"PK\x05\x06"):
        with pytest.raises(ValueError, match=r"torch\.save"):
            read_tensors(_written(tmp_path, changed))


def _written(folder: Path, content: bytes) -> Path:
    path = folder / "p.pt"
    path.write_bytes(content)
    return path
