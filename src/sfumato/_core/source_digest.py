"""A digest of the code behind a module, so that a changed part is another run.

It covers the module's file and every module that it imports, at whatever depth, from the folder
that it lies in (the study's, or that of its package's parent), as its `import` statements say.
What is installed is covered by the named module's own file only: an upgrade of a library leaves
the names of runs as they are, as one of torch does. Data files and modules that are imported by a
computed name are not seen.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType

_LENGTH = 12
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
    return digest.hexdigest()[:_LENGTH]


def root_of(name: str, file: Path) -> Path:
    """The folder that a module's name is counted from: `a` of `a/b/c.py` for `b.c`."""
    depth = name.count(".") + (file.stem == "__init__")
    return file.parents[min(depth, len(file.parents) - 1)]


def is_installed(root: Path) -> bool:
    """Whether the modules of a folder are Python's own or were put there by an installer."""
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
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:length])
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
            base = ".".join((*above, *([node.module] if node.module else [])))
            # `from package import thing`: the thing may be a module.
            names += [".".join(filter(None, (base, alias.name))) for alias in node.names]
    return tuple(dict.fromkeys(names))


def _content(path: Path) -> bytes:
    """Without the line ends of another system."""
    return path.read_bytes().replace(b"\r\n", b"\n")
