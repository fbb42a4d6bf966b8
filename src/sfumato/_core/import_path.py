"""Whatever a study names as `package.module:Name`: found, imported, and named where it fails.

Modules beside a study file are found without being installed: inside `searching(folder)` that
folder is first on `sys.path` from the first such name on, and leaves the path at the end. A study
that names no module never has its folder there.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from sfumato._core.source_digest import is_installed, source_digest

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_NAME = re.compile(rf"({_DOTTED}):({_DOTTED})")
# Modules that were imported from beside a study, with the digest of their source at that time.
_imported: dict[str, str | None] = {}


@dataclass
class _Search:
    """A folder, which comes on the path with the first module that a study names."""

    folder: Path
    is_on_path: bool = False
    wrote_bytecode: bool = False

    def begin(self) -> None:
        """No bytecode is written: it counts as fresh for a second after the file has changed."""
        if not self.is_on_path:
            self.is_on_path, self.wrote_bytecode = True, not sys.dont_write_bytecode
            sys.dont_write_bytecode = True
            sys.path.insert(0, str(self.folder))
            importlib.invalidate_caches()

    def end(self) -> None:
        if self.is_on_path:
            sys.dont_write_bytecode = not self.wrote_bytecode
            if str(self.folder) in sys.path:
                sys.path.remove(str(self.folder))


_search: ContextVar[_Search | None] = ContextVar("where a study's own modules are", default=None)


def module_folder() -> Path | None:
    """The folder in which modules are looked for first; None outside of `searching`."""
    search = _search.get()
    return None if search is None else search.folder


@contextmanager
def searching(folder: Path | None) -> Iterator[None]:
    """Find modules in `folder` first, as Python does in the folder of a script; None: as ever."""
    if folder is None:
        yield
        return
    search = _Search(folder)
    token = _search.set(search)
    try:
        yield
    finally:
        search.end()
        _search.reset(token)


def is_import_path(name: object) -> bool:
    """Whether a name has the form `package.module:Name`."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def import_named(name: str) -> tuple[Any, str | None]:
    """What `package.module:Name` names, and the digest of its source (see `source_digest`).

    Raises:
        ValueError: no such module or name, or the module can't be imported; says in which file
            and line.

    Example:
        >>> import_named("fractions:Fraction")[0]
        <class 'fractions.Fraction'>
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} must have the form package.module:Name")
    if found[1] == "__main__":
        raise ValueError(f"{name!r}: workers can't import a script's own names: use a module")
    module = _import(found[1])
    thing: Any = module
    for part in found[2].split("."):
        if not hasattr(thing, part):
            raise ValueError(f"{_place(module)} has no {part!r}{_offers(thing, part)}")
        thing = getattr(thing, part)
    return thing, _imported.get(found[1]) or source_digest(module)


def place_of(error: BaseException) -> str:
    """`my_losses.py, line 12`: the innermost line of a study's own modules behind an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_own(each.filename)]
    return f"{_short(frames[-1].filename)}, line {frames[-1].lineno}" if frames else ""


def _is_own(file: str) -> bool:
    """Whether a file is the user's: beside the study, or at least neither ours nor installed."""
    path, folder = Path(file), module_folder()
    if folder is not None:
        return path.is_relative_to(folder)
    is_ours = path.is_relative_to(Path(__file__).parents[1])
    return path.is_file() and not (is_ours or any(is_installed(each) for each in path.parents))


def _import(name: str) -> ModuleType:
    if (search := _search.get()) is not None:
        search.begin()
    _forget_others(name)
    before = set(sys.modules)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(_not_found(error.name)) from None
        raise ValueError(_failed(name, error)) from error
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise ValueError(_failed(name, error)) from error
    folder = module_folder()
    if folder is not None:
        new = [each for each in set(sys.modules) - before if _is_inside(sys.modules[each], folder)]
        _imported.update(dict.fromkeys(new))
        if name in _imported:
            _imported[name] = source_digest(module)
    return module


def _forget_others(name: str) -> None:
    """Let a module be imported anew where it changed, or where another study's has its name.

    Raises:
        ValueError: Python itself or an installed package has a module of that name.
    """
    folder, top = module_folder(), name.partition(".")[0]
    known = sys.modules.get(top)
    if folder is None or known is None:
        return
    beside = PathFinder.find_spec(top, [str(folder)])
    if beside is None or beside.origin is None:
        return
    is_other = Path(getattr(known, "__file__", None) or "") != Path(beside.origin)
    if is_other and top not in _imported:
        where = getattr(known, "__file__", None) or "Python itself"
        raise ValueError(f"{beside.origin} has the name of another module ({where}): rename it")
    if is_other or _has_changed(name):
        for each in list(_imported):
            sys.modules.pop(each, None)
        _imported.clear()


def _has_changed(name: str) -> bool:
    """Whether the code of an imported module is no longer that in its file."""
    loaded, digest = sys.modules.get(name), _imported.get(name)
    return loaded is not None and digest is not None and digest != source_digest(loaded)


def _not_found(missing: str) -> str:
    folder = module_folder()
    where = f"in {folder} or installed" if folder is not None else "installed or on the path"
    files = [] if folder is None else [path.stem for path in folder.glob("*.py")]
    return f"there is no module {missing!r} {where}{_nearest(missing, files)}"


def _failed(name: str, error: BaseException) -> str:
    place = place_of(error)
    said = " ".join(str(error).split()) or "no reason given"
    if isinstance(error, SyntaxError):
        said = error.msg
    where = f": {place}" if place else ""
    return f"module {name!r} can't be imported{where}: {type(error).__name__}: {said}"


def _offers(thing: Any, wanted: str) -> str:
    return _nearest(wanted, [each for each in dir(thing) if not each.startswith("_")])


def _nearest(word: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _place(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return f"module {module.__name__!r}" + (f" ({_short(file)})" if file else "")


def _short(file: str) -> str:
    """A file beside the study by its name there, any other by its whole path."""
    path, folder = Path(file), module_folder()
    if folder is not None and path.is_relative_to(folder):
        return path.relative_to(folder).as_posix()
    return str(path)


def _is_inside(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)
