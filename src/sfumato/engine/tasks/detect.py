"""The task `detect`: a trained classifier's trunk in Faster R-CNN, fine-tuned to find objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from sfumato._core.files import write_arrays
from sfumato._core.seeds import fold_seed
from sfumato._core.text import progress_bar
from sfumato.data import DetectionDataset, DetectionLoader, load_detection_data
from sfumato.engine.config.build import build_component
from sfumato.engine.config.run_config import RunConfig, training_content
from sfumato.engine.config.sections import fingerprint, parse
from sfumato.engine.evaluation.detection import Detection, detection_arrays, detection_metrics
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.tasks import classify
from sfumato.engine.training.checkpoint import load_network
from sfumato.engine.training.loop import Trainer
from sfumato.engine.training.predict import predict_batches
from sfumato.engine.training.steps import DetectionStep


def detector_from(
    classifier_run: str | Path | RunDirectory,
    *,
    num_classes: int,
    model: dict[str, object] | None = None,
) -> nn.Module:
    """A detector whose trunk is the trained network of a classifier run.

    The pyramid and the heads are new, with weights from the global random state; images are
    standardised as the classifier's were.

    Args:
        classifier_run: the directory of a run of task `classify`.
        num_classes: classes of objects, without the background.
        model: a detector's spec; `faster_rcnn` with its defaults where None.

    Example:
        >>> detector_from("runs/a/runs/0123456789ab", num_classes=10)  # doctest: +SKIP
    """
    trained = load_network(classifier_run)
    facts = trained.facts
    return build_detector(trained.network, facts.mean, facts.std, num_classes, model)


def build_detector(
    network: nn.Module,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    num_classes: int,
    model: dict[str, object] | None = None,
) -> nn.Module:
    """A detector around a classifier and its standardisation; see `detector_from`."""
    spec = {"name": "faster_rcnn"} if model is None else model
    supplied: dict[str, Any] = {"classifier": network, "num_classes": num_classes}
    supplied |= {"mean": mean, "std": std}
    detector: nn.Module = build_component("model", spec, task="detect", **supplied)
    return detector.train()


def execute(fabric: Fabric, config: RunConfig, directory: RunDirectory, show: bool) -> None:
    """Train the classifier where that is not done, and its detector; the first process measures."""
    source = _classifier(fabric, config, directory, show)
    data = load_detection_data(config.data)
    if fabric.is_global_zero:
        directory.write_skipped(data.skipped)
    torch.manual_seed(fold_seed(config.seed, "initial weights"))
    detector = detector_from(source, num_classes=len(data.classes), model=config.model)
    network = build_trainer(fabric, config, data.train, detector, directory, show).fit()
    if fabric.is_global_zero:
        inner = getattr(network, "module", network)
        metrics = {}
        for name, part in (("validation", data.validation), ("test", data.test)):
            found = detect(inner, part, fabric.device, label=f"detecting {name}", show=show)
            write_arrays(directory.path / "predictions" / f"{name}.npz", detection_arrays(found))
            metrics[name] = detection_metrics(part, found)
        directory.write_metrics(metrics)
    fabric.barrier()


def build_trainer(
    fabric: Fabric,
    config: RunConfig,
    train: DetectionDataset,
    detector: nn.Module,
    directory: RunDirectory,
    show: bool,
) -> Trainer:
    """The trainer of a configuration, for a detector that is there."""
    return Trainer(
        fabric=fabric,
        model=detector,
        step=DetectionStep(fabric.device),
        train_loader=DetectionLoader(
            train,
            config.train.batch_size,
            shuffle=True,
            flip=config.augment is not None and config.augment["flip"],
            seed=config.seed,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
            device=fabric.device,
        ),
        config=config.train,
        seed=config.seed,
        run=directory,
        show=show,
    )


def detect(
    detector: nn.Module,
    dataset: DetectionDataset,
    device: torch.device,
    *,
    label: str = "detecting",
    show: bool = False,
) -> list[Detection]:
    """Return for each image `boxes`, `scores` and `labels` (class indices from 0), on the CPU."""
    loader = DetectionLoader(dataset, 16, device=device)
    found: list[Detection] = []

    def take(output: list[Detection], _: None) -> None:
        for each in output:
            values = {key: value.float().cpu() for key, value in each.items()}
            # torchvision's detectors count the background as class 0.
            found.append({**values, "labels": each["labels"].cpu() - 1})

    with progress_bar(label, len(loader), show=show) as bar:
        predict_batches(detector, ((batch.images, None) for batch in loader), take, bar)
    return found


def _classifier(
    fabric: Fabric, config: RunConfig, directory: RunDirectory, show: bool
) -> RunDirectory:
    """The run of the classifier: a finished one beside it, or one of this training's own."""
    if isinstance(config.classifier, str):
        return RunDirectory(Path(config.classifier))
    recipe = parse(RunConfig, config.classifier, "classifier")
    name = fingerprint(recipe)
    neighbour = RunDirectory(directory.path.parent / name)
    if neighbour.finished:
        return neighbour
    # Not beside: two detectors of one classifier may be trained at the same time.
    own = RunDirectory(directory.training / "classifier" / name)
    if not own.finished:
        if fabric.is_global_zero:
            own.begin(recipe.model_dump(mode="json"), training_content(recipe))
        fabric.barrier()
        classify.execute(fabric, recipe, own, show)
    return own
