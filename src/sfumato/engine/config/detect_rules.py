"""Which parts of a configuration go together with the detection of objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato.engine.config.parts import resolve_part
from sfumato.engine.config.rules import names_for, require, serves

if TYPE_CHECKING:
    from sfumato.engine.config.run_config import RunConfig


def check_detection(config: RunConfig) -> None:
    """Raise unless every section is one that a detector can use."""
    require(
        serves("data", config, "detect"),
        f"task: detect needs boxes; data may be {names_for('data', 'detect')}, "
        f"got {config.data['name']}",
    )
    require(
        serves("model", config, "detect"),
        f"task: detect needs a detector: {names_for('model', 'detect')}, "
        f"got {config.model['name']}",
    )
    require(config.inputs is None, "inputs: mollification is for task: classify")
    for section in ("labels", "objects", "standardise"):
        require(
            getattr(config, section) is None,
            f"{section} is for task: classify; write the classifier's under classifier:",
        )
    fields = type(config).model_fields
    defaults = {
        "loss": resolve_part("loss", fields["loss"].default).config,
        "predict": fields["predict"].default,
        "evaluate": fields["evaluate"].default,
    }
    for section, default in defaults.items():
        require(
            getattr(config, section) == default,
            f"{section}: a detector has its own; leave the section out, or write the "
            "classifier's under classifier:",
        )
    augment = {} if config.augment is None else config.augment
    flips_only = augment.get("name", "basic") == "basic" and not (
        augment.get("crop") or augment.get("rotation")
    )
    require(flips_only, "task: detect augments with {name: basic, crop: 0} (flips) only")
    require(config.train.passes == 1, "train.passes is for task: classify")
    require(
        config.train.best is None,
        "train.best: a detector is not validated after each epoch; train.ema and train.swa need "
        "no validation",
    )
    require(
        config.train.head_learning_rate is None,
        "train.head_learning_rate: a detector has several heads; leave it out",
    )
    require(config.class_weight == "equal", "class_weight is for task: segment")
    _check_classifier(config)


def _check_classifier(config: RunConfig) -> None:
    """The classifier is trained by the same processes, just before."""
    require(
        config.classifier is not None,
        "task: detect needs classifier: the directory of a run, or a recipe (data, model, loss, "
        "train ...) to train first",
    )
    if isinstance(config.classifier, dict):
        require(config.classifier["task"] == "classify", "classifier.task must be classify")
        for key in ("accelerator", "devices", "strategy", "precision", "num_nodes"):
            ours, theirs = getattr(config.train, key), config.classifier["train"][key]
            require(
                ours == theirs, f"classifier.train.{key} must be train.{key} ({ours}), got {theirs}"
            )
