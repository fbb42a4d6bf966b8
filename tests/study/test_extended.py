"""Study files that extend others."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.engine import ConfigError
from sfumato.study import load_study

BASE = """
name: base
title: Base
recipe: {data: scenes, model: {name: resnet, depth: 8}, train: {epochs: 3, batch_size: 9}}
methods: {a: {}, b: {loss: mbls}}
seeds: [0, 1]
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    return path


def test_says_only_what_it_changes(base: Path) -> None:
    path = base.with_name("other.yaml")
    path.write_text(
        "extends: base.yaml\nname: other\nrecipe: {model: {name: vgg}, train: {epochs: 5}}\n"
    )
    study = load_study(path, ["train.batch_size=4"])
    assert (study.name, study.title, study.seeds) == ("other", "Base", [0, 1])
    assert list(study.methods) == ["a", "b"]
    assert study.recipe["model"] == {"name": "vgg"}
    assert study.recipe["train"] == {"epochs": 5, "batch_size": 4}
    third = base.with_name("third.yaml")
    third.write_text("extends: other.yaml\nname: third\nmethods: {c: {}}\nseeds: [7]\n")
    study = load_study(third)
    assert list(study.methods) == ["c"]
    assert study.seeds == [7]
    assert study.recipe["train"] == {"epochs": 5, "batch_size": 9}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: none.yaml\nname: x\n", "none.yaml: no such study file, though .* extends it"),
        ("extends: base.yaml\n", "the study a name of its own"),
        ("extends: 3\nname: x\n", "needs the name of a study file"),
        ("extends: other.yaml\nname: x\n", "extends other.yaml, which extends it"),
        ("extends: base.yaml\nname: x\nsedes: [1]\n", "unknown key; did you mean 'seeds'"),
        ("extends: base.yaml\nname: x\nrecipe: 3\n", "recipe: .*got 3"),
    ],
)
def test_mistakes(base: Path, text: str, said: str) -> None:
    path = base.with_name("other.yaml")
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_study(path)
