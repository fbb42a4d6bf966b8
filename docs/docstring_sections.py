"""Lets the site read our docstrings: a section `Example:` is what Griffe calls `Examples:`."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_HEADING = re.compile(r"^( *)Example:$", re.MULTILINE)


class ExampleSections(Extension):
    """Renames the headings before docstrings are parsed, so that examples are shown as code."""

    def on_object(self, *, obj: Object, **_kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _HEADING.sub(r"\1Examples:", obj.docstring.value)
