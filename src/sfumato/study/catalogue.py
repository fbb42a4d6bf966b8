"""What a study file can name, as `sfumato list` shows it."""

from __future__ import annotations

import inspect

from sfumato.engine.config.part import Part
from sfumato.engine.config.part_kinds import PLURALS
from sfumato.engine.config.parts import parts


def catalogue() -> dict[str, dict[str, str]]:
    """Kind of thing, in the plural -> name -> its parameters with defaults, as text."""
    return {
        plural: {name: _signature(part) for name, part in parts(kind).items()}
        for kind, plural in PLURALS.items()
    }


def names_table() -> str:
    """The names of each kind as a Markdown table, for the documents."""
    rows = [
        f"| `{kind}` | {', '.join(f'`{name}`' for name in parts(kind))} |\n" for kind in PLURALS
    ]
    return "".join(["| key | names |\n", "|---|---|\n", *rows])


def _signature(part: Part) -> str:
    return ", ".join(
        name if option.default is inspect.Parameter.empty else f"{name}={option.default!r}"
        for name, option in part.options.items()
    )
