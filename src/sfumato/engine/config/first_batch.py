"""One batch through each part of a method, before the first epoch: whatever fails is one line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.import_path import place_of
from sfumato.augment import CopiedSamples, label_samples
from sfumato.data import ArrayDataset, Sample, TensorLoader
from sfumato.data.prepare import Statistics
from sfumato.engine.config.components import (
    build_augmentation,
    build_inputs,
    build_labels,
    build_loss,
    check_void,
)
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import ConfigError
from sfumato.engine.evaluation.own import evaluate_own
from sfumato.engine.runs.directory import Predictions
from sfumato.engine.runs.splits import image_statistics
from sfumato.engine.training.transforms import batch_transform


def push_batch(
    config: RunConfig, network: nn.Module, train: ArrayDataset, test: ArrayDataset
) -> None:
    """Take a batch through augmentation, inputs, network, loss and the user's own evaluations.

    A run without epochs has no use for the first four.

    Args:
        config: of a classifier or segmenter.
        network: its network, which is left without gradients.
        train: the few samples of the batch.
        test: a few samples for evaluations.

    Raises:
        ConfigError: what is wrong with which part, and for a user's own part in which line.
    """
    statistics = image_statistics(config, train)
    if config.train.epochs:
        train = replace(train, index=torch.arange(len(train)))  # counted as in a training
        _learn(config, network, train, statistics)
    _evaluate(config, network, test, statistics)


def _learn(
    config: RunConfig, network: nn.Module, train: ArrayDataset, statistics: Statistics
) -> None:
    """As a training step does, as far as the gradient."""
    num_classes, (mean, std) = train.num_classes, statistics
    with one_line(_title("augment", config.augment)):
        augment = build_augmentation(config.augment)
        labels = build_labels(config.labels, num_classes=num_classes)
        labelled = label_samples(labels, train, augment)
        copies = config.train.copies
        count = len(train) * (1 if copies is None else copies.count)
        if copies is not None:
            labelled = CopiedSamples(labelled, copies.count)
        batch = TensorLoader(train, len(train), augment=labelled, mean=mean, std=std).batch(0)
        _check_batch(batch, count)
        images, target = batch["image"], batch.get("soft_label", batch["label"])
        mix = batch_transform(num_classes, augment, None)
        if mix is not None:
            images, target = mix(images, target)
    with one_line(_title("inputs", config.inputs)):
        smooth = build_inputs(config.inputs, num_classes=num_classes, statistics=statistics)
        if smooth is not None:
            images, target = _pair(smooth(images, target), images)
    with one_line(_title("model", config.model)):
        logits = network.train()(images)
        check_logits(logits, images, num_classes, one_label=train.labels.ndim == 1)
    with one_line(_title("loss", config.loss)):
        loss = build_loss(
            config.loss,
            num_samples=len(train),
            num_classes=num_classes,
            epochs=config.train.epochs,
            copies=copies,
        )
        check_void(loss, train)
        takes_index = "index" in inspect.signature(loss.forward).parameters
        value = loss(logits, target, **({"index": batch["index"]} if takes_index else {}))
        _check_loss(value, logits)
        value.backward()
        network.zero_grad(set_to_none=True)


def check_logits(logits: Any, images: Tensor, num_classes: int, *, one_label: bool) -> None:
    """Raise unless a network gave logits for each image, or for each pixel."""
    expected = (len(images), num_classes, *(() if one_label else images.shape[2:]))
    if isinstance(logits, Tensor) and logits.shape == expected and logits.is_floating_point():
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
    """Whatever fails inside would fail in every run: say it once, as a mistake in the study."""
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


def _title(kind: str, spec: Mapping[str, Any] | None) -> str:
    return kind if spec is None else f"{kind} {spec['name']}"


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
