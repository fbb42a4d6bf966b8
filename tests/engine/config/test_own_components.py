"""A user's own components in a run: checked by their signatures, named by their code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato._core.import_path import searching
from sfumato.engine import (
    ConfigError,
    RunConfig,
    RunDirectory,
    fingerprint,
    load_network,
    parse,
    run,
)
from sfumato.engine.config.build import build_component, build_loss
from sfumato.engine.config.components import is_own, resolve_component
from sfumato.engine.preflight import check_runs
from sfumato.engine.training.steps import load_splits

Content = dict[str, Any]
COMPONENTS = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

NUMBER = 3

class Net(nn.Module):
    def __init__(self, num_classes, in_channels, width: int = 4, layer=nn.Linear, size: int = None):
        super().__init__()
        self.head = layer(in_channels, num_classes)

    def forward(self, images):
        return self.head(images.mean((2, 3)))

def wide(num_classes, image_size):
    assert image_size == (8, 8)
    return Net(num_classes + 1, 3)

class Pixels(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.head = nn.Conv2d(in_channels, num_classes, 1)

    def forward(self, images):
        return self.head(images)

def not_a_network():
    return "net"

def probabilities_and_more(num_classes):
    class Pair(Net):
        def forward(self, images):
            return super().forward(images), images
    return Pair(num_classes, 3)

def tilted(logits, target, *, strength: float = 0.1):
    return F.cross_entropy(logits, target) + strength * logits.square().mean()

def by_sample(logits, target):
    return F.cross_entropy(logits, target, reduction="none")

def not_a_number(logits, target):
    return F.cross_entropy(logits, target) * float("nan")

def unnamed(x, y):
    return F.cross_entropy(x, y)

def nothing():
    return []

class Broken:
    def __len__(self):
        return 9

    def __getitem__(self, number):
        if number == 1:
            raise OSError("gone")
        return torch.zeros(3, 8, 8), 0

def as_float(logits, target):
    return F.cross_entropy(logits, target).item()

def without_gradient(logits, target):
    return F.cross_entropy(logits.detach(), target)

def wrong_inside(logits, target):
    return logits @ target

class Remembers:
    def __call__(self, logits, target):
        return F.cross_entropy(logits, target)

    def end_epoch(self):
        pass

class WithIndex(nn.Module):
    def __init__(self, num_samples: int):
        super().__init__()
        self.register_buffer("seen", torch.zeros(num_samples))

    def forward(self, logits, target, index):
        self.seen[index] += 1
        return F.cross_entropy(logits, target)

class Images:
    def __init__(self, train: bool = True, count: int = 40):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, position):
        return np.full((8, 8, 3), position, dtype=np.uint8), position % 2

def unlabelled(count: int = 20):
    return [image for image, _ in (Images()[n] for n in range(count))]

def no_augmentation():
    return lambda batch: batch

class Forgetful:
    draws = 0

    def apply(self, sample, uniforms, *, void=None):
        return {"image": sample["image"]}

def noise(images, target):
    return images + torch.randn_like(images), target

def only_images(images, target):
    return images

def soft(sample, num_classes):
    return torch.full((len(sample["label"]), num_classes), 1 / num_classes)

def too_few(sample):
    return torch.ones(len(sample["label"]), 1)

def worst(probs, target, data, network, *, share: float = 0.5):
    right = probs.gather(1, target[:, None])
    assert torch.equal(network(data.images).argmax(1), probs.argmax(1))
    return {"worst": right.min(), "ece": share}

def says(probs):
    return "fine"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own")
    (path / "own_parts.py").write_text(COMPONENTS)
    return path


@pytest.fixture
def own(folder: Path) -> Content:
    return {
        "data": {"name": "own_parts:Images"},
        "model": "own_parts:Net",
        "train": {"epochs": 1, "batch_size": 8},
        "evaluate": {"resamples": 0},
    }


Configure = Callable[..., RunConfig]


@pytest.fixture
def configure(folder: Path, own: Content) -> Configure:
    def make(**changes: Any) -> RunConfig:
        with searching(folder):
            return parse(RunConfig, {**own, **changes})

    return make


def test_the_rule_of_names(tmp_path: Path) -> None:
    assert is_own("model", "torchvision.models:resnet18")
    assert not is_own("model", "torchvision:resnet18")
    assert not is_own("loss", "focal")
    assert not is_own("predict", "a:b")  # `predict` names no parts
    spec = {"name": "torch.nn:CrossEntropyLoss", "label_smoothing": 0.1}
    with searching(tmp_path):
        loss = build_loss(spec, num_samples=1, num_classes=2, epochs=1)
    assert isinstance(loss, torch.nn.CrossEntropyLoss)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"loss": {"name": "own_parts:tilted", "strenght": 1}}, r"\(did you mean 'strength'\?\)"),
        ({"loss": {"name": "own_parts:tilted", "strength": "1"}}, "must be float, got str '1'"),
        ({"loss": {"name": "own_parts:tilted", "logits": 1}}, "set from the data or the run"),
        ({"loss": "own_parts:titled"}, r"'titled' \(did you mean 'tilted'\?\)"),
        ({"loss": "own_prts:tilted"}, r"no module 'own_prts' .*did you mean 'own_parts'"),
        ({"loss": "own_parts:unnamed"}, "arguments must be called logits and target"),
        ({"loss": "own_parts:NUMBER"}, "must be a function or a class, got int 3"),
        ({"model": {"name": "own_parts:Net", "widht": 3}}, r"\(did you mean 'width'\?\)"),
        ({"data": {"name": "own_parts:Images", "train": False}}, "has no parameter 'train'"),
        ({"data": {"name": "own_parts:Images", "validaton": 3}}, "did you mean 'validation'"),
        ({"loss": "tilted"}, "or name your own as package.module:Name"),
        ({"evaluate": {"own": {"a.b": "own_parts:worst"}}}, "a text without dots, got 'a.b'"),
        ({"evaluate": {"own": {"a": "worst"}}}, "or name your own as package.module:Name"),
        ({"evaluate": {"own": {"a": {"name": "own_parts:worst", "shar": 1}}}}, "mean 'share'"),
    ],
)
def test_checked_before_anything_runs(configure: Configure, section: Content, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        configure(**section)
    assert "\n" not in str(raised.value)


def test_the_code_is_part_of_a_run_s_name(folder: Path, own: Content, tmp_path: Path) -> None:
    def named(text: str) -> str:
        (tmp_path / "own_parts.py").write_text(text)
        with searching(tmp_path):
            return fingerprint(parse(RunConfig, own))

    first = named(COMPONENTS)
    with searching(folder):
        config = parse(RunConfig, own)
    assert fingerprint(config) == first  # wherever the folder is
    assert set(config.model) == {"name", "width", "source_digest"}  # a class has no plain form
    assert named(COMPONENTS + "# changed\n") != first
    assert named(COMPONENTS) == first


def test_code_that_changed_since_is_refused(configure: Configure, folder: Path) -> None:
    config = configure()
    assert configure(**config.model_dump(mode="json")) == config
    with pytest.raises(ConfigError, match="its code has changed since this run was planned"):
        configure(model={**config.model, "source_digest": "000000000000"})


def test_a_file_that_changes_under_a_planned_run_stops_it(own: Content, tmp_path: Path) -> None:
    """Its results would stand under the name of the old code."""
    (tmp_path / "own_parts.py").write_text(COMPONENTS)
    with searching(tmp_path):
        config = parse(RunConfig, own)
    (tmp_path / "own_parts.py").write_text(COMPONENTS + "# changed\n")
    with pytest.raises(ValueError, match="its code has changed since this run was planned"):
        run(config, tmp_path / "runs", show=False)
    assert not RunDirectory(tmp_path / "runs" / fingerprint(config)).finished


def test_data_sets_are_divided_as_told(configure: Configure, folder: Path) -> None:
    data = {"name": "own_parts:Images", "count": 30, "validation": 6, "limit_train": 10}
    config = configure(data=data)
    with searching(folder):
        splits = load_splits(config.data)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [10, 6, 30]
    assert "seed" not in config.data


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"model": "own_parts:wide"}, r"model own_parts:wide: .* logits \(2, 2\).*Tensor \(2, 3\)"),
        ({"model": "own_parts:not_a_network"}, "must give a torch.nn.Module, got str 'net'"),
        ({"model": "own_parts:probabilities_and_more"}, "returned tuple: return only the logits"),
        ({"loss": "own_parts:not_a_number"}, "loss own_parts:not_a_number: it returned nan for"),
        ({"data": "own_parts:nothing"}, "data own_parts:nothing: the data set is empty"),
        ({"data": "own_parts:Broken"}, r"sample 1 of data .*OSError: gone.*own_parts\.py, line"),
        ({"loss": "own_parts:by_sample"}, r"one number, .*returned Tensor \(4,\): take the mean"),
        ({"loss": "own_parts:as_float"}, "must return one number, .*returned float"),
        ({"loss": "own_parts:without_gradient"}, "has no gradient: compute it from the logits"),
        ({"loss": "own_parts:wrong_inside"}, r"loss own_parts:wrong_inside: .*\(own_parts\.py, li"),
        ({"loss": "own_parts:Remembers"}, "has `end_epoch`, so it remembers something: make it a"),
        ({"data": "own_parts:unlabelled"}, r"data own_parts:unlabelled: sample 0 .* pair \(image"),
        ({"augment": "own_parts:no_augmentation"}, "must give an object with `draws` and `apply`"),
        ({"augment": "own_parts:Forgetful"}, "batch must have 'label' as a tensor of 4 rows"),
        ({"inputs": "own_parts:only_images"}, r"must return \(images, target\), got Tensor"),
        ({"labels": "own_parts:too_few"}, r"probabilities \(4, 2\), .*got Tensor \(4, 1\)"),
        ({"evaluate": {"own": {"it": "own_parts:says"}}}, "evaluate.own.it: .*number.*str 'fine'"),
    ],
)
def test_bad_parts_are_found_before_the_first_epoch(
    configure: Configure, section: Content, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        check_runs([configure(**section)])
    assert "\n" not in str(raised.value)


def test_every_kind_goes_through_a_run(configure: Configure, tmp_path: Path) -> None:
    config = configure(
        loss="own_parts:WithIndex",
        inputs="own_parts:noise",
        evaluate={"resamples": 0, "own": {"tail": {"name": "own_parts:worst", "share": 0.25}}},
    )
    check_runs([config])
    done = run(config, tmp_path, show=False)
    assert done.metrics()["own"]["tail"]["ece"] == 0.25
    soft = configure(labels="own_parts:soft", loss={"name": "own_parts:tilted"})
    check_runs([soft])
    assert run(soft, tmp_path, show=False).finished
    with searching(config.modules):
        network = build_component("model", config.model, num_classes=2, in_channels=3)
    assert sorted(network.state_dict()) == ["head.bias", "head.weight"]


def test_labels_of_pixels(configure: Configure) -> None:
    sizes = {"train": 2, "validation": 1, "test": 1, "train_frames": 3, "size": 16}
    segment = {"task": "segment", "data": {"name": "scene_streams", **sizes}}
    check_runs([configure(**segment, model="own_parts:Pixels", loss="own_parts:tilted")])
    message = r"model own_parts:Net: .* logits \(2, 11, 16, 16\) .* Tensor \(2, 11\)"
    with pytest.raises(ConfigError, match=message):
        check_runs([configure(**segment)])


def test_a_network_starts_from_a_file_of_weights(configure: Configure, tmp_path: Path) -> None:
    with searching(configure().modules):
        first = build_component("model", "own_parts:Net", num_classes=2, in_channels=3)
    torch.save(first.state_dict(), tmp_path / "first.pt")
    config = configure(model={"name": "own_parts:Net", "weights": str(tmp_path / "first.pt")})
    assert len(config.model["weights_digest"]) == 16
    with searching(config.modules):
        second = build_component("model", config.model, num_classes=2, in_channels=3)
    assert torch.equal(first.head.weight, second.head.weight)
    # Without an epoch there is nothing to learn by, and no part of that is asked.
    train = {"epochs": 0, "batch_size": 8}
    check_runs([configure(model=config.model, train=train, loss="own_parts:by_sample")])


def test_a_run_s_code_is_not_executed_unasked(
    configure: Configure, folder: Path, tmp_path: Path
) -> None:
    done = run(configure(), tmp_path, show=False)
    with pytest.raises(ConfigError, match=r"'own_parts:Images' is an import path.* modules= "):
        load_network(done.path)
    network = load_network(done.path, modules=folder)
    assert network(torch.zeros(1, 3, 8, 8)).shape == (1, 2)
    stranger = RunDirectory(tmp_path / "stranger")
    stranger.begin({**configure().model_dump(), "loss": "os:system"}, {})
    with pytest.raises(ConfigError, match="os:system"):
        load_network(stranger)


def test_resolving_calls_nothing(folder: Path) -> None:
    with searching(folder):
        found = resolve_component("model", "own_parts:wide")
    assert set(found.params) == {"weights", "weights_digest"}  # as every network has them
