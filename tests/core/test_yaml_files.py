"""YAML that says what it seems to say: no key twice, no bombs; anchors and merge keys work."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from sfumato._core.yaml_files import MOST_VALUES, parse_yaml

MERGED = """
base: &base {x: 1, y: 2}
more: &more {<<: *base, y: 3}
all: {<<: [*more, *base], z: [*base, *base]}
"""


def test_anchors_and_merge_keys() -> None:
    found = parse_yaml(MERGED)
    assert found == yaml.safe_load(MERGED)
    assert found["all"] == {"x": 1, "y": 3, "z": [{"x": 1, "y": 2}] * 2}
    assert parse_yaml("") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is there already, in line 1"),
        ("methods:\n  x: {}\n  'x': {}\n", "line 3: the key 'x' is there already, in line 2"),
        ("a: &a [1, *a]", "line 1: the anchor refers to itself"),
        ("[" * 5000, "nested too deeply"),
        ("a: [1", "line 1"),
        (
            "a: 1\nb: !!int ''",
            "line 2: '' can't be read as int; correct it, or write text in quotes",
        ),
        ("a: !!float ''", "line 1: '' can't be read as float"),
        ("a: {b: [1, !!bool x]}", "line 1: 'x' can't be read as bool"),
        ("!!timestamp x: 1", "line 1: 'x' can't be read as timestamp"),
        ("a: !!binary é", "line 1"),
        ("a: 1" + ":59" * 200 + ".5", r"line 1: '1:59\S+\.5' can't be read as float"),
        ("a: 0x" + "f" * 9000, r"line 1: '0xf\S+f' can't be read as int"),
        ("a: !!python/object:os.system {}", "line 1: could not determine a constructor"),
    ],
)
def test_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)


def test_numbers_with_an_exponent_where_a_person_wrote_them() -> None:
    text = "{a: 1e-3, b: [-2.5E6, .5e1], c: '1e3', 1e2: x1e2, d: 1e, e: !!str 1e3}"
    words = {"c": "1e3", "1e2": "x1e2", "d": "1e"}
    found = parse_yaml(text, by_hand=True)
    assert found == {"a": 0.001, "b": [-2.5e6, 5.0], **words, "e": found["e"]}
    assert parse_yaml("digest: 12345e678901") == {"digest": "12345e678901"}


@pytest.mark.parametrize("form", ["[{}]", "{{<<: [{}]}}"], ids=["lists", "merge keys"])
def test_a_bomb_does_not_go_off(form: str) -> None:
    """Nine levels of nine aliases would be 387 million values."""
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 10):
        inner = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {form.format(inner)}")
    with pytest.raises(ValueError, match=f"more than {MOST_VALUES:,} values"):
        parse_yaml("\n".join(lines))


@pytest.mark.parametrize("depth", [120, 100_000])
def test_yaml_is_not_deep(depth: int) -> None:
    with pytest.raises(ValueError, match=r"nested (more than 100|too) deep"):
        parse_yaml("[" * depth + "]" * depth)


def test_a_character_that_yaml_does_not_know() -> None:
    with pytest.raises(ValueError, match="special characters are not allowed"):
        parse_yaml("a: 1\x00")


@pytest.mark.parametrize("line", ["a: 1\n", "- 1\n", "- [[[]]]\n"])
def test_a_megabyte_ends_soon(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated keys took 25 seconds: all were read before the second one was looked at."""
    nodes = 0
    compose = yaml.SafeLoader.compose_node

    def counted(self: yaml.SafeLoader, *place: Any) -> Any:
        nonlocal nodes
        nodes += 1
        return compose(self, *place)

    monkeypatch.setattr(yaml.SafeLoader, "compose_node", counted)
    with pytest.raises(ValueError, match=r"already|more than"):
        parse_yaml(line * (2**20 // len(line)))
    assert nodes <= (5 if line.startswith("a") else MOST_VALUES + 5)
