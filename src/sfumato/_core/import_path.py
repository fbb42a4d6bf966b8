"""Import what a study names as `package.module:Name`, and digest the code behind it."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from sfumato._core.spec import nearest

_OF_PYTHON = {Path(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib")}


def source_digest(module: ModuleType) -> str | None:
    """A short digest of a module's source and of what it imports beside it.

    None for what has no file, as the modules that are part of Python itself.
    """
    if getattr(module, "__file__", None) is None:
        return None
    file = Path(str(module.__file__))
    root = root_of(module.__name__, file)
    files = {file} if is_installed(root) else _with_imports(module.__name__, file, root)
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(_content(path))
    return digest.hexdigest()[:12]


def root_of(name: str, file: Path) -> Path:
    """The folder that a module's name is counted from: `a` of `a/b/c.py` for `b.c`."""
    depth = name.count(".") + (file.stem == "__init__")
    return file.parents[min(depth, len(file.parents) - 1)]


def is_installed(root: Path) -> bool:
    """True if the modules of a folder are Python's own or were put there by an installer."""
    return root in _OF_PYTHON or bool({"site-packages", "dist-packages"} & set(root.parts))


def _with_imports(name: str, file: Path, root: Path) -> set[Path]:
    """The file, the packages around it, and all that they import below `root`."""
    found: set[Path] = set()
    waiting = [file, *_files(name, root)]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix == ".py":
            package = path.relative_to(root).parent.parts
            for imported in _imports(_content(path), package):
                waiting += _files(imported, root)
    return found


def _files(name: str, root: Path) -> Iterator[Path]:
    """The files that importing a dotted name executes, of those below `root`."""
    place = root
    for part in name.split("."):
        place /= part
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if path.is_file():
                yield path


@lru_cache(maxsize=1024)
def _imports(content: bytes, package: tuple[str, ...]) -> tuple[str, ...]:
    """The dotted names that a file may import, wherever in the file; none where it is no Python."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return ()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = (*above, node.module) if node.module else above
            # `from package import thing`: the thing may be a module.
            names += [".".join((*base, alias.name)) for alias in node.names]
    return tuple(dict.fromkeys(names))


def _content(path: Path) -> bytes:
    """Without the line ends of another system."""
    return path.read_bytes().replace(b"\r\n", b"\n")


_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_NAME = re.compile(rf"({_DOTTED}):({_DOTTED})")


# Folders that modules were imported from, and digests of the modules as of then.
_folders: set[Path] = set()
_digests: dict[str, str | None] = {}


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
    """Let names be imported, from `folder` first, as Python does in the folder of a script.

    Only for names that the user wrote, or said to trust. None leaves the door as it is.
    """
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
    """True if a name has the form `package.module:Name`."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def import_named(name: str) -> tuple[Any, str | None]:
    """Return what `package.module:Name` names, and the digest of its source.

    Example:
        >>> with searching(Path()):
        ...     import_named("fractions:Fraction")[0]
        <class 'fractions.Fraction'>
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} must have the form package.module:Name")
    search = _search.get()
    if search is None:
        raise ValueError(
            f"{name!r} is an import path, and importing executes its module: nothing was imported. "
            "Where you trust it, pass modules= (--modules), the folder of its modules"
        )
    if found[1] == "__main__":
        raise ValueError(f"{name!r}: workers can't import a script's own names: use a module")
    module = _import(found[1], search)
    thing: Any = module
    for part in found[2].split("."):
        if not hasattr(thing, part):
            file = getattr(module, "__file__", None)
            place = f"module {module.__name__!r}{f' ({_short(file)})' if file else ''}"
            near = nearest(part, [each for each in dir(thing) if not each.startswith("_")])
            raise ValueError(f"{place} has no {part!r}{near}")
        thing = getattr(thing, part)
    return thing, _digests.get(found[1]) or source_digest(module)


def place_of(error: BaseException) -> str:
    """`my_losses.py, line 12`: the innermost line of a study's own modules behind an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_own(each.filename)]
    if not frames:
        return "" if error.__cause__ is None else place_of(error.__cause__)
    return f"{_short(frames[-1].filename)}, line {frames[-1].lineno}"


def _is_own(file: str) -> bool:
    """True if a file is the user's: in the study's folder, or neither ours nor installed."""
    path, folder = Path(file), module_folder()
    if folder is not None and not path.is_relative_to(folder):
        return False
    is_ours = path.is_relative_to(Path(__file__).parents[1])
    return path.is_file() and not (is_ours or any(is_installed(each) for each in path.parents))


def _import(name: str, search: _Search) -> ModuleType:
    search.begin()
    _forget_what_is_stale(name, search.folder)
    _folders.add(search.folder)
    if (known := sys.modules.get(name)) is not None:
        return known
    before = set(sys.modules)
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        _forget(_folders)  # helpers that it had imported before it failed
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):  # not one it imports
            near = nearest(name, [path.stem for path in search.folder.glob("*.py")])
            where = f"in {search.folder} or installed"
            raise ValueError(f"there is no module {name!r} {where}{near}") from None
        raise ValueError(_failed(name, error)) from error
    for each in set(sys.modules) - before:
        if _home(each, sys.modules[each]) == search.folder:
            _digests[each] = source_digest(sys.modules[each])
    return module


def _forget_what_is_stale(name: str, folder: Path) -> None:
    """Let modules be imported anew where they changed, or belong to another study."""
    _forget(_folders - {folder})
    top = name.partition(".")[0]
    known, beside = sys.modules.get(top), PathFinder.find_spec(top, [str(folder)])
    if known is None or beside is None or beside.origin is None:
        return
    if _home(top, known) != folder:
        where = known.__dict__.get("__file__") or "Python itself"
        raise ValueError(f"{beside.origin} has the name of another module ({where}): rename it")
    loaded, digest = sys.modules.get(name), _digests.get(name)
    if loaded is not None and digest is not None and digest != source_digest(loaded):
        _forget({folder})


def _forget(folders: set[Path]) -> None:
    """Drop the modules of these folders, helpers included, so that they are imported anew."""
    if not folders:
        return
    for name, module in list(sys.modules.items()):
        if not name.startswith("__") and _home(name, module) in folders:
            del sys.modules[name]
            _digests.pop(name, None)
    _folders.difference_update(set(folders))


def _home(name: str, module: Any) -> Path | None:
    """The folder that a module's name is counted from."""
    file = getattr(module, "__dict__", {}).get("__file__")
    return root_of(name, Path(file)) if isinstance(file, str) else None


def _failed(name: str, error: BaseException) -> str:
    place = place_of(error)
    said = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    where = f": {place}" if place else ""
    kind = type(error).__name__
    return f"module {name!r} can't be imported{where}: {kind}: {said or 'no reason given'}"


def _short(file: str) -> str:
    """A file beside the study by its name there, any other by its whole path."""
    path, folder = Path(file), module_folder()
    if folder is not None and path.is_relative_to(folder):
        return path.relative_to(folder).as_posix()
    return str(path)
