"""Trained networks back from their run directories, ready for images as files hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from sfumato._core.files import read_json, read_unless_damaged, write_json
from sfumato._core.import_path import module_folder, searching
from sfumato.data import ArrayDataset
from sfumato.data.prepare import image_shape, preparation
from sfumato.data.text.vocabulary import Vocabulary
from sfumato.engine.config.components import build_network, without_weights
from sfumato.engine.config.parts import own_names
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import ConfigError, parse
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.splits import image_statistics, load_splits
from sfumato.engine.training.checkpoint import load_weights, recover_checkpoint

GIVEN = "given"
"""What the configuration of a run names a model that `sfumato.evaluate` got from its caller."""
_FACTS = "network.json"


@dataclass(frozen=True)
class NetworkFacts:
    """What a network takes from its data, and what its configuration therefore doesn't say."""

    classes: tuple[str, ...]
    in_channels: int
    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    vocabulary: Vocabulary | None = None

    def preparation(self) -> nn.Module:
        """What images or tokens go through before the bare network."""
        return preparation(self.vocabulary, self.in_channels, self.mean, self.std)


class TrainedNetwork(nn.Module):
    """A network with the standardisation that it was trained with: images in, logits out.

    One of texts takes tokens: `network(network.facts.vocabulary.encode(["A text."]))`.

    Args:
        network: takes standardised images, (x / 255 - mean) / std for bytes x.
        facts: what it was made for.

    Attributes:
        network: the bare network; `mean` and `std` are in `facts`.

    Shape:
        images: (N, C, H, W), uint8, or floating point in [0, 1], or tokens (N, T); logits (N, K)
            or (N, K, H, W).
    """

    def __init__(self, network: nn.Module, facts: NetworkFacts) -> None:
        super().__init__()
        self.network = network
        self.facts = facts
        self.prepare = facts.preparation()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.classes

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images that are not standardised yet."""
        return cast(Tensor, self.network(self.standardise(images)))

    def standardise(self, images: Tensor) -> Tensor:
        """The images as the bare network takes them."""
        return cast(Tensor, self.prepare(images))


class Restandardised(nn.Module):
    """A trained network for images that were standardised otherwise than in its training.

    Args:
        trained: the network with its own standardisation.
        mean: what the images were standardised with.
        std: the same.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, trained: TrainedNetwork, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.trained = trained
        self.is_same = (trained.facts.mean, trained.facts.std) == (tuple(mean), tuple(std))
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.is_same:
            return cast(Tensor, self.trained.network(images))
        return cast(Tensor, self.trained(images * self.std + self.mean))


def write_network_facts(
    run: RunDirectory, dataset: ArrayDataset, mean: Sequence[float], std: Sequence[float]
) -> None:
    """Keep what `load_network` needs besides configuration and weights in `network.json`."""
    channels, size = image_shape(dataset)
    facts = asdict(NetworkFacts(dataset.classes, channels, size, tuple(mean), tuple(std)))
    words = dataset.vocabulary
    if words is None:
        del facts["vocabulary"]
    else:
        facts["vocabulary"] = {
            "words": words.words,
            "length": words.length,
            "drop_unknown": words.drop_unknown,
            "vector_width": None if words.vectors is None else words.vectors.shape[1],
        }
    write_json(run.training / _FACTS, facts)


def load_network(
    run: str | Path | RunDirectory, *, modules: str | Path | None = None
) -> TrainedNetwork:
    """The trained network of a run, in evaluation mode on the CPU, with its standardisation.

    Built from the run's `config.yaml`, `network.json` and its last checkpoint. Nothing is
    downloaded, also where the configuration started from pretrained weights. A run from before
    `network.json` was written is asked for its data again, for classes and channel statistics.

    Args:
        run: a run's directory, as in `STUDY/runs/HASH`.
        modules: the folder of the modules that the run names by import path, which are imported,
            and so executed, only where this is given.

    Returns:
        A module from uint8 images, or floating-point ones in [0, 1], to logits.

    Raises:
        FileNotFoundError: no such run, or it has not finished its first epoch.
        ConfigError: its configuration is not one that this version runs, or it names modules of
            its own and `modules` is not given, or their code has changed since.

    Example:
        >>> network = load_network("runs/quickstart/runs/0123456789ab")  # doctest: +SKIP
        >>> network(images).softmax(1)  # doctest: +SKIP
    """
    directory = run if isinstance(run, RunDirectory) else RunDirectory(Path(run))
    config = read_config(directory, modules=modules)
    if config.predict.ensemble is not None:
        raise FileNotFoundError(
            f"{directory.path} is of a deep ensemble, which has several networks: "
            "engine.load_predictor gives it whole"
        )
    recover_checkpoint(directory.checkpoint)
    weights = load_weights(directory.checkpoint)
    with searching(config.modules):
        facts = _read_facts(directory, config)
        network = build_network(
            without_weights(config.model),
            num_classes=len(facts.classes),
            in_channels=facts.in_channels,
            image_size=facts.image_size,
            vocabulary=facts.vocabulary,
        )
    network.load_state_dict(weights)
    if config.train.channels_last:
        network.to(memory_format=torch.channels_last)
    return TrainedNetwork(network, facts).eval()


def read_config(directory: RunDirectory, *, modules: str | Path | None = None) -> RunConfig:
    """The configuration of a run, for what builds its parts again.

    A run's directory may come from a stranger, and a part by import path can be any function of
    any module: none is imported unless the caller, or the study that is being run, says where
    the modules are.

    Raises:
        FileNotFoundError: no such run.
        ConfigError: as `load_network`.
    """
    path = directory.path / "config.yaml"
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; pass the directory of one run")
    content = directory.config()
    if isinstance(content.get("model"), dict) and content["model"].get("name") == GIVEN:
        raise FileNotFoundError(
            f"{directory.path} is of sfumato.evaluate, which keeps predictions and no network: "
            "evaluate the model itself"
        )
    folder = module_folder() if modules is None else Path(modules).resolve()
    if folder is None and (named := own_names(content)):
        raise ConfigError(
            f"{path}: the run names parts by import path ({', '.join(named)}), whose modules this "
            "would execute. Where you trust them, pass modules= (--modules), the folder of them"
        )
    with searching(folder):
        return parse(RunConfig, content, str(path))


def _read_facts(directory: RunDirectory, config: RunConfig) -> NetworkFacts:
    path = directory.training / _FACTS
    found = read_unless_damaged(path, read_json)
    if found is None:
        train = load_splits(config.data).train
        write_network_facts(directory, train, *image_statistics(config, train))
        found = read_json(path)
    height, width = found["image_size"]
    return NetworkFacts(
        classes=tuple(found["classes"]),
        in_channels=found["in_channels"],
        image_size=(height, width),
        mean=tuple(found["mean"]),
        std=tuple(found["std"]),
        vocabulary=_vocabulary(found.get("vocabulary")),
    )


def _vocabulary(found: dict[str, Any] | None) -> Vocabulary | None:
    """Words as they were; vectors of zeros, since the weights have those that were trained with."""
    if found is None:
        return None
    words = Vocabulary(tuple(found["words"]), found["length"], found["drop_unknown"])
    if found["vector_width"] is None:
        return words
    return replace(words, vectors=torch.zeros(words.size, found["vector_width"]))
