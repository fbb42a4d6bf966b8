"""Write the reference of study files, docs/keys.md, from their schema.

Run: python -m tools.keys_page
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sfumato.engine.config.kinds import NAME_KINDS, PLURALS, SPEC_KINDS
from sfumato.study.schema import catalogue, study_schema

KEYS = Path(__file__).parents[1] / "docs" / "keys.md"


def keys_page() -> str:
    """Return the page as Markdown: every key of the schema, and every name that a key takes."""
    schema = study_schema()
    recipe = schema["$defs"]["Changes"]
    sections: list[str] = [_PAGE, "## The file\n", _keys_table(schema, schema)]
    sections += ["## The recipe, and what a method changes\n", _keys_table(recipe, schema)]
    for key, content in recipe["properties"].items():
        section = _section_of(content, schema)
        if section is not None:
            sections += [f"## {key}\n", _keys_table(section, schema, f"{key}.")]
    for kind, names in catalogue().items():
        if kind != PLURALS["predict"]:  # its names are keys, which have a section
            sections += [f"## Names: {kind}\n", _names_table(names)]
    return "\n".join(sections)


_PAGE = """# Every key of a study file

[Studies](studies.md) explains how a study file works. This page is its reference: key, type,
default and meaning. `sfumato list` shows the names in the terminal, and editors complete keys with
[the JSON schema](../studies/study.schema.json).
"""


def _keys_table(section: dict[str, Any], schema: dict[str, Any], prefix: str = "") -> str:
    head = ["| key | type | default | meaning |\n", "|---|---|---|---|\n"]
    return "".join([*head, *_keys_rows(section, schema, prefix)])


def _keys_rows(section: dict[str, Any], schema: dict[str, Any], prefix: str) -> Iterator[str]:
    """A row for each key, those of a mapping inside a section behind its own."""
    for key, content in section["properties"].items():
        is_required = key in section.get("required", ())
        default = "required" if is_required else _default(content.get("default"))
        meaning = " ".join(content.get("description", "").split())
        yield f"| `{prefix}{key}` | {_NAMED.get(key) or _type(content)} | {default} | {meaning} |\n"
        inner = _section_of(content, schema)
        if inner is not None and prefix:
            title = "TITLE." if "additionalProperties" in content else ""
            yield from _keys_rows(inner, schema, f"{prefix}{key}.{title}")


def _section_of(content: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | None:
    """The mapping of fixed keys that a key holds, or each title of it, if it holds one."""
    if "additionalProperties" in content:
        content = content["additionalProperties"] or {}
    for form in content.get("anyOf", [content]):
        name = form.get("$ref", "").rpartition("/")[2]
        if name and name != "Changes":
            return dict(schema["$defs"][name])
    return None


def _type(content: dict[str, Any]) -> str:
    if "anyOf" in content:
        forms = dict.fromkeys(_type(each) for each in content["anyOf"])
        return " or ".join(each for each in forms if each != "null")
    if "enum" in content or "const" in content:
        return ", ".join(f"`{each}`" for each in content.get("enum", [content.get("const")]))
    if "$ref" in content or content.get("type") == "object":
        return "mapping"
    if content.get("type") == "array":
        return f"list of {_type(content['items'])}s"
    bounds = [f"{sign} {content[key]:g}" for key, sign in _BOUNDS.items() if key in content]
    return ", ".join([content.get("type", "any"), *bounds])


# What keys that hold names take, in place of all names at once.
_NAMED = {
    **{kind: f"a [name](#names-{PLURALS[kind]}), with or without options" for kind in SPEC_KINDS},
    **{kind: f"`all`, or list of [names](#names-{PLURALS[kind]})" for kind in NAME_KINDS},
}

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _default(value: Any) -> str:
    if value is None or value == {} or (isinstance(value, dict) and "name" not in value):
        return "–"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value or chr(34) * 2}`"


def _names_table(names: dict[str, str]) -> str:
    if not any(names.values()):
        return textwrap.fill(", ".join(f"`{name}`" for name in names), 100) + "\n"
    shown = {name: f"`{options}`" if options else "–" for name, options in names.items()}
    rows = [f"| `{name}` | {options} |\n" for name, options in shown.items()]
    return "".join(["| name | options and defaults |\n", "|---|---|\n", *rows])


if __name__ == "__main__":
    KEYS.write_text(keys_page(), encoding="utf-8")
