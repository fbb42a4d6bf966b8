"""Which parts of a configuration go together with which task."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from sfumato.data import DETECTION_SOURCES
from sfumato.data.load import SEGMENTATION_SOURCES
from sfumato.engine.components import (
    DETECTORS,
    LOSSES,
    SEGMENTATION_MODELS,
    TORCHVISION,
    resolve_loss,
)
from sfumato.models import is_segmentation_model

if TYPE_CHECKING:
    from sfumato.engine.run_config import RunConfig

_SEGMENTATION_AUGMENTATIONS = ("basic", "window")


def check_task(config: RunConfig) -> None:
    """Raise unless every section is one that the task of the run can use."""
    if config.task == "segment":
        _check_segment(config)
    elif config.task == "detect":
        _check_detect(config)
    else:
        _check_classify(config)
    if config.task != "detect":
        _require(config.classifier is None, "classifier is for task: detect")


def _check_segment(config: RunConfig) -> None:
    _require(
        config.data["name"] in SEGMENTATION_SOURCES,
        f"task: segment needs label maps; data may be {', '.join(SEGMENTATION_SOURCES)}, "
        f"got {config.data['name']}",
    )
    _require(
        _segments(config.model["name"]),
        f"task: segment needs a network with one output a pixel: {', '.join(SEGMENTATION_MODELS)} "
        f"or torchvision:deeplabv3_mobilenet_v3_large and the like, got {config.model['name']}",
    )
    augment = None if config.augment is None else config.augment["name"]
    _require(
        augment in (None, *_SEGMENTATION_AUGMENTATIONS),
        f"task: segment augments with {' or '.join(_SEGMENTATION_AUGMENTATIONS)}, got {augment}",
    )
    _require(config.inputs is None, "inputs: mollification is for task: classify")
    _require(config.loss["name"] != "crl", "loss: crl ranks whole images; choose another")
    wanted = config.evaluate
    _require(not wanted.corruption_names, "evaluate.corruptions is for task: classify")
    for name in ("ensemble_sizes", "perturbations", "temperature", "context"):
        _require(not getattr(wanted, name), f"evaluate.{name} is for task: classify")
    if config.class_weight != "equal":
        takers = [n for n, b in LOSSES.items() if "class_weight" in inspect.signature(b).parameters]
        _require(
            config.loss["name"] in takers,
            f"class_weight: {config.class_weight} needs one of the losses {', '.join(takers)}, "
            f"got {config.loss['name']}",
        )


def _check_detect(config: RunConfig) -> None:
    _require(
        config.data["name"] in DETECTION_SOURCES,
        f"task: detect needs boxes; data may be {', '.join(DETECTION_SOURCES)}, "
        f"got {config.data['name']}",
    )
    _require(
        config.model["name"] in DETECTORS,
        f"task: detect needs a detector: {', '.join(DETECTORS)}, got {config.model['name']}",
    )
    _require(config.inputs is None, "inputs: mollification is for task: classify")
    for section in ("labels", "objects"):
        _require(
            getattr(config, section) is None,
            f"{section} is for task: classify; write the classifier's under classifier:",
        )
    fields = type(config).model_fields
    defaults = {
        "loss": resolve_loss(fields["loss"].default).config,
        "predict": fields["predict"].default,
        "evaluate": fields["evaluate"].default,
    }
    for section, default in defaults.items():
        _require(
            getattr(config, section) == default,
            f"{section}: a detector has its own; leave the section out, or write the "
            "classifier's under classifier:",
        )
    augment = {} if config.augment is None else config.augment
    flips_only = augment.get("name", "basic") == "basic" and not (
        augment.get("crop") or augment.get("rotation")
    )
    _require(flips_only, "task: detect augments with {name: basic, crop: 0} (flips) only")
    _require(config.train.passes == 1, "train.passes is for task: classify")
    _require(config.class_weight == "equal", "class_weight is for task: segment")
    _check_classifier(config)


def _check_classifier(config: RunConfig) -> None:
    """The classifier is trained by the same processes, just before."""
    _require(
        config.classifier is not None,
        "task: detect needs classifier: the directory of a run, or a recipe (data, model, loss, "
        "train ...) to train first",
    )
    if isinstance(config.classifier, dict):
        _require(config.classifier["task"] == "classify", "classifier.task must be classify")
        for key in ("accelerator", "devices", "strategy", "precision", "num_nodes"):
            ours, theirs = getattr(config.train, key), config.classifier["train"][key]
            _require(
                ours == theirs, f"classifier.train.{key} must be train.{key} ({ours}), got {theirs}"
            )


def _check_classify(config: RunConfig) -> None:
    _require(
        config.data["name"] not in DETECTION_SOURCES and config.model["name"] not in DETECTORS,
        f"data {config.data['name']} and model {config.model['name']}: for boxes say task: detect",
    )
    _require(
        config.data["name"] not in SEGMENTATION_SOURCES,
        f"data {config.data['name']} has label maps: say task: segment",
    )
    _require(
        not _segments(config.model["name"]),
        f"model {config.model['name']} labels every pixel: say task: segment",
    )
    augment = None if config.augment is None else config.augment["name"]
    _require(augment != "window", "augment: window is for task: segment")
    _require(config.predict.temporal is None, "predict.temporal is for task: segment")
    _require(config.class_weight == "equal", "class_weight is for task: segment")


def _segments(model: str) -> bool:
    if model.startswith(TORCHVISION):
        return is_segmentation_model(model.removeprefix(TORCHVISION))
    return model in SEGMENTATION_MODELS


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
