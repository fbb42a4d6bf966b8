"""Files that are written whole or not at all, and the one door to files that others wrote.

Written under a temporary name, then renamed. Read through `open_file`, which waits for no pipe,
follows no link out of a folder and reads no more than it was told to.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import glob
import io
import itertools
import json
import math
import os
import reprlib
import shutil
import stat
import tempfile
import time
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from sfumato._core.text import brief, surrogates_as_codes

Content = TypeVar("Content")
_QUIET_SECONDS = 60
_BLOCK = 65536  # a disk with less room is full
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HEADERS = {
    1: np.lib.format.read_array_header_1_0,
    2: np.lib.format.read_array_header_2_0,
}
# JSON takes twenty times its bytes in memory at worst; results have some megabytes.
MOST_JSON = 64 * 2**20
MOST_DEPTH = 100  # of lists and mappings in each other: any function may go down them by recursion
# Unpacked, of all arrays of a file: more than any test set, and than most machines have.
MOST_ARRAYS = 8 * 2**30
MOST_RATIO, FREE_BYTES = 200, 64 * 2**20
MOST_WORDS = 4 * FREE_BYTES  # of a batch of rows
_COUNTED = {0: 5, 3: 8}  # the type of a page of Parquet to the field with its number of values
_MOST_ENTRIES = 10_000
_MOST_NAME = 255  # characters of a file's name, on all usual disks
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as numpy writes; others unpack in one piece
# A pipe is not waited for, and becomes no terminal of ours; Windows knows neither.
_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
)
_REMEDY = (
    "Give the command that wrote it again: a run's or a study's is 'sfumato run', which sets "
    "unreadable files aside and computes them anew."
)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary)` and rename the result to `path`; a crash leaves `path` as it was."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file in it", str(path))
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as leftovers:
        try:
            handle, name = tempfile.mkstemp(path.suffix, f".{path.name}.", path.parent)
            os.close(handle)
            temporary = Path(name)
            leftovers.callback(temporary.unlink, missing_ok=True)
            write(temporary)
            sync(temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
        except OSError as error:
            if is_full_disk(error, path.parent):  # asked before its room is given back
                leftovers.close()
                raise full_disk(path) from None
            raise


def is_full_disk(error: OSError, folder: Path) -> bool:
    """True if there was no room for what was to be written; NumPy and Pillow give no number."""
    is_unknown = error.errno is None and error.strerror is None
    return error.errno in FULL_DISK or (is_unknown and shutil.disk_usage(folder).free < _BLOCK)


def full_disk(path: Path) -> OSError:
    """The error that says which file has no room, how much is left and what to do."""
    place = next(each for each in path.absolute().parents if each.is_dir())
    left = f"{shutil.disk_usage(place).free / 1e3:,.0f} kB"
    message = f"no room on the disk ({left} are left); free some, or write elsewhere"
    return OSError(errno.ENOSPC, message, str(path))


def file_in_the_way(folder: Path) -> Path | None:
    """The file that stands where `folder` or a folder above it should be; None where none does."""
    nearest = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    return nearest if nearest.exists() and not nearest.is_dir() else None


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers of `path` left; a writer that lives has just touched its file."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*{glob.escape(path.suffix)}"):
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished
            if time.time() - leftover.stat().st_mtime > _QUIET_SECONDS:
                leftover.unlink()


def sync(path: Path) -> None:
    """Push a file's bytes to the disk, so that a rename never outruns them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically; what has no UTF-8 is written as its code, such as `\\xe9`."""
    content = surrogates_as_codes(text).encode()
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically; NaN and infinity are written as null, so that any reader takes it."""
    write_text(path, json.dumps(finite(content), indent=2, allow_nan=False) + "\n")


class ContentError(ValueError):
    """A mistake in a file; the message names it, and quotes nothing of it at any length."""

    def __init__(self, message: str) -> None:
        super().__init__(brief(message))


class UnreadableFileError(ContentError):
    """A file that was cut or changed after it was written; the message names it and the remedy."""


class UnreadableFileWarning(UserWarning):
    """An unreadable file was set aside, and what it held is computed anew."""


def open_file(path: Path, *, within: Path | None = None, most: int | None = None) -> IO[bytes]:
    """Open a file that a stranger may have put there, for reading.

    It must be a plain file, with at most `most` bytes, and lie in `within`, links followed.
    """
    # Opened by its real name, whichever file a writer puts there meanwhile.
    real = path if within is None else check_inside(path, within, strict=True)
    number = os.open(real, _FLAGS)
    try:
        facts = os.fstat(number)
        if not stat.S_ISREG(facts.st_mode):
            raise unreadable_file(path, "it is no plain file", "Put the file itself there.")
        if most is not None and facts.st_size > most:
            raise unreadable_file(
                path, f"it has {facts.st_size:,} bytes, at most {most:,} are read", ""
            )
        return os.fdopen(number, "rb")  # last: of a folder it raises, and names no file
    except BaseException:
        os.close(number)
        raise


def check_inside(path: Path, within: Path, *, strict: bool = False) -> Path:
    """Return the real path of a file or folder, which must lie in `within`, all links followed.

    `strict` also requires that it exists and that every link on the way can be followed.
    """
    real, folder = Path(os.path.realpath(path, strict=strict)), Path(os.path.realpath(within))
    if not real.is_relative_to(folder):
        raise unreadable_file(path, f"it leads out of {within}", "Put the files themselves there.")
    return real


def checked_file(path: Path, *, within: Path | None = None, most: int | None = None) -> Path:
    """The path of a file that `open_file` opens, for libraries that open files themselves."""
    with open_file(path, within=within, most=most):
        return path


def read_bytes(path: Path, *, within: Path | None = None, most: int | None = None) -> bytes:
    """Read what `open_file` opens; Args as there."""
    with open_file(path, within=within, most=most) as file:
        return file.read()


def last_line(path: Path, *, within: Path | None = None) -> str:
    """Return the last line of a recorded traceback, which says what went wrong."""
    text = read_text(path, within=within, most=MOST_JSON, errors="replace")
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason recorded"


def read_text(
    path: Path, *, within: Path | None = None, most: int | None = None, errors: str = "strict"
) -> str:
    """Read UTF-8 text from what `open_file` opens, lines ended as Python ends them."""
    text = read_bytes(path, within=within, most=most).decode("utf-8", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def text_lines(file: IO[str], most: int = MOST_JSON) -> Iterator[str]:
    """The lines of an open text; ValueError at one of more than `most` characters."""
    while line := file.readline(most + 1):
        if len(line) > most:
            raise ValueError(f"a line has more than {most:,} characters")
        yield line


def csv_rows(path: Path, lines: Iterable[str], **form: Any) -> Iterator[tuple[int, list[str]]]:
    """The rows of CSV with the number of the line where each ends; `form` as of `csv.reader`."""
    reader = csv.reader(lines, **form)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise ContentError(f"{path}, line {reader.line_num}: {error}") from None
    except ValueError as error:  # of the lines
        raise ContentError(f"{path}: {error}") from None


def plain_name(name: object, where: Path) -> str:
    """A name of a file or folder that `where` holds, which must not lead to another folder."""
    is_plain = isinstance(name, str) and name not in ("", ".", "..") and len(name) <= _MOST_NAME
    if not is_plain or not str(name).isprintable() or any(each in str(name) for each in "/\\:"):
        raise unreadable_file(where, f"{reprlib.repr(name)} must be a plain name, without a folder")
    return str(name)


def index_entries(study: Path) -> list[dict[str, Any]]:
    """Read which run of a study is which method and seed, from its `study.json`."""
    index = study / "study.json"
    found = read_json(index, within=study)
    entries = found.get("runs") if isinstance(found, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(each, dict)
        and {"run", "method", "seed"} <= each.keys()
        and isinstance(each["method"], str)
        for each in entries
    ):
        raise unreadable_file(index, "it lists no runs with method and seed")
    return [{**each, "run": plain_name(each["run"], index)} for each in entries]


def expanded(path: str | Path) -> Path:
    """The path with `~` followed; ValueError where nobody has that home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ContentError(f"{path}: {error}") from None


def is_file(path: Path) -> bool:
    """True if there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, a circle of links; a NUL, no UTF-8
        return False


def read_json(path: Path, *, within: Path | None = None, remedy: str = _REMEDY) -> Any:
    """Read JSON, naming the file and the remedy where it is broken; `within` as `open_file`."""
    content = read_bytes(path, within=within, most=MOST_JSON)
    try:
        return parse_json(content)
    except ValueError as error:
        raise unreadable_file(path, f"not valid JSON: {error}", remedy) from None


def parse_json(content: bytes) -> Any:
    """Plain data from JSON; ValueError where it is none, no UTF-8 or nested too deeply."""
    try:
        value = json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raise where plain data is nested so deeply that looking at all of it could fail."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for part in inner for each in part if isinstance(each, dict | list)]
        if not level:
            return
    raise ValueError(f"it is nested more than {MOST_DEPTH} deep")


def read_json_lines(path: Path, *, within: Path | None = None) -> list[Any]:
    """Read a file of one JSON value a line, naming the file and the line where it is broken."""
    values = []
    lines = read_bytes(path, within=within, most=MOST_JSON).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            values.append(parse_json(line))
        except ValueError as error:
            raise unreadable_file(path, f"line {number} is not valid JSON: {error}") from None
    return values


def unreadable_file(path: Path, why: str, remedy: str = _REMEDY) -> UnreadableFileError:
    """The error that says which file is broken and what to do."""
    return UnreadableFileError(f"{path} is unreadable ({why}). {remedy}".rstrip())


def read_arrays(path: Path, *, within: Path | None = None) -> dict[str, np.ndarray]:
    """Read an npz that holds no pickles, naming the file and the remedy where it is broken."""
    # In memory first: a failing disk is no unreadable file.
    content = io.BytesIO(read_bytes(path, within=within, most=MOST_ARRAYS))
    try:
        with _checked_arrays(content, MOST_ARRAYS) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except MemoryError:
        raise
    except Exception as error:  # of the archive, its compression or an array: numpy lets all pass
        raise unreadable_file(path, f"not a whole npz: {error}") from None


@contextlib.contextmanager
def open_arrays(path: Path, *, most: int | None = MOST_ARRAYS) -> Iterator[Any]:
    """The arrays of an npz by name, each read when asked for; pickles are refused.

    `most` is how many bytes they may have together; None for any number, as data sets have.
    """
    try:
        with open_file(path, most=most) as file, _checked_arrays(file, most) as arrays:
            yield arrays
    except (EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error)) from error


def _checked_arrays(file: IO[bytes], most: int | None) -> Any:
    """Let numpy read an npz, after checking that it would not fill the memory."""
    if file.read(6) == np.lib.format.MAGIC_PREFIX:
        raise ValueError("is one array, an .npy; rename it to end in .npy")
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        check_unpacked(archive, size, most)
        for entry in archive.infolist():
            with archive.open(entry) as array:
                _check_header(array, entry.filename, entry.file_size)
    file.seek(0)
    return np.load(file, allow_pickle=False)


def check_unpacked(archive: zipfile.ZipFile, size: int, most: int | None = None) -> None:
    """Raise where a zip of `size` bytes unpacks to more than files of this kind do.

    What an entry says is a bound on what Python reads of it, however it was made.
    """
    entries = archive.infolist()
    if len(entries) > _MOST_ENTRIES:
        raise ValueError(f"it has {len(entries):,} entries, more than {_MOST_ENTRIES:,}")
    if any(entry.compress_type not in _PACKED for entry in entries):
        raise ValueError("it is compressed in another way than numpy does; use np.savez_compressed")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > FREE_BYTES + MOST_RATIO * size or (most is not None and unpacked > most):
        raise ValueError(
            f"it unpacks from {size:,} to {unpacked:,} bytes, which is refused; save it with "
            "np.savez, or as Parquet, which is read in batches"
        )


def _check_header(file: IO[bytes], name: str, size: int) -> None:
    """Raise where an array says that it is larger than its bytes, before room is made for it."""
    first, _ = np.lib.format.read_magic(file)
    if first not in _HEADERS:
        raise ValueError(f"{name} is of version {first} of numpy's format")
    try:
        shape, _, dtype = _HEADERS[first](file)
    except (ValueError, TypeError, RecursionError, MemoryError):  # its words recommend pickles
        raise ValueError(f"{name} has no header of numpy's format; write it with np.save") from None
    if dtype.hasobject or dtype.kind == "V" or dtype.itemsize == 0:
        raise ValueError(f"{name} holds {dtype.name} values; save plain numbers or text")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > size or min(shape, default=0) < 0:
        raise ValueError(f"{name} has {size} bytes, not {claimed}")


def map_array(path: Path) -> np.ndarray:
    """The array of an .npy file, which stays on disk until it is looked at; pickles are refused."""
    with open_file(path) as file:
        start = file.read(len(np.lib.format.MAGIC_PREFIX))
        if start.startswith(b"PK"):
            raise ValueError("holds several arrays, an .npz; rename it to end in .npz")
        if start != np.lib.format.MAGIC_PREFIX:
            raise ValueError("no .npy file; write it with np.save")
        file.seek(0)
        _check_header(file, path.name, os.fstat(file.fileno()).st_size)
    found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def parquet_file(path: Path) -> Any:
    """A `pyarrow.parquet.ParquetFile` that unpacks to no more than files of its size do.

    Text is read as numbers into a dictionary, since a word that is there once in the file would
    take its room in every row; `words_of_rows` spells it out.
    """
    from pyarrow import parquet

    facts = checked_file(path).stat()
    text = _columns_of_text(path.absolute(), facts.st_size, facts.st_mtime_ns)
    return parquet.ParquetFile(path, read_dictionary=text)


@functools.lru_cache  # a file of many row groups is opened for each of its parts
def _columns_of_text(path: Path, size: int, changed: int) -> list[str]:
    """The columns of text of a Parquet file as it was at that time, none of which is a bomb."""
    from pyarrow import ArrowInvalid, parquet

    facts = parquet.ParquetFile(path).metadata
    unpacked, text = Counter[str](), set[str]()
    # `facts.schema` only where needed: the two hold each other, and stay until Python looks.
    with open_file(path) as file:
        for group in map(facts.row_group, range(facts.num_row_groups)):
            for place, column in enumerate(map(group.column, range(group.num_columns))):
                width = 8  # a value that repeats takes no bytes in the file
                if column.physical_type == "BYTE_ARRAY":
                    text.add(column.path_in_schema)
                elif column.physical_type == "FIXED_LEN_BYTE_ARRAY":
                    width = max(width, facts.schema.column(place).length)
                needed = max(_bytes_of_pages(file, column), width * column.num_values)
                unpacked[column.path_in_schema] += needed
    for name, needed in unpacked.items():
        if needed > FREE_BYTES + MOST_RATIO * size:
            raise ArrowInvalid(f"{name!r} unpacks to {needed:,} bytes, which is refused")
    return sorted(text)


def _bytes_of_pages(file: IO[bytes], column: Any) -> int:
    """Bytes of a column unpacked, as its pages say: room is made for these, not for the footer's.

    The pages must hold as many values as the footer says; then no others are read.
    """
    from pyarrow import ArrowInvalid

    needed = values = 0
    try:
        words = column.dictionary_page_offset or 0
        file.seek(min(column.data_page_offset, words) if words > 0 else column.data_page_offset)
        while values < column.num_values:
            page = _thrift_struct(file)
            counted = page[_COUNTED[page[1]]][1] if page[1] in _COUNTED else 0
            if min(counted, page[2], page[3]) < 0:
                break
            values, needed = values + counted, needed + page[2]
            file.seek(page[3], os.SEEK_CUR)
    except (LookupError, OSError, TypeError, ValueError):
        values = -1
    if values != column.num_values:
        raise ArrowInvalid(f"the pages of {column.path_in_schema!r} are not as its footer says")
    return needed


def _thrift_struct(file: IO[bytes], depth: int = 0) -> dict[int, Any]:
    """Whole numbers and structs of a page's header by field, in Thrift's compact protocol.

    What such headers don't have is refused: other readers may take it in another way.
    """
    found: dict[int, Any] = {}
    field = 0
    while start := file.read(1)[0]:
        step, kind = divmod(start, 16)
        field += step
        if not step or field > 15 or depth > 2:
            raise ValueError("no header of a page")
        if kind == 12:
            found[field] = _thrift_struct(file, depth + 1)
        elif kind == 8:  # text
            file.seek(_thrift_number(file), os.SEEK_CUR)
        elif kind in (5, 6):
            number = _thrift_number(file)
            found[field] = (number >> 1) ^ -(number & 1)
        elif kind not in (1, 2):  # true and false
            raise ValueError("no header of a page")
    return found


def _thrift_number(file: IO[bytes]) -> int:
    """A number of at most 32 bits, to which other readers would cut it."""
    number = 0
    for place in range(5):
        (byte,) = file.read(1)
        number |= (byte & 127) << 7 * place
        if byte < 128 and number < 2**32:
            return number
    raise ValueError("no header of a page")


def words_of_rows(column: Any, most: int = MOST_WORDS) -> Any:
    """A column of Arrow as it was written: with a word for each row where it was a dictionary.

    Refused where these words have more than `most` bytes.
    """
    import pyarrow as arrow
    from pyarrow import compute

    if arrow.types.is_nested(column.type):  # lists, and what is in them, have words of their own
        inner = column.flatten()
        for each in inner if isinstance(inner, list) else [inner]:
            words_of_rows(each, most)
        return column
    if not arrow.types.is_dictionary(column.type):
        return column
    words = column.dictionary
    if arrow.types.is_string(words.type) or arrow.types.is_binary(words.type):
        lengths = compute.cast(compute.binary_length(words), arrow.int64())
        needed = compute.sum(compute.take(lengths, column.indices)).as_py() or 0
        if needed > most:
            raise arrow.ArrowInvalid(
                f"{len(column):,} rows have words of {needed:,} bytes, which is refused"
            )
    return column.cast(words.type)


def read_or_set_aside(
    path: Path, read: Callable[[Path], Content], consequence: str = "it is computed anew"
) -> Content | None:
    """Read a file; None where there is none, or an unreadable one, which is set aside."""
    try:
        return read(path) if path.exists() else None
    except UnreadableFileError:
        set_aside(path, consequence)
        return None


def set_aside(path: Path, consequence: str) -> None:
    """Rename an unreadable file or folder to a name that nothing reads, and warn."""
    ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    targets = (path.with_name(f"{path.name}.unreadable{end}") for end in ends)
    target = next(each for each in targets if not each.exists())
    try:
        path.rename(target)
    except FileNotFoundError:
        return
    message = f"{path} is unreadable and was renamed to {target.name}: {consequence}"
    warnings.warn(message, UnreadableFileWarning, stacklevel=2)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz atomically; object arrays, which would need pickle, are refused."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    write_atomically(path, write)


def finite(value: Any) -> Any:
    """Turn content into plain data as `write_json` writes it: NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
