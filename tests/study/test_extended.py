"""Study files that extend others."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.engine import ConfigError
from sfumato.study import load_study, plan
from sfumato.study.config import read_extended

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
    study = load_study(str(third))
    assert list(study.methods) == ["c"]
    assert study.seeds == [7]
    assert study.recipe["train"] == {"epochs": 5, "batch_size": 9}


def test_options_without_a_name_change_what_is_named(base: Path) -> None:
    path = base.with_name("other.yaml")
    path.write_text(
        "extends: base.yaml\nname: other\nrecipe: {data: {size: 24}}\n"
        "methods:\n  a: {}\n  b: {model: {smooth: true}}\n"
        "  c: {model: {name: resnet}}\n  d: {model: vgg}\n"
    )
    study = load_study(path)
    assert study.recipe["data"] == {"name": "scenes", "size": 24}
    models = {run.method: run.config.model for run in plan(study)}
    assert (models["a"]["depth"], models["a"]["smooth"]) == (8, False)
    assert (models["b"]["depth"], models["b"]["smooth"]) == (8, True)
    assert models["c"]["depth"] == 18
    assert models["d"]["name"] == "vgg"


def test_options_of_nothing(base: Path) -> None:
    path = base.with_name("other.yaml")
    path.write_text("extends: base.yaml\nname: x\nmethods: {a: {inputs: {beta: 9.0}}}\n")
    with pytest.raises(ConfigError, match=r"inputs: .*needs a 'name'"):
        plan(load_study(path))
    path.write_text("extends: base.yaml\nname: x\nmethods: {a: {model: {smoth: true}}}\n")
    with pytest.raises(ConfigError, match=r"'smoth' .did you mean 'smooth'"):
        plan(load_study(path))


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


@pytest.mark.parametrize("name", [r"a\0b", r"a\ud800b"])
def test_no_file_has_such_a_name(base: Path, name: str) -> None:
    base.write_text(f'name: a\nextends: "{name}"\n')
    with pytest.raises(ConfigError, match="extends needs the name of a study file"):
        load_study(base)


def test_a_long_chain_is_refused(tmp_path: Path) -> None:
    """It ended in RecursionError, said of a file in the midst of it."""
    for number in range(1_200):
        extended = f"extends: c{number + 1}.yaml\nname: x\n"
        (tmp_path / f"c{number}.yaml").write_text(extended)
    with pytest.raises(ConfigError, match=r"c100\.yaml: is extended by a chain of 100 files"):
        read_extended(tmp_path / "c0.yaml")
