"""YAML as plain data, without what makes a study file say something else than it seems to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sfumato._core.files import DamagedFileError, write_text

MOST_VALUES = 100_000
_MERGE = "tag:yaml.org,2002:merge"
_TEXT, _FLOAT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"
_SCIENTIFIC = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


def read_yaml(path: Path, *, by_hand: bool = False) -> Any:
    """Read YAML as plain data, naming the file where it is broken; as `parse_yaml`."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), by_hand=by_hand)
    except ValueError as error:  # of the encoding or of the content
        raise DamagedFileError(f"{path} is not valid YAML: {error}") from None


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write YAML atomically, keys in their given order."""
    write_text(path, yaml.safe_dump(dict(content), sort_keys=False))


def parse_yaml(text: str, *, by_hand: bool = False) -> Any:
    """Plain data from YAML; anchors, aliases and merge keys work.

    Refuses a key that stands twice in a mapping, of which YAML readers drop the first without a
    word, and aliases of aliases that a few hundred bytes can blow up to gigabytes.

    Args:
        text: the YAML.
        by_hand: a person wrote it, so that a value 1e-3 is a number, which YAML 1.1 takes for a
            word. In files that a program wrote it is one: the digest of some code.

    Raises:
        ValueError: not YAML, or one of the above; the message names the line.

    Example:
        >>> parse_yaml("a: &a {x: 1, y: 2}\\nb: {<<: *a, y: 3}")["b"]
        {'x': 1, 'y': 3}
        >>> parse_yaml("rate: 1e-3", by_hand=True)
        {'rate': 0.001}
    """
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:  # a character that no YAML may hold
        raise ValueError(str(error)) from None
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _Sizes().of(node)
        if by_hand:
            _read_numbers(node, set())
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    finally:
        loader.dispose()


class _Sizes:
    """How many values each node stands for with every alias written out; looks at each once."""

    def __init__(self) -> None:
        self._known: dict[int, int | None] = {}

    def of(self, node: yaml.Node) -> int:
        if id(node) in self._known:
            size = self._known[id(node)]
            if size is None:
                raise ValueError(f"{_line(node)}: the anchor refers to itself")
            return size
        self._known[id(node)] = None  # under way
        if isinstance(node, yaml.MappingNode):
            _refuse_duplicates(node)
            inner = [each for pair in node.value for each in pair]
        else:
            inner = node.value if isinstance(node, yaml.SequenceNode) else []
        size = 1 + sum(self.of(each) for each in inner)
        if size > MOST_VALUES:
            raise ValueError(
                f"{_line(node)}: with its aliases written out it has more than {MOST_VALUES:,} "
                "values"
            )
        self._known[id(node)] = size
        return size


def _read_numbers(node: yaml.Node, seen: set[int]) -> None:
    """Make numbers of all values such as 1e-3; names, quoted or tagged ones stay words."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            _read_numbers(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _read_numbers(value, seen)
    elif _is_bare_word(node) and _SCIENTIFIC.fullmatch(node.value):
        node.tag = _FLOAT


def _is_bare_word(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _TEXT and node.style is None


def _refuse_duplicates(node: yaml.MappingNode) -> None:
    seen: dict[tuple[str, str], yaml.Node] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        first = seen.setdefault((key.tag, key.value), key)
        if first is not key:
            raise ValueError(
                f"{_line(key)}: the key {key.value!r} is there already, in {_line(first)}; "
                "rename or remove one of them"
            )


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
