"""What all rules of configurations are written with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato.engine.config.part_kinds import Kind, Task
from sfumato.engine.config.parts import find_part, parts

if TYPE_CHECKING:
    from sfumato.engine.config.run_config import RunConfig


def serves(kind: Kind, config: RunConfig, task: Task) -> bool:
    """Whether the part that the run names under `kind` can be used by the task."""
    return task in find_part(kind, getattr(config, kind)["name"]).tasks


def names_for(kind: Kind, task: Task) -> str:
    """The parts of a kind that the task can use, for a message."""
    return " or ".join(parts(kind, task))


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)
