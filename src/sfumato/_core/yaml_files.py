"""YAML as plain data, without what makes a study file say something else than it seems to."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from sfumato._core.files import UnreadableFileError, check_depth, read_bytes, write_text

MOST_VALUES = 100_000
_MOST_BYTES = 2**20  # some seconds at worst; a study file has some kilobytes
_MERGE = "tag:yaml.org,2002:merge"
_TEXT, _FLOAT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"
_NUMBERS, _LONGEST_NUMBER = ("tag:yaml.org,2002:int", _FLOAT), 1_000  # characters
_SCIENTIFIC = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


def read_yaml(path: Path, *, by_hand: bool = False, within: Path | None = None) -> Any:
    """Read YAML as plain data, naming the file where it is broken; as `parse_yaml`."""
    content = read_bytes(path, within=within, most=_MOST_BYTES)
    try:
        return parse_yaml(content.decode("utf-8"), by_hand=by_hand)
    except ValueError as error:  # of the encoding or of the content
        raise UnreadableFileError(f"{path} is not valid YAML: {error}") from None


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

    Example:
        >>> parse_yaml("a: &a {x: 1, y: 2}\\nb: {<<: *a, y: 3}")["b"]
        {'x': 1, 'y': 3}
        >>> parse_yaml("rate: 1e-3", by_hand=True)
        {'rate': 0.001}
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _size(node, {})
        if by_hand:
            _read_numbers(node, set())
        content = loader.construct_document(node)
        check_depth(content)
        return content
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(_reason(error)) from None


class _Loader(yaml.SafeLoader):
    """Stops at the first key that is there twice, and at too many values, before reading on."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

        self._count = 0
        self._keys: dict[int, dict[tuple[str, str], yaml.Node]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        node = super().compose_node(parent, index)
        self._count += 1
        if self._count > MOST_VALUES and node is not None:
            raise ValueError(f"{_line(node)}: it has more than {MOST_VALUES:,} values")
        # PyYAML asks for a key with no index, then for its value with the key as index.
        if isinstance(parent, yaml.MappingNode) and index is None:
            self._refuse_duplicate(parent, node)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
                raise ValueError
            return super().construct_object(node, deep=deep)
        except (yaml.YAMLError, RecursionError, MemoryError):
            raise
        except Exception:  # PyYAML lets pass whatever Python says of a value that its tag can't be
            reason = f"{reprlib.repr(node.value)} can't be read as {node.tag.rpartition(':')[2]}"
            remedy = "correct it, or write text in quotes and without a tag"
            raise ConstructorError(None, None, f"{reason}; {remedy}", node.start_mark) from None

    def _refuse_duplicate(self, parent: yaml.MappingNode, key: yaml.Node | None) -> None:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            return
        seen = self._keys.setdefault(id(parent), {})
        first = seen.setdefault((key.tag, key.value), key)
        if first is not key:
            raise ValueError(
                f"{_line(key)}: the key {key.value!r} is there already, in {_line(first)}; "
                "rename or remove one of them"
            )


def _size(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Count the values of a node with every alias written out; look at each node once."""
    if id(node) in known:
        size = known[id(node)]
        if size is None:
            raise ValueError(f"{_line(node)}: the anchor refers to itself")
        return size
    known[id(node)] = None  # under way
    size = 1 + sum(_size(each, known) for each in _inside(node))
    if size > MOST_VALUES:
        raise ValueError(
            f"{_line(node)}: with its aliases written out it has more than {MOST_VALUES:,} values"
        )
    known[id(node)] = size
    return size


def _inside(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _read_numbers(node: yaml.Node, seen: set[int]) -> None:
    """Make numbers of all values such as 1e-3; names, quoted or tagged ones stay words."""
    if id(node) in seen:
        return
    seen.add(id(node))
    inner = _inside(node)
    for value in inner[1::2] if isinstance(node, yaml.MappingNode) else inner:
        _read_numbers(value, seen)
    is_bare_word = isinstance(node, yaml.ScalarNode) and node.tag == _TEXT and node.style is None
    if is_bare_word and _SCIENTIFIC.fullmatch(node.value):
        node.tag = _FLOAT


def _reason(error: yaml.YAMLError) -> str:
    """Return in one line what PyYAML says in several."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        said = ", ".join(filter(None, (error.context, error.problem)))
        return f"line {error.problem_mark.line + 1}: {said}"
    return " ".join(str(error).split())


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
