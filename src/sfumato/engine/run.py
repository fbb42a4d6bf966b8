"""One run: configuration in, trained and evaluated directory out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from pydantic import Field, field_validator

from sfumato._spec import Resolved, Spec
from sfumato.data import ArrayDataset, Augment, TensorLoader, channel_statistics, load_data
from sfumato.engine.components import (
    build_augmentation,
    build_loss,
    resolve_augmentation,
    resolve_data,
    resolve_loss,
    resolve_model,
)
from sfumato.engine.config import Strict, TrainConfig, fingerprint
from sfumato.engine.evaluate import evaluate
from sfumato.engine.predict import predict
from sfumato.engine.progress import progress_bar
from sfumato.engine.results import RunDirectory
from sfumato.engine.seeds import fold_seed
from sfumato.engine.train import Trainer


class RunConfig(Strict):
    """Everything that decides a run's numbers. Specs are kept fully resolved, defaults included."""

    data: dict[str, Any]
    model: dict[str, Any]
    loss: dict[str, Any] = Field({"name": "cross_entropy"}, validate_default=True)
    augment: dict[str, Any] | None = None
    train: TrainConfig = TrainConfig()
    seed: int = Field(0, ge=0)
    resamples: int = Field(1000, ge=0)

    @field_validator("data", mode="before")
    @classmethod
    def _data(cls, spec: Spec) -> dict[str, Any]:
        return _config_of(resolve_data, spec)

    @field_validator("model", mode="before")
    @classmethod
    def _model(cls, spec: Spec) -> dict[str, Any]:
        return _config_of(resolve_model, spec)

    @field_validator("loss", mode="before")
    @classmethod
    def _loss(cls, spec: Spec) -> dict[str, Any]:
        return _config_of(resolve_loss, spec)

    @field_validator("augment", mode="before")
    @classmethod
    def _augment(cls, spec: Spec | None) -> dict[str, Any] | None:
        return None if spec is None else _config_of(resolve_augmentation, spec)


def _config_of(resolver: Callable[[Spec], Resolved], spec: Spec) -> dict[str, Any]:
    try:
        return resolver(spec).config
    except TypeError as error:  # pydantic reports ValueError only
        raise ValueError(str(error)) from None


def run(config: RunConfig, root: Path, *, show: bool = True) -> RunDirectory:
    """Train, predict and evaluate; a finished run is returned as it is, a killed one goes on.

    Args:
        config: the checked configuration.
        root: the folder of runs; the run's own directory is named by the configuration's hash.
        show: whether to draw progress bars on standard error.
    """
    directory = RunDirectory(root / fingerprint(config))
    if directory.finished:
        return directory
    train = config.train
    directory.write_config(config.model_dump(mode="json"))
    fabric = Fabric(
        accelerator=train.accelerator,
        devices=train.devices,
        strategy=train.strategy,
        precision=train.precision,
        num_nodes=train.num_nodes,
    )
    fabric.launch(_execute, config, directory.path, show)  # type: ignore[arg-type]
    return directory


def _execute(fabric: Fabric, config: RunConfig, path: Path, show: bool) -> None:
    directory = RunDirectory(path)
    data = load_data(config.data)
    loaders = _Loaders(config, fabric, *channel_statistics(data.train.images))
    torch.manual_seed(fold_seed(config.seed, "initial weights"))
    model = resolve_model(config.model)
    trainer = Trainer(
        fabric=fabric,
        model=model.build(
            num_classes=data.train.num_classes,
            in_channels=data.train.images.shape[1],
            **model.params,
        ),
        loss=build_loss(resolve_loss(config.loss), num_samples=int(data.train.index.max()) + 1),
        inputs=None,
        train_loader=loaders.training(data.train),
        validation_loader=loaders.evaluation(data.validation),
        config=config.train,
        seed=config.seed,
        run=directory,
        show=show,
    )
    network = trainer.fit()
    show = show and fabric.is_global_zero
    metrics = {}
    for name, part in (("validation", data.validation), ("test", data.test)):
        loader = loaders.evaluation(part)
        with progress_bar(f"predicting {name}", len(loader), show=show) as bar:
            found = predict(network, loader, fabric, bar)
        if fabric.is_global_zero:
            directory.write_predictions(name, found)
            metrics[name] = evaluate(found, resamples=config.resamples, seed=config.seed)
    if fabric.is_global_zero:
        directory.write_metrics(metrics)
    fabric.barrier()


@dataclass(frozen=True)
class _Loaders:
    """Loaders that share a run's normalisation, layout and processes."""

    config: RunConfig
    fabric: Fabric
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def training(self, dataset: ArrayDataset) -> TensorLoader:
        augment = self.config.augment
        size = self.config.train.batch_size
        return self._loader(
            dataset,
            augment=None if augment is None else build_augmentation(augment),
            shuffle=True,
            drop_last=len(dataset) >= size,
        )

    def evaluation(self, dataset: ArrayDataset) -> TensorLoader:
        return self._loader(dataset)

    def _loader(
        self,
        dataset: ArrayDataset,
        *,
        augment: Augment | None = None,
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
