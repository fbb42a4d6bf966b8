"""Names that a package exports, some of them on first use, and libraries that an extra has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def public_names(package: Mapping[str, Any]) -> list[str]:
    """The names in the `globals()` of a package, without modules and those with an underscore.

    A package imports a public name `as` the same name, which makes it public to type checkers too,
    so that each name is said once.
    """
    return sorted(
        name
        for name, value in package.items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    )


def on_first_use(
    package: str, homes: Mapping[str, str], known: Mapping[str, Any]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose `homes` say which module has a name.

    No module may be called like a name that another one gives.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get, lambda: sorted({*known, *homes})


def optional(library: str, needs: str, extra: str) -> Any:
    """Import a library of an extra; the error says who `needs` it and how to install it."""
    try:
        return import_module(library)
    except ImportError as error:
        name = library.partition(".")[0]
        raise ImportError(f"{needs} {name}: python3 -m pip install 'sfumato[{extra}]'") from error
