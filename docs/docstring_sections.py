"""Lets the site read our docstrings, and shows metrics of groups with what they are called with."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object, Parameters

_HEADING = re.compile(r"^( *)Example:$", re.MULTILINE)


class ExampleSections(Extension):
    """Renames the headings before docstrings are parsed, so that examples are shown as code.

    A section `Example:` is what Griffe calls `Examples:`.
    """

    def on_object(self, *, obj: Object, **_kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _HEADING.sub(r"\1Examples:", obj.docstring.value)
        # A metric of groups that `of_predictions` makes one of predictions.
        if obj.is_function and any("of_predictions" in str(each.value) for each in obj.decorators):
            called = obj.package["metrics.groups.OfPredictions.__call__"]
            obj.parameters = Parameters(*list(called.parameters)[1:])
