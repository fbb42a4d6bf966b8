"""The task `classify`: one label for each image, or each text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from sfumato._core.seeds import fold_seed
from sfumato.augment import BatchAugment
from sfumato.data import ArrayDataset, DataSplits, TensorLoader
from sfumato.engine.config.build import DataShape, build_augmentation, build_network
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.evaluation.classifier import Evaluator
from sfumato.engine.evaluation.context import Context, prepared
from sfumato.engine.evaluation.other_sets import LOADERS
from sfumato.engine.evaluation.pixels import measure_pixels
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.tasks.ensembles import load_members, sampled, training_seconds
from sfumato.engine.training.checkpoint import Restandardised, write_network_facts
from sfumato.engine.training.loop import Trainer, measure_labels
from sfumato.engine.training.steps import (
    LabelStep,
    build_objective,
    image_statistics,
    load_splits,
    validation_notes,
)
from sfumato.predictions import DeepEnsemble


def execute(fabric: Fabric, config: RunConfig, directory: RunDirectory, show: bool) -> None:
    """Train, predict and evaluate a classifier; all processes take part."""
    data = load_splits(config.data)
    setup = set_up(fabric, config, directory, data, show)
    if config.predict.ensemble is None:
        network, seconds = build_trainer(setup, data).fit(), None
    else:
        network = build_ensemble(setup, data)
        seconds = training_seconds(config, directory.path.parent)
    evaluator = setup.evaluator(network, data.validation)
    wanted = config.evaluate
    if wanted.ood:
        has_distances = wanted.ood_features is not False
        layer = wanted.ood_features or None
        evaluator.score(setup.evaluation(data.train) if has_distances else None, layer)
    for name, part in (("validation", data.validation), ("test", data.test)):
        evaluator.add(name, setup.evaluation(part))
    if wanted.train:
        augmented = setup.evaluation(data.train, build_augmentation(config.augment))
        evaluator.training_set(augmented)
    skipped = dict(data.skipped)
    for key, load in LOADERS.items():
        for name, spec in getattr(wanted, key).items():
            evaluator.add(name, setup.evaluation(load(spec, data.train, skipped)))
    if fabric.is_global_zero:
        directory.write_skipped(skipped)
        directory.write_metrics(evaluator.finish(data.test), training_seconds=seconds)
    fabric.barrier()


@dataclass(frozen=True)
class Setup:
    """Everything that a run works with; its loaders share standardisation, layout and processes."""

    fabric: Fabric
    config: RunConfig
    directory: RunDirectory
    mean: tuple[float, ...]
    std: tuple[float, ...]
    show: bool = False

    def training(self, dataset: ArrayDataset, augment: BatchAugment | None) -> TensorLoader:
        # A small last batch would be a noisy step; a set below one batch has no other.
        full_batches = len(dataset) >= self.config.train.batch_size
        return self.evaluation(dataset, augment, shuffle=True, drop_last=full_batches)

    def evaluation(
        self, dataset: ArrayDataset, augment: BatchAugment | None = None, **order: bool
    ) -> TensorLoader:
        return TensorLoader(
            dataset,
            self.config.train.batch_size,
            seed=self.config.seed,
            augment=augment,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            device=self.fabric.device,
            channels_last=self.config.train.channels_last,
            mean=self.mean,
            std=self.std,
            **order,
        )

    def evaluator(self, network: nn.Module, validation: ArrayDataset) -> Evaluator:
        """Measures a network as `predict` wants it, fitted on validation images where needed."""
        return Evaluator(prepared(self.context(network), self.evaluation(validation)))

    def context(self, network: nn.Module) -> Context:
        """All that measurements of a network share."""
        run = (self.directory, self.mean, self.std, self.show)
        return Context(self.fabric, self.config, network, *run)


def set_up(
    fabric: Fabric, config: RunConfig, directory: RunDirectory, data: DataSplits, show: bool = False
) -> Setup:
    """Note the images that could not be read, and standardise by the training set."""
    if fabric.is_global_zero:
        directory.write_skipped(data.skipped)
    return Setup(fabric, config, directory, *image_statistics(config, data.train), show)


def build_ensemble(setup: Setup, data: DataSplits) -> DeepEnsemble:
    """The networks that a run averages, each with images standardised as in its own training."""
    config = setup.config
    members = load_members(config, setup.directory.path.parent)
    for member in members:
        if member.classes != data.train.classes:
            raise ValueError(
                f"predict.ensemble: a network has the classes {member.classes}, the data has "
                f"{data.train.classes}"
            )
    networks = [Restandardised(member, setup.mean, setup.std) for member in members]
    return DeepEnsemble([sampled(each, config) for each in networks]).to(setup.fabric.device)


def build_trainer(setup: Setup, data: DataSplits) -> Trainer:
    """Build the trainer of a classifier or segmenter, with initial weights from its seed."""
    fabric, config = setup.fabric, setup.config
    if fabric.is_global_zero:
        write_network_facts(setup.directory, data.train, setup.mean, setup.std)
    objective = build_objective(config, data.train, setup.mean, setup.std)
    loader, loss = setup.training(objective.train, objective.augment), objective.loss
    note = validation_notes(loss)
    is_scaled = config.train.best == "scaled_nll"
    measure = partial(measure_labels, scaled=is_scaled, note=note)
    if config.task == "segment":
        measure = partial(measure_pixels, note=note)
    torch.manual_seed(fold_seed(config.seed, "initial weights"))
    return Trainer(
        fabric=fabric,
        model=build_network(config.model, DataShape.of(data.train)),
        step=LabelStep(
            fabric,
            loss,
            loader,
            config.seed,
            inputs=objective.inputs,
            passes=config.train.passes,
            copies=objective.copies,
        ),
        train_loader=loader,
        validation_loader=setup.evaluation(data.validation),
        config=config.train,
        seed=config.seed,
        run=setup.directory,
        show=setup.show,
        measure=measure,
    )
