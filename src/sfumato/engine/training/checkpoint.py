"""Keep what a training made, and load it: checkpoints, and trained networks ready for images.

Weights are in safetensors and the rest is loadable with `weights_only`: a file from a stranger
can't run code.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import get_ident
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from sfumato._core.checks import check_integer
from sfumato._core.files import (
    checked_file,
    read_bytes,
    read_json,
    read_or_set_aside,
    sync,
    unreadable_file,
    write_json,
)
from sfumato._core.import_path import searching
from sfumato._core.text import one_line
from sfumato._core.torch_files import load_tensors
from sfumato.data import ArrayDataset
from sfumato.data.dataset import image_shape, preparation
from sfumato.data.text.vocabulary import Vocabulary
from sfumato.engine.config.build import DataShape, build_network, without_weights
from sfumato.engine.config.networks import ONNX
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import ConfigError, parse
from sfumato.engine.runs.directory import RunDirectory

WEIGHTS = "model.safetensors"
STATE = "state.pt"
_RETRAIN = (
    "Delete metrics.json of the runs that need these weights and give 'sfumato run' again, which "
    "trains them anew."
)
# Name, in the configuration of a run, of a model that `sfumato.evaluate` got from its caller.
EXTERNAL = "given"

_FACTS = "network.json"

_AGAIN = (
    "Copy it from where the run was trained, or delete the run's metrics.json there and give "
    "'sfumato run' again, which writes it anew."
)

# Numbers that a network may be built of beyond four times its weights: parts that it drops again.
_SPARE_NUMBERS = 2**22

_STATE_FIELDS = ("epoch", "optimizer", "loss", "precision", "beside")


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after `epoch` finished epochs.

    After the last one `model` are the weights that predict; `beside` is of `AveragedWeights`.
    """

    epoch: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    loss: dict[str, Tensor]
    precision: dict[str, Any]
    beside: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: str | Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in `folder` as a whole: at any moment the old or the new one exists.

    A directory can't be renamed onto another one, so the new one is completed beside it, the old
    one moved away, the new one moved in; `recover_checkpoint` finishes what a crash left.
    """
    folder = Path(folder)
    new, old = _neighbours(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    _save_weights(checkpoint.model, new / WEIGHTS)
    state = {name: getattr(checkpoint, name) for name in _STATE_FIELDS}
    # Through a file of ours, because torch's own does not tell a full disk from other failures.
    with (new / STATE).open("wb") as file:
        torch.save(state, file)
    sync(new / WEIGHTS)
    sync(new / STATE)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _save_weights(weights: dict[str, Tensor], path: Path) -> None:
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, value in weights.items():
        tensor = value.contiguous().cpu()
        place = tensor.untyped_storage().data_ptr()
        # The format has every tensor once; tied layers share memory.
        apart[key] = tensor.clone() if place in seen else tensor
        seen.add(place)
    try:
        save_file(apart, path)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def load_checkpoint(folder: str | Path) -> Checkpoint | None:
    """The checkpoint in `folder`, or None; raises UnreadableFileError where a file is not whole."""
    folder = _readable(Path(folder))
    if not folder.exists():
        return None
    for name in (STATE, WEIGHTS):
        if not (folder / name).exists():
            raise unreadable_file(folder / name, "it is missing")
    # In memory first: a failing disk is no unreadable file.
    content = io.BytesIO(read_bytes(folder / STATE, within=folder.parent))
    try:
        state = load_tensors(content)
        state.setdefault("beside", {})  # of runs from before there was such a thing
        fields = {name: state[name] for name in _STATE_FIELDS}
    except MemoryError:
        raise
    except Exception as error:  # of the archive, of pickle or of the content: torch lets all pass
        raise unreadable_file(folder / STATE, " ".join(str(error).split())[:200]) from None
    return Checkpoint(model=load_weights(folder), **fields)


def load_weights(folder: str | Path) -> dict[str, Tensor]:
    folder = _readable(Path(folder))
    if not (folder / WEIGHTS).exists():
        raise FileNotFoundError(f"{folder} holds no {WEIGHTS}: has the run been trained?")
    try:
        return load_file(checked_file(folder / WEIGHTS, within=folder.parent))
    except SafetensorError as error:
        raise unreadable_file(folder / WEIGHTS, str(error), _RETRAIN) from None


def _neighbours(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")


def _readable(folder: Path) -> Path:
    """The folder of the last whole checkpoint; changes nothing, so that anyone's can be read."""
    new, old = _neighbours(folder)
    return new if old.exists() and new.exists() and not folder.exists() else folder


def restore_checkpoint(folder: Path) -> None:
    """Make `folder` hold a whole checkpoint or none; with none, training begins anew."""
    recover_checkpoint(folder)
    read_or_set_aside(folder, load_checkpoint, "training begins anew")


def recover_checkpoint(folder: Path) -> None:
    """Finish or undo a save that a crash cut short; only in a directory that is being trained."""
    new, old = _neighbours(folder)
    if old.exists():
        if not folder.exists():
            new.rename(folder)
        shutil.rmtree(old)
    shutil.rmtree(new, ignore_errors=True)


@dataclass(frozen=True)
class NetworkFacts:
    """Facts that a network takes from its data, and its configuration therefore doesn't say."""

    classes: tuple[str, ...]
    in_channels: int
    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    vocabulary: Vocabulary | None = None


class TrainedNetwork(nn.Module):
    """A network with the standardisation that it was trained with: images in, logits out.

    One of texts takes tokens: `network(network.facts.vocabulary.encode(["A text."]))`.

    Args:
        network: the bare one, which takes standardised images, (x / 255 - mean) / std for bytes.
        facts: what it was made for, with `mean` and `std`.

    Shape:
        images: (N, C, H, W), uint8, or floating point in [0, 1], or tokens (N, T); logits (N, K)
            or (N, K, H, W).
    """

    def __init__(self, network: nn.Module, facts: NetworkFacts) -> None:
        super().__init__()
        self.network = network
        self.facts = facts
        self.prepare = preparation(facts.vocabulary, facts.in_channels, facts.mean, facts.std)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.classes

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images that are not standardised yet."""
        return cast(Tensor, self.network(self.standardise(images)))

    def standardise(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.prepare(images))


class Restandardised(nn.Module):
    """A trained network for images that were standardised otherwise than in its training."""

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
    del facts["vocabulary"]
    if (words := dataset.vocabulary) is not None:
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
    downloaded, and nothing in the directory is changed: it may be somebody else's.

    Args:
        run: a run's directory, as in `STUDY/runs/HASH`.
        modules: the folder of the modules that the run names by import path, which are imported,
            and so executed, only where this is given.

    Returns:
        A module from uint8 images, or floating-point ones in [0, 1], to logits.

    Raises:
        FileNotFoundError: no such run, or it has not finished its first epoch, or has no
            `network.json`.
        ConfigError: its configuration is not one that this version runs, or it names modules of
            its own and `modules` is not given, or their code has changed since, or its weights
            are of another network.

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
    weights = load_weights(directory.checkpoint)
    facts = _read_facts(directory, sum(map(torch.numel, weights.values())))
    shape = DataShape(len(facts.classes), facts.in_channels, facts.image_size, facts.vocabulary)
    try:
        with searching(config.modules), _no_larger_than(weights):
            network = build_network(without_weights(config.model), shape)
        network.load_state_dict(weights)
        trained = TrainedNetwork(network, facts)
    except ConfigError:
        raise
    # A stranger's numbers may be of any size and kind.
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        # PyTorch lists what doesn't fit after "\n\t"; names of weights may have line breaks too.
        reason = one_line(str(error).rpartition("\n\t")[2]) or type(error).__name__
        raise ConfigError(
            f"{directory.checkpoint}: its weights are not those of the network in config.yaml and "
            f"{_FACTS}: {reason}"
        ) from None
    if config.train.channels_last:
        network.to(memory_format=torch.channels_last)
    return trained.eval()


@contextmanager
def _no_larger_than(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Stop building a network of far more numbers than its weights, as a stranger may ask for."""
    room, thread = _SPARE_NUMBERS + 4 * sum(map(torch.numel, weights.values())), get_ident()

    def count(_module: nn.Module, _name: str, value: Tensor | None) -> None:
        nonlocal room
        if value is not None and get_ident() == thread:
            room -= value.numel()
            if room < 0:
                raise RuntimeError("the network has far more numbers than the weights")

    with (
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ):
        yield


def read_config(directory: RunDirectory, *, modules: str | Path | None = None) -> RunConfig:
    """The configuration of a run, for what builds its parts again.

    A run may come from a stranger, and a part by import path can be any function of any module:
    none is imported unless the caller, or the study that is being run, says where the modules are.
    """
    path = directory.path / "config.yaml"
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; pass the directory of one run")
    content = directory.config()
    model = content.get("model") if isinstance(content, dict) else None  # else `parse` refuses it
    if isinstance(model, dict) and model.get("name") == EXTERNAL:
        raise FileNotFoundError(
            f"{directory.path} is of sfumato.evaluate, which keeps predictions and no network: "
            "evaluate the model itself"
        )
    _check_digests(content, path)
    with searching(None if modules is None else Path(modules).resolve()):
        return parse(RunConfig, content, str(path))


def _check_digests(content: Any, path: Path) -> None:
    """Raise where a run names a file without the digest of the content that it must have."""
    if not isinstance(content, dict):
        return
    _check_digests(content.get("classifier"), path)
    spec = content.get("model")
    spec = spec if isinstance(spec, dict) else {"name": spec}
    is_onnx = str(spec.get("name")).startswith(ONNX)
    digest = "file_digest" if is_onnx else "weights_digest"
    if (is_onnx or spec.get("weights") is not None) and not spec.get(digest):
        raise ConfigError(f"{path}: its model names a file without a {digest}: add it")


def _read_facts(directory: RunDirectory, numbers: int) -> NetworkFacts:
    """Read what the network is for; its weights have `numbers` numbers."""
    path = directory.training / _FACTS
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: no such file, which says what classes and images the network is for. {_AGAIN}"
        )
    found = read_json(path, within=directory.training, remedy=_AGAIN)
    try:
        height, width = found["image_size"]
        return NetworkFacts(
            classes=tuple(found["classes"]),
            in_channels=found["in_channels"],
            image_size=(height, width),
            mean=tuple(found["mean"]),
            std=tuple(found["std"]),
            vocabulary=_vocabulary(found.get("vocabulary"), numbers),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise unreadable_file(path, f"{type(error).__name__}: {error}", _AGAIN) from error


def _vocabulary(found: dict[str, Any] | None, numbers: int) -> Vocabulary | None:
    """Words as they were; vectors of zeros, since the weights have those that were trained with."""
    if found is None:
        return None
    words = Vocabulary(tuple(found["words"]), found["length"], found["drop_unknown"])
    if found["vector_width"] is None:
        return words
    check_integer("vector_width", found["vector_width"], low=1)
    if words.size * found["vector_width"] > numbers:
        raise ValueError("its word vectors have more numbers than the weights")
    return replace(words, vectors=torch.zeros(words.size, found["vector_width"]))
