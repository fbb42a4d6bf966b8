"""The task `classify`: one label for each image, or each text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from sfumato._core.seeds import fold_seed
from sfumato.augment import BatchAugment
from sfumato.data import ArrayDataset, DataSplits, TensorLoader
from sfumato.engine.config.components import build_augmentation, build_model
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.evaluation.classifier import Evaluator
from sfumato.engine.evaluation.other_sets import load_other
from sfumato.engine.evaluation.prepared import prepare_network
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.ensembles import load_members, sampled, training_seconds
from sfumato.engine.runs.networks import Restandardised, write_network_facts
from sfumato.engine.runs.splits import image_statistics, load_splits
from sfumato.engine.training.label_step import LabelStep
from sfumato.engine.training.loop import Trainer
from sfumato.engine.training.notes import validation_notes
from sfumato.engine.training.objective import build_objective
from sfumato.engine.training.validation import measure_labels
from sfumato.predictions import DeepEnsemble


def execute(fabric: Fabric, config: RunConfig, directory: RunDirectory, show: bool) -> None:
    """Train, predict and evaluate a classifier; all processes take part."""
    data = load_splits(config.data)
    if fabric.is_global_zero:
        directory.write_skipped(data.skipped)
    loaders = Loaders(config, fabric, *image_statistics(config, data.train))
    if config.predict.ensemble is None:
        network = build_trainer(fabric, config, data, loaders, directory, show).fit()
        network = prepare_network(
            network,
            config.predict,
            fabric=fabric,
            directory=directory,
            validation=loaders.evaluation(data.validation),
            show=show,
        )
        seconds = None
    else:
        network = build_ensemble(fabric, config, data, loaders, directory)
        seconds = training_seconds(config, directory.path.parent)
    evaluator = Evaluator(fabric, config, network, directory, loaders.mean, loaders.std, show)
    for name, part in (("validation", data.validation), ("test", data.test)):
        evaluator.clean(name, loaders.evaluation(part))
    if config.evaluate.train:
        augmented = loaders.evaluation(data.train, build_augmentation(config.augment))
        evaluator.training_set(augmented)
    skipped = dict(data.skipped)
    for name, spec in config.evaluate.also.items():
        evaluator.other(name, loaders.evaluation(load_other(spec, data.train, skipped)))
    if fabric.is_global_zero:
        directory.write_skipped(skipped)
        directory.write_metrics(evaluator.finish(data.test), training_seconds=seconds)
    fabric.barrier()


def build_ensemble(
    fabric: Fabric, config: RunConfig, data: DataSplits, loaders: Loaders, directory: RunDirectory
) -> DeepEnsemble:
    """The networks that a run averages, each with images standardised as in its own training."""
    members = load_members(config, directory.path.parent)
    for member in members:
        if member.classes != data.train.classes:
            raise ValueError(
                f"predict.ensemble: a network has the classes {member.classes}, the data has "
                f"{data.train.classes}"
            )
    networks = [Restandardised(member, loaders.mean, loaders.std) for member in members]
    return DeepEnsemble([sampled(each, config) for each in networks]).to(fabric.device)


def build_trainer(
    fabric: Fabric,
    config: RunConfig,
    data: DataSplits,
    loaders: Loaders,
    directory: RunDirectory,
    show: bool,
) -> Trainer:
    """The trainer of a configuration, with initial weights from its seed."""
    if fabric.is_global_zero:
        write_network_facts(directory, data.train, loaders.mean, loaders.std)
    objective = build_objective(config, data.train, loaders.mean, loaders.std)
    loader, loss = loaders.training(objective.train, objective.augment), objective.loss
    is_scaled = config.train.best == "scaled_nll"
    torch.manual_seed(fold_seed(config.seed, "initial weights"))
    return Trainer(
        fabric=fabric,
        model=build_model(config.model, data.train),
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
        validation_loader=loaders.evaluation(data.validation),
        config=config.train,
        seed=config.seed,
        run=directory,
        show=show,
        measure=partial(measure_labels, scaled=is_scaled, note=validation_notes(loss)),
    )


@dataclass(frozen=True)
class Loaders:
    """Loaders that share a run's normalisation, layout and processes."""

    config: RunConfig
    fabric: Fabric
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def training(self, dataset: ArrayDataset, augment: BatchAugment | None) -> TensorLoader:
        full_batches = len(dataset) >= self.config.train.batch_size
        return self._loader(dataset, augment=augment, shuffle=True, drop_last=full_batches)

    def evaluation(
        self, dataset: ArrayDataset, augment: BatchAugment | None = None
    ) -> TensorLoader:
        return self._loader(dataset, augment=augment)

    def _loader(
        self,
        dataset: ArrayDataset,
        *,
        augment: BatchAugment | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> TensorLoader:
        return TensorLoader(
            dataset,
            self.config.train.batch_size,
            shuffle=shuffle,
            seed=self.config.seed,
            augment=augment,
            drop_last=drop_last,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            device=self.fabric.device,
            channels_last=self.config.train.channels_last,
            mean=self.mean,
            std=self.std,
        )
