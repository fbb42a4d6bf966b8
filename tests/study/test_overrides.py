"""Keys from the command line: checked like the file, and they have the last word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sfumato.engine import ConfigError
from sfumato.study import load_study, plan
from sfumato.study.config import apply_overrides, parse_seeds

STUDY = """
name: small
recipe:
  data: {name: scenes, train: 64, validation: 20, test: 30, size: 16}
  model: resnet
  train: {epochs: 3}
methods:
  plain: {}
  v1.5: {loss: {name: mbls, margin: 6.0}, train: {epochs: 9}}
"""


def _plan(tmp_path: Path, *overrides: str) -> list[Any]:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return [run.config for run in plan(load_study(path, overrides))]


def test_recipe_and_methods_that_set_the_same_key(tmp_path: Path) -> None:
    plain, other = _plan(tmp_path, "train.epochs=5", "train.learning_rate=1e-2", "model.depth=8")
    assert (plain.train.epochs, other.train.epochs) == (5, 5)
    assert plain.train.learning_rate == 0.01
    assert plain.model["depth"] == other.model["depth"] == 8


def test_one_method_and_the_study_itself(tmp_path: Path) -> None:
    changed = _plan(tmp_path, "methods.v1.5.loss.margin=2", "seeds=[3, 4]")
    assert [config.seed for config in changed] == [3, 3, 4, 4]
    assert changed[1].loss["margin"] == 2.0
    assert changed[1].train.epochs == 9


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs", r"write KEY=VALUE"),
        ("trian.epochs=5", r"unknown key 'trian'; did you mean 'train'\?"),
        ("train.epoch=5", r"train\.epoch: unknown key; did you mean 'epochs'\?"),
        ("train.epochs=many", r"train\.epochs: .*got 'many'"),
        ("train.epochs.more=5", r"train\.epochs is 3, which has no keys"),
        ("train.epochs=[", r"not valid YAML"),
        ("loss=aclss", r"did you mean 'acls'"),
        ("methods.v2.loss=acls", r"no such method; the study has 'plain', 'v1\.5'"),
    ],
)
def test_mistakes(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _plan(tmp_path, override)


def test_a_new_method_is_given_whole(tmp_path: Path) -> None:
    assert len(_plan(tmp_path, "methods.v2={loss: acls}")) == 3


def test_the_file_is_left_alone() -> None:
    content = {"name": "a", "recipe": {"train": {"epochs": 1}}, "methods": {"m": {}}}
    apply_overrides(content, ["train.epochs=5"])
    assert content["recipe"] == {"train": {"epochs": 1}}


def test_seeds() -> None:
    assert parse_seeds("0, 2-4,3") == [0, 2, 3, 4]
    with pytest.raises(ConfigError, match="--seeds 1-"):
        parse_seeds("1-")
    with pytest.raises(ConfigError, match="--seeds 3-1: a range counts up; write 1-3"):
        parse_seeds("3-1")


@pytest.mark.parametrize("seeds", ["0-99999999999", "0-5000,6000-12000", "0-" + "9" * 5000])
def test_seeds_are_few(seeds: str) -> None:
    with pytest.raises(ConfigError, match=r"--seeds .*(more than 10,000 seeds|write numbers)"):
        parse_seeds(seeds)
