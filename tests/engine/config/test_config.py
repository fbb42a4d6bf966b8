"""Strict configuration: each mistake is one line that names the key and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from sfumato.engine import ConfigError, RunConfig, fingerprint, parse

RECIPE: dict[str, Any] = {"data": "scenes", "model": {"name": "resnet", "depth": 8, "width": 4}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trian": {}}, r"trian: unknown key; did you mean 'train'\?"),
        ({"train": {"lr": 0.1}}, r"train\.lr: unknown key; did you mean 'learning_rate'\?"),
        ({"train": {"epohcs": 5}}, r"train\.epohcs: unknown key; did you mean 'epochs'\?"),
        ({"train": {"epochs": "5"}}, r"train\.epochs: must be a whole number, got '5' \(str\)"),
        ({"train": {"epochs": -1}}, r"train\.epochs: must be 0 or more, got -1"),
        ({"train": {"learning_rate": -1.0}}, r"train\.learning_rate: .*greater than 0"),
        ({"train": {"warmup_epochs": 20.0}}, r"train: warmup_epochs \(20\) must be below epochs"),
        ({"train": {"schedule": "multistep"}}, r"train: milestones .* need each other"),
        ({"train": {"optimizer": "adam", "nesterov": True}}, r"train: nesterov needs"),
        ({"loss": "aclss"}, r"loss: unknown loss 'aclss' \(did you mean 'acls'\?\)"),
        ({"loss": {"name": "mbls", "margn": 6.0}}, r"loss: .*no parameter 'margn'.*'margin'"),
        ({"loss": {"name": "mbls", "margin": "6"}}, r"loss: margin of loss 'mbls' must be float"),
        ({"model": {"name": "resnet", "depth": 9}}, r"model: depth of model 'resnet' must be one"),
        ({"model": {"name": "resnet", "num_classes": 3}}, r"model: num_classes .* remove it"),
        ({"data": "senes"}, r"data: unknown data 'senes' \(did you mean 'scenes'\?\)"),
        ({"augment": {"name": "basic", "crop": 1.5}}, r"augment: crop .* must be int"),
        ({"seed": -1}, r"seed: must be 0 or more"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {**RECIPE, **change})


def test_missing_key_and_wrong_shape() -> None:
    with pytest.raises(ConfigError, match="model: this key is required"):
        parse(RunConfig, {"data": "scenes"})
    with pytest.raises(ConfigError, match="expected a mapping of keys, got list"):
        parse(RunConfig, [])


def test_several_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(RunConfig, {**RECIPE, "train": {"epochs": "x", "momentum": 2.0}}, "a.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("a.yaml: train.") for line in lines)


def test_fingerprint_is_of_the_resolved_configuration() -> None:
    plain = parse(RunConfig, {**RECIPE, "loss": "mbls"})
    spelled = parse(RunConfig, {**RECIPE, "loss": {"name": "mbls", "margin": 10, "weight": 0.1}})
    other = parse(RunConfig, {**RECIPE, "loss": {"name": "mbls", "margin": 6.0}})
    assert fingerprint(plain) == fingerprint(spelled)
    assert fingerprint(plain) != fingerprint(other)


def test_resolved_configuration_reads_back() -> None:
    config = parse(RunConfig, {**RECIPE, "loss": "acls", "augment": "basic"})
    again = parse(RunConfig, config.model_dump(mode="json"))
    assert fingerprint(again) == fingerprint(config)
