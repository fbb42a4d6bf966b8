"""Checks before the first epoch: data, devices, networks, and one batch through each component."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sfumato._core.checks import are_probabilities
from sfumato._core.import_path import place_of, searching
from sfumato._core.spec import DATA_ROOT, content_hash
from sfumato._core.tokens import UNKNOWN
from sfumato.augment import ObjectnessLabels, Sample, label_samples
from sfumato.data import (
    ArrayDataset,
    DataSplits,
    TensorLoader,
    load_detection_data,
    single_objects,
)
from sfumato.data.dataset import Statistics, image_shape
from sfumato.engine.config.build import (
    DataShape,
    build_fabric,
    build_labels,
    build_network,
    without_download,
)
from sfumato.engine.config.components import is_own
from sfumato.engine.config.networks import NewHeadWarning, check_pretrained
from sfumato.engine.config.rules import check_input_kind
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import ConfigError, parse
from sfumato.engine.evaluation.altered import check_bands, open_stored
from sfumato.engine.evaluation.classifier import evaluate_own, objectness_of
from sfumato.engine.evaluation.other_sets import LOADERS
from sfumato.engine.evaluation.pixels import smooth_streams
from sfumato.engine.runs.directory import Predictions
from sfumato.engine.tasks.detect import build_detector
from sfumato.engine.training.checkpoint import load_network
from sfumato.engine.training.loop import parameter_groups
from sfumato.engine.training.steps import (
    build_objective,
    image_statistics,
    indexed_loss,
    load_splits,
)
from sfumato.features import ClippedFeatures
from sfumato.predictions import MCDropout


def _learn(
    config: RunConfig, network: nn.Module, train: ArrayDataset, statistics: Statistics
) -> None:
    """Take the first batch of the run's own objective as far as the gradient."""

    def naming(kind: str) -> AbstractContextManager[None]:
        spec = getattr(config, kind)
        return one_line(kind if spec is None else f"{kind} {spec['name']}")

    mean, std = statistics
    # A few samples may lack single objects (`_check_needs` looks at the section), or classes.
    plain = config.model_copy(update={"objects": None, "class_weight": "equal"})
    objective = build_objective(plain, train, mean, std, naming)
    transform = objective.inputs
    with naming("augment"):
        loader = TensorLoader(
            objective.train, len(train), augment=objective.augment, mean=mean, std=std
        )
        batch = loader.batch(0)
        _check_batch(batch, len(train) * objective.copies)
        images, target = batch["image"], batch.get("soft_label", batch["label"])
        if transform is not None:
            images, target = transform.mix(images, target)
    with naming("inputs"):
        if transform is not None and transform.mollify is not None:
            images, target = _pair(transform.mollify(images, target), images)
    with naming("model"):
        logits = network.train()(images)
        check_logits(logits, images, train.num_classes, one_label=train.labels.ndim == 1)
    with naming("loss"):
        value = indexed_loss(objective.loss, logits, target, batch["index"])
        _check_loss(value, logits)
        value.backward()
        network.zero_grad(set_to_none=True)


def check_logits(logits: Any, images: Tensor, num_classes: int, *, one_label: bool) -> None:
    """Raise unless a network gave logits for each image, or for each pixel."""
    expected = (len(images), num_classes, *(() if one_label else images.shape[2:]))
    if isinstance(logits, Tensor) and logits.shape == expected and logits.is_floating_point():
        if are_probabilities(logits):
            raise ValueError(
                "in training it must return logits, it returned probabilities (no entry is "
                "negative, and every row sums to 1): leave its softmax out"
            )
        return
    asked = f"in training it must return logits {expected} for {len(images)} images, it returned"
    if not isinstance(logits, Tensor):
        raise TypeError(f"{asked} {type(logits).__name__}: return only the logits")
    raise ValueError(
        f"{asked} Tensor {tuple(logits.shape)} of {logits.dtype}. A network of your own gets the "
        "number of classes as num_classes"
    )


@contextmanager
def one_line(where: str) -> Iterator[None]:
    """Raise what fails inside, and would in every run, once and as a mistake in the study."""
    try:
        yield
    except Exception as error:
        message, place = " ".join(str(error).split()), place_of(error)
        kind = "" if isinstance(error, ValueError | TypeError | OSError) else type(error).__name__
        said = ": ".join(part for part in (where, kind, message) if part)
        raise ConfigError(f"{said} ({place})" if place and place not in said else said) from error


def _evaluate(
    config: RunConfig, network: nn.Module, test: ArrayDataset, statistics: Statistics
) -> None:
    mean, std = statistics
    for title, spec in config.evaluate.own.items():
        with one_line(f"evaluate.own.{title}"), torch.no_grad():
            batch = TensorLoader(test, len(test), mean=mean, std=std).batch(0)
            logits = network.eval()(batch["image"])
            found = Predictions(logits, batch["label"], batch["index"])
            evaluate_own(spec, found, data=test, network=network, mean=mean, std=std)


def _check_batch(batch: Sample, count: int) -> None:
    for name in ("image", "label", "index"):
        found = batch.get(name)
        if not isinstance(found, Tensor) or len(found) != count:
            raise ValueError(
                f"its batch must have {name!r} as a tensor of {count} rows, as it was given, "
                f"got {type(found).__name__} {tuple(getattr(found, 'shape', ()))}"
            )


def _pair(found: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    is_pair = isinstance(found, tuple) and len(found) == 2
    if not is_pair or not all(isinstance(each, Tensor) for each in found):
        raise TypeError(f"it must return (images, target), got {type(found).__name__}")
    if len(found[0]) != len(images) or len(found[1]) != len(images):
        shapes = [tuple(each.shape) for each in found]
        raise ValueError(f"it must return {len(images)} images and targets, got {shapes}")
    return found[0], found[1]


def _check_loss(value: Any, logits: Tensor) -> None:
    if not isinstance(value, Tensor) or value.ndim != 0:
        found = f" {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise TypeError(
            f"it must return one number, a tensor without dimensions, it returned "
            f"{type(value).__name__}{found}: take the mean over the batch"
        )
    if not value.requires_grad:
        raise ValueError(
            "what it returned has no gradient: compute it from the logits, without detach(), "
            "item() or torch.no_grad()"
        )
    if not bool(value.isfinite()):
        got = f"it returned {value.detach().item()} for the first batch"
        if bool(logits.isfinite().all()):
            raise ValueError(
                f"{got}, though all logits are finite: look for a division by 0 or a logarithm of 0"
            )
        raise ValueError(
            f"{got}, whose logits are not finite either: look at the network's weights and at the "
            "images"
        )


_BATCH, _EVALUATED = 4, 64


class SeenData(NamedTuple):
    """The shape of data, and a few samples where it labels images or pixels."""

    shape: DataShape
    train: ArrayDataset | None = None
    test: ArrayDataset | None = None

    def blank(self, rows: int) -> torch.Tensor:
        """Black images, or texts of full length that are all unknown words."""
        if self.shape.vocabulary is None:
            return torch.zeros(rows, self.shape.in_channels, *self.shape.image_size)
        return torch.full((rows, self.shape.vocabulary.length), UNKNOWN)


def look_at_data(users: Sequence[RunConfig]) -> SeenData:
    """Load the data that these runs share, and see that each finds in it what it needs."""
    try:
        return _look_at(users)
    except FileNotFoundError as error:
        if os.environ.get(DATA_ROOT):
            raise
        raise FileNotFoundError(
            f"{error} (paths begin in {Path.cwd()}; --data ROOT or {DATA_ROOT} says where else)"
        ) from None


def _look_at(users: Sequence[RunConfig]) -> SeenData:
    spec = users[0].data
    if users[0].task == "detect":
        found = load_detection_data(spec)
        return SeenData(DataShape(len(found.classes), 3, (0, 0)))
    data = load_splits(spec)
    for config in users:
        _check_needs(config, data)
    sets = {
        content_hash({"as": key, **spec}): (key, name, spec)
        for config in users
        for key in LOADERS
        for name, spec in getattr(config.evaluate, key).items()
    }
    for key, name, spec in sets.values():
        with one_line(f"evaluate.{key}.{name}"):
            LOADERS[key](spec, data.train)
    return SeenData(
        DataShape.of(data.train),
        _first(data.train, min(_BATCH, users[0].train.batch_size)),
        _first(data.test, _EVALUATED),
    )


def _first(dataset: ArrayDataset, count: int) -> ArrayDataset:
    return dataset.subset(torch.arange(min(count, len(dataset))))


class SmallObjectWarning(UserWarning):
    """Labels of small objects put less on the true class than on each other class."""


def _warn_of_small_objects(labels: object, num_classes: int) -> None:
    limit = (num_classes - 1) / num_classes
    if isinstance(labels, ObjectnessLabels) and labels.beta > limit:
        warnings.warn(
            f"labels: objectness with beta: {labels.beta:g} puts less on the true class than on "
            f"each other one where its object covers under {1 - limit / labels.beta:.1%} of the "
            f"crop (Eq. 6). The papers' rows want that; otherwise set beta below {limit:.3g}, "
            "(C - 1) / C, as beta: 0.75",
            SmallObjectWarning,
            stacklevel=2,
        )


def _check_needs(config: RunConfig, data: DataSplits) -> None:
    train, wanted = data.train, config.evaluate
    check_input_kind(config, is_text=train.vocabulary is not None)
    labels = build_labels(config.labels, num_classes=train.num_classes)
    label_samples(labels, train, None)
    _warn_of_small_objects(labels, train.num_classes)
    image_statistics(config, train)
    if config.objects is not None:
        single_objects(train.subset(torch.arange(1)))
    if wanted.context:
        objectness_of(data.test)
    if wanted.frequency is not None:
        check_bands(wanted.frequency, image_shape(data.test)[1])
    if wanted.stored is not None:
        channels, size = image_shape(train)
        with one_line("evaluate.stored"):
            open_stored(wanted, classes=train.classes, image=(channels, *size))
    for part in (data.validation, data.test):
        smooth_streams(config.predict.temporal, part)
    # Intervals are made after the training, too late to say that they can't be.
    if config.task == "classify" and wanted.resamples and len(data.test) < 2:
        raise ValueError(
            f"evaluate.resamples needs a test set of two images or more, this has "
            f"{len(data.test)}: give more, or say resamples: 0"
        )
    if wanted.resamples and wanted.corrupted_images == 1 and wanted.corruption_names:
        raise ValueError(
            "evaluate.corrupted_images must be 2 or more for resamples, got 1: give more, or say "
            "resamples: 0"
        )


def classifier_recipe(config: RunConfig) -> list[RunConfig]:
    """The classifier that a detector trains first."""
    is_recipe = isinstance(config.classifier, dict)
    return [parse(RunConfig, config.classifier, "classifier")] if is_recipe else []


def network_content(config: RunConfig) -> dict[str, Any]:
    """All that decides whether a network can be built, takes the images and can be sampled."""
    return {
        "data": config.data,
        "model": config.model,
        "classifier": config.classifier,
        "dropout": dropout_users(config),
        "features": config.predict.feature_clipping,
        "single": config.train.batch_size == 1,
        "untrained": config.train.epochs == 0,
        "train": config.train.model_dump(include={"freeze", "head_learning_rate"}),
        "runs": [each for each in config.predict.ensemble or () if isinstance(each, str)],
    }


def checked_network(config: RunConfig, seen: dict[str, SeenData]) -> nn.Module:
    """The network of a run, untrained, after it was given blank images."""
    if config.task == "detect":
        detector = _build_detector(config, seen)
        parameter_groups(detector, config.train)
        return detector
    given = seen[content_hash(config.data)]
    for member in config.predict.ensemble or ():
        if isinstance(member, str):
            load_network(member)
    network = _build_trained(config, given)
    if config.train.epochs:  # else there may be nothing to train, as in an ONNX file
        parameter_groups(network, config.train)
    blank = given.blank(1 if config.train.batch_size == 1 else 2)
    with torch.no_grad():
        logits = _asked(network.train(), blank, config.model["name"])
        check_logits(logits, blank, given.shape.num_classes, one_label=config.task == "classify")
        _check_passes(config, network, blank)
    return network


def _asked(network: nn.Module, blank: torch.Tensor, name: str) -> Any:
    """Ask it about blank images; one of ours that fails can only dislike their size."""
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


def _build_trained(config: RunConfig, given: SeenData) -> nn.Module:
    """The network; without training its weights must be those of all its layers."""
    with warnings.catch_warnings():
        if config.train.epochs == 0:
            warnings.simplefilter("error", NewHeadWarning)
        try:
            return _build_classifier(config, given)
        except NewHeadWarning as warning:
            raise ValueError(
                f"{warning}, but train.epochs: 0 evaluates the network as it comes: give weights "
                f"for the data's {given.shape.num_classes} classes, or train for some epochs"
            ) from None


def _build_classifier(config: RunConfig, given: SeenData) -> nn.Module:
    model = config.model
    check_pretrained(model["name"], model.get("pretrained"), model.get("weights_backbone"))
    return build_network(without_download(model), given.shape)


def _build_detector(config: RunConfig, seen: dict[str, SeenData]) -> nn.Module:
    if recipes := classifier_recipe(config):
        trunk = _build_classifier(recipes[0], seen[content_hash(recipes[0].data)])
    else:
        trunk = load_network(str(config.classifier)).network
    num_classes = seen[content_hash(config.data)].shape.num_classes
    return build_detector(trunk, (0.0,) * 3, (1.0,) * 3, num_classes, config.model)


def _check_passes(config: RunConfig, network: nn.Module, images: torch.Tensor) -> None:
    """Raise where the network lacks the dropout or the features that the run needs."""
    if users := dropout_users(config):
        try:
            MCDropout(network, samples=1)(images)
        except ValueError as error:
            raise ValueError(
                f"{' and '.join(users)} needs a network with dropout, and this has none: give the "
                "model a rate, as dropout: 0.1, or leave the key out"
            ) from error
    if config.predict.feature_clipping:
        try:
            features = ClippedFeatures(network).features(images)
        except ValueError as error:
            raise ValueError(f"predict.feature_clipping: {error}; leave the key out") from error
        if features.ndim != 2:
            raise ValueError(
                "predict.feature_clipping needs a network whose last linear layer takes (B, D), "
                f"and this one's takes {tuple(features.shape)}: leave the key out"
            )


def dropout_users(config: RunConfig) -> list[str]:
    """The keys that make no sense without dropout."""
    asked = {
        "predict.mc_dropout": config.predict.mc_dropout,
        "evaluate.ensemble_sizes": config.evaluate.ensemble_sizes,
        "train.passes": config.train.passes > 1,
    }
    return [key for key, wanted in asked.items() if wanted]


_DEVICE_KEYS = {"accelerator", "devices", "strategy", "precision", "num_nodes"}


def check_runs(configs: Sequence[RunConfig], *, devices: bool = True) -> None:
    """Raise, in one line, what would make a run fail, from data, devices, networks and one batch.

    Every distinct data source is loaded once, every distinct network is built once and given two
    blank images, and each method takes a small batch as far as the gradient of its loss. Nothing
    is trained or fetched. Pass the runs that wait: what has finished needs no data and no devices.

    Example:
        >>> data = {"name": "scenes", "train": 20, "validation": 5, "test": 5}
        >>> run = RunConfig(data=data, model="resnet", predict={"mc_dropout": 5})
        >>> check_runs([run])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        sfumato.engine.config.sections.ConfigError: model resnet: predict.mc_dropout ...
    """
    with searching(configs[0].modules if configs else None):
        every = [each for config in configs for each in (*classifier_recipe(config), config)]
        if devices:
            fabrics = _distinct(every, lambda each: each.train.model_dump(include=_DEVICE_KEYS))
            for config in fabrics:
                with one_line("train"):
                    build_fabric(config.train)
        _check_data_and_networks(every)


def _check_data_and_networks(every: Sequence[RunConfig]) -> None:
    seen: dict[str, SeenData] = {}
    for source in _distinct(every, lambda each: each.data):
        name = content_hash(source.data)
        users = [each for each in every if content_hash(each.data) == name]
        with one_line(f"data {source.data['name']}"):
            seen[name] = look_at_data(users)
    networks: dict[str, nn.Module] = {}
    for config in _distinct(every, network_content):
        with one_line(f"model {config.model['name']}"):
            networks[content_hash(network_content(config))] = checked_network(config, seen)
    for config in _distinct(every, _method_content):
        few = seen[content_hash(config.data)]
        if few.train is not None and few.test is not None:
            network = networks[content_hash(network_content(config))]
            statistics = image_statistics(config, few.train)
            if config.train.epochs:  # else nothing is learnt from a batch
                _learn(config, network, few.train, statistics)
            _evaluate(config, network, few.test, statistics)


def _method_content(config: RunConfig) -> dict[str, Any]:
    """All that decides what happens to a batch, whatever the seed and the number of epochs."""
    parts = {"task", "data", "model", "loss", "augment", "inputs", "labels", "classifier"}
    content = config.model_dump(mode="json", include=parts)
    return {**content, "own": config.evaluate.own, **network_content(config)}


def _distinct(
    configs: Sequence[RunConfig], content: Callable[[RunConfig], dict[str, Any]]
) -> list[RunConfig]:
    first: dict[str, RunConfig] = {}
    for config in configs:
        first.setdefault(content_hash(content(config)), config)
    return list(first.values())
