"""Read files of `torch.save` from strangers: `load_tensors` and `read_tensors`.

PyTorch's `weights_only` runs no code of a file. Yet its few bytes can ask for any memory, hash
without end or nest until the process dies, so the archive and its pickle are looked at before.
"""

from __future__ import annotations

import io
import os
import pickletools
import re
import struct
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch

from sfumato._core.files import MOST_ARRAYS, check_unpacked, open_file

_MOST_PICKLE = 64 * 2**20
_DEEPEST = 100
# What tensors, their storages, sizes and types are made by. Others take any room: `bytearray(n)`,
# copies of views, empty quantised tensors.
_MADE_BY = re.compile(
    r"torch\._utils\._rebuild_(tensor|tensor_v2|parameter|sparse_tensor)|torch\.[a-z]\w*"
    r"|torch\.(?!Untyped|Typed)\w+Storage|collections\.OrderedDict"
    r"|torch\.(Size|nn\.parameter\.Parameter|serialization\._get_layout)"
)
_END, _LOCATOR, _END64 = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"
_MORE_THAN_TENSORS = (
    "it holds more than tensors, numbers and text; save those alone: "
    "torch.save({'probs': ..., 'labels': ...}, FILE)"
)


def read_tensors(path: Path) -> Any:
    """Read what `torch.save` wrote of tensors and plain data; code in it is refused, not run."""
    with open_file(path, most=MOST_ARRAYS) as file:
        if not zipfile.is_zipfile(file):  # older ones say themselves how much memory they want
            raise ValueError("no file of torch.save, or one from before PyTorch 1.6: save it anew")
        return load_tensors(file)


def load_tensors(file: IO[bytes]) -> Any:
    """`torch.load` of tensors and plain data, on the CPU; ValueError for anything else."""
    size = file.seek(0, os.SEEK_END)
    if zipfile.is_zipfile(file):
        _check_directory(file)
        with zipfile.ZipFile(file) as archive:
            check_unpacked(archive, size)
            for entry in archive.infolist():
                if entry.filename.lower().endswith("data.pkl"):  # PyTorch ignores the case
                    if entry.file_size > _MOST_PICKLE:
                        raise ValueError(f"its values take {entry.file_size:,} bytes")
                    _check_pickle(io.BytesIO(archive.read(entry)), entry.file_size)
    else:  # from before PyTorch 1.6: a number, a version, the system, the values, names of storages
        file.seek(0)
        for _ in range(5):
            _check_pickle(file, min(size, _MOST_PICKLE))
    file.seek(0)
    try:
        with warnings.catch_warnings():  # of sparse tensors
            warnings.simplefilter("ignore")
            return torch.load(file, weights_only=True, map_location="cpu")
    except UnpicklingError:  # PyTorch's own message says how to run the code
        raise ValueError(_MORE_THAN_TENSORS) from None


def _check_directory(file: IO[bytes]) -> None:
    """Raise unless the archive ends with its one directory, so that all readers find the same."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 98, 0))
    tail = file.read()
    length, start = struct.unpack("<II", tail[-10:-2]) if len(tail) >= 22 else (0, 0)
    place = size - 22
    is_whole = tail[-22:-18] == _END and tail[-2:] == b"\0\0"
    if tail[-42:-38] == _LOCATOR:
        place = size - 98
        (stated,) = struct.unpack("<Q", tail[-34:-26])
        length, start = struct.unpack("<QQ", tail[40:56])
        is_whole = is_whole and tail[:4] == _END64 and stated == place
    if not is_whole or start + length != place:
        raise ValueError("it is no archive as torch.save writes it; save it anew")


@dataclass
class _Value:
    """A value on the stack of the unpickler: how much is in it, and how deep it nests."""

    size: int = 1
    depth: int = 0

    def take(self, inner: list[_Value]) -> None:
        self.size += sum(value.size for value in inner)
        self.depth = max([self.depth, *(value.depth + 1 for value in inner)])


def _check_pickle(file: IO[bytes], size: int) -> None:
    """Raise where unpickling would call something else, or hash, copy or nest without end."""
    try:
        _simulate(file, size)
    except (IndexError, KeyError):  # it takes what it has not put there
        raise ValueError("its values are not as torch.save writes them; save it anew") from None


def _simulate(file: IO[bytes], size: int) -> None:
    stack: list[_Value | None] = []  # None is a mark
    memo: dict[int, _Value | None] = {}
    work = 0
    for operation, argument, _ in pickletools.genops(file):
        name = operation.name
        if "GLOBAL" in name and not _MADE_BY.fullmatch(str(argument).replace(" ", ".")):
            raise ValueError(_MORE_THAN_TENSORS)
        if name.endswith("PUT") or name == "MEMOIZE":
            memo[len(memo) if argument is None else int(argument)] = stack[-1]
            continue
        taken = _taken(stack, operation)
        if name.endswith("GET"):
            made = memo[int(argument or 0)] or _Value()
        elif name in _FILL:
            made = taken.pop()
            made.take(taken)
        else:
            made = _Value()
            made.take(taken)
        work += sum(value.size for value in taken)  # as many may be hashed or copied
        if made.depth > _DEEPEST or work > 4 * size + 100_000:
            raise ValueError("its values are nested too deeply, or far too many")
        for each in operation.stack_after:
            stack.append(None if each is pickletools.markobject else made)


_FILL = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}


def _taken(stack: list[_Value | None], operation: pickletools.OpcodeInfo) -> list[_Value]:
    """Take from the stack what an operation does, with all that is above the last mark."""
    before = operation.stack_before
    taken: list[_Value] = []
    if pickletools.markobject in before:
        while (value := stack.pop()) is not None:
            taken.append(value)
        before = before[: before.index(pickletools.markobject)]
    return taken + [stack.pop() or _Value() for _ in before]
