"""What a classifier is trained for: its samples as the optimiser sees them, and their loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sfumato._core.seeds import fold_seed
from sfumato.augment import BatchAugment, CopiedSamples, label_samples
from sfumato.data import ArrayDataset, single_objects, with_context
from sfumato.engine.config.components import (
    build_augmentation,
    build_inputs,
    build_labels,
    build_loss,
)
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.training.transforms import BatchTransform, batch_transform


@dataclass(frozen=True)
class Objective:
    """The parts of a configuration that make a loss of training samples.

    Attributes:
        train: the samples, after what the `objects` section does to them.
        augment: of single samples, soft labels and copies included.
        inputs: mixes and mollifies a batch; None leaves it as it is.
        loss: of logits and targets.
        copies: rows that each sample has in a batch.
    """

    train: ArrayDataset
    augment: BatchAugment | None
    inputs: BatchTransform | None
    loss: nn.Module
    copies: int


def build_objective(
    config: RunConfig, train: ArrayDataset, mean: Sequence[float], std: Sequence[float]
) -> Objective:
    """The objective of a run on the training part of its data, standardised with `mean`, `std`."""
    num_classes, copies = train.num_classes, config.train.copies
    augment = build_augmentation(config.augment)
    statistics = tuple(mean), tuple(std)
    mollify = build_inputs(config.inputs, num_classes=num_classes, statistics=statistics)
    train = _training_set(train, config, statistics[0])
    labels = build_labels(config.labels, num_classes=num_classes)
    labelled = label_samples(labels, train, augment)
    loss = build_loss(
        config.loss,
        num_samples=len(train),
        num_classes=num_classes,
        epochs=config.train.epochs,
        copies=copies,
    )
    return Objective(
        train,
        labelled if copies is None else CopiedSamples(labelled, copies.count),
        batch_transform(num_classes, augment, mollify),
        loss,
        1 if copies is None else copies.count,
    )


def _training_set(train: ArrayDataset, config: RunConfig, mean: tuple[float, ...]) -> ArrayDataset:
    """The training samples after what the `objects` section does to them, counted from 0.

    A loss that remembers each sample compares it with all others that it was told of: indices of
    samples that are never trained on must not be among them.
    """
    objects = config.objects
    if objects is not None:
        if objects.single:
            train = single_objects(train, fill=mean)
        seed = fold_seed(config.seed, "context-only images")
        train = with_context(train, share=objects.context, fill=mean, seed=seed)
    return dataclasses.replace(train, index=torch.arange(len(train)))
