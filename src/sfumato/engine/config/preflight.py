"""What can be known to fail before the first epoch: data, devices and networks, looked at once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from sfumato._core.data_root import DATA_ROOT
from sfumato._core.import_path import searching
from sfumato._core.tokens import UNKNOWN
from sfumato.augment import label_samples
from sfumato.data import ArrayDataset, DataSplits, load_detection_data, single_objects
from sfumato.data.prepare import image_shape
from sfumato.data.text.vocabulary import Vocabulary
from sfumato.engine.config.components import (
    build_labels,
    build_network,
    build_part,
    without_download,
)
from sfumato.engine.config.devices import build_fabric
from sfumato.engine.config.first_batch import check_logits, one_line, push_batch
from sfumato.engine.config.input_rules import check_input_kind
from sfumato.engine.config.library_networks import check_pretrained
from sfumato.engine.config.parts import is_own
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import content_hash, parse
from sfumato.engine.config.weight_files import NewHeadWarning
from sfumato.engine.evaluation.attacked import check_bands
from sfumato.engine.evaluation.context import objectness_of
from sfumato.engine.evaluation.other_sets import load_other
from sfumato.engine.evaluation.pixels import smooth_streams
from sfumato.engine.evaluation.stored_sets import open_stored
from sfumato.engine.runs.networks import load_network
from sfumato.engine.runs.splits import image_statistics, load_splits
from sfumato.engine.training.trained_parameters import parameter_groups
from sfumato.features import ClippedFeatures
from sfumato.predictions import MCDropout

_DEVICE_KEYS = {"accelerator", "devices", "strategy", "precision", "num_nodes"}
_BATCH, _EVALUATED = 4, 64


class _Images(NamedTuple):
    """What a network takes from its data, and a few samples where it labels images or pixels."""

    num_classes: int
    in_channels: int
    image_size: tuple[int, int]
    vocabulary: Vocabulary | None = None
    train: ArrayDataset | None = None
    test: ArrayDataset | None = None

    def blank(self, rows: int) -> torch.Tensor:
        """Black images, or texts of full length that are all unknown words."""
        if self.vocabulary is None:
            return torch.zeros(rows, self.in_channels, *self.image_size)
        return torch.full((rows, self.vocabulary.length), UNKNOWN)


def check_runs(configs: Sequence[RunConfig], *, devices: bool = True) -> None:
    """Raise, in one line, what would make a run fail, from data, devices, networks and one batch.

    Every distinct data source is loaded once, every distinct network is built once and given two
    blank images, and each method takes a small batch as far as the gradient of its loss. Nothing
    is trained, and no pretrained weights are fetched. Pass the runs that wait: what has finished
    needs neither data nor devices.

    Args:
        configs: the configurations of the runs.
        devices: whether this machine is the one that will run them; not so on a cluster.

    Raises:
        ConfigError: the data can't be loaded or lacks what a run needs of it, the devices don't
            exist, a network can't be built, doesn't take the images, or has no dropout for
            `predict.mc_dropout`, `evaluate.ensemble_sizes` or `train.passes`, or a part does not
            do with a batch what its kind must.

    Example:
        >>> data = {"name": "scenes", "train": 20, "validation": 5, "test": 5}
        >>> run = RunConfig(data=data, model="resnet", predict={"mc_dropout": 5})
        >>> check_runs([run])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        sfumato.engine.config.sections.ConfigError: model resnet: predict.mc_dropout ...
    """
    with searching(configs[0].modules if configs else None):
        _check([each for config in configs for each in (*_recipe(config), config)], devices)


def _check(every: Sequence[RunConfig], devices: bool) -> None:
    if devices:
        for config in _distinct(every, lambda each: each.train.model_dump(include=_DEVICE_KEYS)):
            with one_line("train"):
                build_fabric(config.train)
    images: dict[str, _Images] = {}
    for source in _distinct(every, lambda each: each.data):
        name = content_hash(source.data)
        users = [each for each in every if content_hash(each.data) == name]
        with one_line(f"data {source.data['name']}"):
            images[name] = _found(users)
    networks: dict[str, nn.Module] = {}
    for config in _distinct(every, _network_content):
        with one_line(f"model {config.model['name']}"):
            networks[content_hash(_network_content(config))] = _checked_network(config, images)
    for config in _distinct(every, _method_content):
        few = images[content_hash(config.data)]
        if few.train is not None and few.test is not None:
            network = networks[content_hash(_network_content(config))]
            push_batch(config, network, few.train, few.test)


def _recipe(config: RunConfig) -> list[RunConfig]:
    """The classifier that a detector trains first."""
    if not isinstance(config.classifier, dict):
        return []
    return [parse(RunConfig, config.classifier, "classifier")]


def _found(users: Sequence[RunConfig]) -> _Images:
    """As `_look_at`; what is not there may be elsewhere."""
    try:
        return _look_at(users)
    except FileNotFoundError as error:
        if os.environ.get(DATA_ROOT):
            raise
        raise FileNotFoundError(
            f"{error} (paths begin in {Path.cwd()}; --data ROOT or {DATA_ROOT} says where else)"
        ) from None


def _look_at(users: Sequence[RunConfig]) -> _Images:
    """Load the data that these runs share and see that each finds in it what it needs."""
    spec = users[0].data
    if users[0].task == "detect":
        found = load_detection_data(spec)
        return _Images(len(found.classes), 3, (0, 0))
    data = load_splits(spec)
    for config in users:
        check_input_kind(config, is_text=data.train.vocabulary is not None)
        _check_annotations(config, data)
        _check_count(config, data.test)
    _check_others(users, data.train)
    return _Images(
        data.train.num_classes,
        *image_shape(data.train),
        data.train.vocabulary,
        _first(data.train, min(_BATCH, users[0].train.batch_size)),
        _first(data.test, _EVALUATED),
    )


def _check_count(config: RunConfig, test: ArrayDataset) -> None:
    """Intervals are made after the training, too late to say that they can't be."""
    if config.task == "classify" and config.evaluate.resamples and len(test) < 2:
        raise ValueError(
            f"evaluate.resamples needs a test set of two images or more, this has {len(test)}: "
            "give more, or say resamples: 0"
        )


def _check_others(users: Sequence[RunConfig], train: ArrayDataset) -> None:
    """Further test sets, each loaded once: whether the networks can be asked about them."""
    sets = {
        content_hash(spec): (name, spec)
        for config in users
        for name, spec in config.evaluate.also.items()
    }
    for name, spec in sets.values():
        with one_line(f"evaluate.also.{name}"):
            load_other(spec, train)


def _first(dataset: ArrayDataset, count: int) -> ArrayDataset:
    return dataset.subset(torch.arange(min(count, len(dataset))))


def _check_annotations(config: RunConfig, data: DataSplits) -> None:
    labels = build_labels(config.labels, num_classes=data.train.num_classes)
    label_samples(labels, data.train, None)
    image_statistics(config, data.train)
    if config.objects is not None:
        single_objects(data.train.subset(torch.arange(1)))
    if config.evaluate.context:
        objectness_of(data.test)
    if config.evaluate.frequency is not None:
        check_bands(config.evaluate.frequency, image_shape(data.test)[1])
    if config.evaluate.stored is not None:
        channels, size = image_shape(data.train)
        with one_line("evaluate.stored"):
            open_stored(config.evaluate, classes=data.train.classes, image=(channels, *size))
    for part in (data.validation, data.test):
        smooth_streams(config.predict.temporal, part)


def _network_content(config: RunConfig) -> dict[str, Any]:
    """All that decides whether a network can be built, takes the images and can be sampled."""
    return {
        "data": config.data,
        "model": config.model,
        "classifier": config.classifier,
        "dropout": _dropout_users(config),
        "features": config.predict.feature_clipping,
        "single": config.train.batch_size == 1,
        "untrained": config.train.epochs == 0,
        "train": config.train.model_dump(include={"freeze", "head_learning_rate"}),
        "runs": [each for each in config.predict.ensemble or () if isinstance(each, str)],
    }


def _method_content(config: RunConfig) -> dict[str, Any]:
    """All that decides what happens to a batch, whatever the seed and the number of epochs."""
    parts = {"task", "data", "model", "loss", "augment", "inputs", "labels", "classifier"}
    content = config.model_dump(mode="json", include=parts)
    return {**content, "own": config.evaluate.own, **_network_content(config)}


def _checked_network(config: RunConfig, images: dict[str, _Images]) -> nn.Module:
    if config.task == "detect":
        detector = _build_detector(config, images)
        parameter_groups(detector, config.train)
        return detector
    given = images[content_hash(config.data)]
    for member in config.predict.ensemble or ():
        if isinstance(member, str):
            load_network(member)
    network = _build_trained(config, given)
    if config.train.epochs:  # else there may be nothing to train, as in an ONNX file
        parameter_groups(network, config.train)
    rows = 1 if config.train.batch_size == 1 else 2
    blank = given.blank(rows)
    with torch.no_grad():
        logits = _asked(network.train(), blank, config.model["name"])
        check_logits(logits, blank, given.num_classes, one_label=config.task == "classify")
        if users := _dropout_users(config):
            _check_dropout(network, blank, users)
        if config.predict.feature_clipping:
            _check_features(network, blank)
    return network


def _asked(network: nn.Module, blank: torch.Tensor, name: str) -> Any:
    """What it says to blank images; one of ours that fails can only dislike their size."""
    try:
        return network(blank)
    except RuntimeError as error:
        if is_own("model", name) or blank.ndim != 4:
            raise
        height, width = blank.shape[2:]
        said = str(error).splitlines()[0]
        raise ValueError(
            f"it does not take images of {height} x {width} pixels ({said}): give it larger ones "
            "(size of the data), or choose another network"
        ) from error


def _build_trained(config: RunConfig, given: _Images) -> nn.Module:
    """The network; without training its weights must be those of all its layers."""
    with warnings.catch_warnings():
        if config.train.epochs == 0:
            warnings.simplefilter("error", NewHeadWarning)
        try:
            return _build_classifier(config, given)
        except NewHeadWarning as warning:
            raise ValueError(
                f"{warning}, but train.epochs: 0 evaluates the network as it comes: give weights "
                f"for the data's {given.num_classes} classes, or train for some epochs"
            ) from None


def _build_classifier(config: RunConfig, given: _Images) -> nn.Module:
    model = config.model
    check_pretrained(model["name"], model.get("pretrained"), model.get("weights_backbone"))
    return build_network(
        without_download(config.model),
        num_classes=given.num_classes,
        in_channels=given.in_channels,
        image_size=given.image_size,
        vocabulary=given.vocabulary,
    )


def _build_detector(config: RunConfig, images: dict[str, _Images]) -> nn.Module:
    if isinstance(config.classifier, dict):
        (recipe,) = _recipe(config)
        trunk = _build_classifier(recipe, images[content_hash(recipe.data)])
    else:
        trunk = load_network(str(config.classifier)).network
    detector: nn.Module = build_part(
        "model",
        config.model,
        task="detect",
        classifier=trunk,
        num_classes=images[content_hash(config.data)].num_classes,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
    )
    return detector


def _check_features(network: nn.Module, images: torch.Tensor) -> None:
    try:
        features = ClippedFeatures(network).features(images)
    except ValueError as error:
        raise ValueError(f"predict.feature_clipping: {error}; leave the key out") from error
    if features.ndim != 2:
        raise ValueError(
            "predict.feature_clipping needs a network whose last linear layer takes (B, D), and "
            f"this one's takes {tuple(features.shape)}: leave the key out"
        )


def _dropout_users(config: RunConfig) -> list[str]:
    """The keys that make no sense without dropout."""
    asked = {
        "predict.mc_dropout": config.predict.mc_dropout,
        "evaluate.ensemble_sizes": config.evaluate.ensemble_sizes,
        "train.passes": config.train.passes > 1,
    }
    return [key for key, wanted in asked.items() if wanted]


def _check_dropout(network: nn.Module, images: torch.Tensor, users: list[str]) -> None:
    try:
        MCDropout(network, samples=1)(images)
    except ValueError as error:
        raise ValueError(
            f"{' and '.join(users)} needs a network with dropout, and this has none: give the "
            "model a rate, as dropout: 0.1, or leave the key out"
        ) from error


def _distinct(
    configs: Sequence[RunConfig], content: Callable[[RunConfig], dict[str, Any]]
) -> list[RunConfig]:
    """The first configuration of each content."""
    first: dict[str, RunConfig] = {}
    for config in configs:
        first.setdefault(content_hash(content(config)), config)
    return list(first.values())
