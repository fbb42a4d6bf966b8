"""The parts of a configuration as a run keeps them."""

from __future__ import annotations

from typing import Any

from sfumato._core.spec import Spec
from sfumato.engine.config.own_parts import Named
from sfumato.engine.config.parts import resolve_part
from sfumato.engine.config.weight_files import with_digest


def resolved_config(kind: Named, spec: Spec) -> dict[str, Any]:
    """A part with all its options, and with the digest of the file that its weights come from.

    Raises:
        ValueError: there is no such part, or not with these options.
    """
    try:
        found = resolve_part(kind, spec)
        digests = {"weights_digest", "file_digest"}
        has_file = kind == "model" and not digests.isdisjoint(found.params)
        return with_digest(found.config) if has_file else found.config
    except TypeError as error:  # pydantic reports ValueError only
        raise ValueError(str(error)) from None
