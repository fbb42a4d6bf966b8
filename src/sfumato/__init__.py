"""Sfumato: smoothing that makes neural classifiers say what they know.

Smoothing happens in four places, one folder each: `sfumato.labels`, `sfumato.inputs`,
`sfumato.features`, `sfumato.predictions`. Importing one of them costs torch and nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.auditing import audit as audit
    from sfumato.trained import evaluate as evaluate

__version__ = "0.1.0"

_MODULES = (
    "analysis",
    "augment",
    "corruptions",
    "data",
    "engine",
    "features",
    "functional",
    "inputs",
    "integrations",
    "labels",
    "metrics",
    "models",
    "predictions",
    "report",
    "study",
)
# No module may be called like one of them.
_FUNCTIONS = {"audit": "auditing", "evaluate": "trained"}


def __getattr__(name: str) -> Any:
    """Load a module when it is first named: `import sfumato` alone costs nothing."""
    if name not in (*_MODULES, *_FUNCTIONS):
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    try:
        if name in _FUNCTIONS:
            return getattr(import_module(f"sfumato.{_FUNCTIONS[name]}"), name)
        return import_module(f"sfumato.{name}")
    except ModuleNotFoundError as error:
        # `help(sfumato)` asks for every name and passes over what raises AttributeError.
        raise AttributeError(
            f"sfumato.{name} needs {error.name}: python3 -m pip install 'sfumato[study]'"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_FUNCTIONS})
