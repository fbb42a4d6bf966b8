"""Which parts of a configuration go together with which task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sfumato.data.dataset import UNLABELLED
from sfumato.data.load import SOURCES, TEXT_SOURCES
from sfumato.engine.config.components import build_augmentation
from sfumato.engine.config.input_rules import check_input_kind
from sfumato.engine.config.part_kinds import Kind, Task
from sfumato.engine.config.parts import find_part, is_own, parts, resolve_part
from sfumato.engine.config.weight_files import ONNX
from sfumato.engine.training.transforms import batch_transform

if TYPE_CHECKING:
    from sfumato.engine.config.run_config import RunConfig


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
    _check_untrained(config)
    _check_ensemble(config)
    _check_copies(config)


def _check_ensemble(config: RunConfig) -> None:
    members = config.predict.ensemble
    _require(members is None or config.task == "classify", "predict.ensemble is for task: classify")
    _require(
        members != "seeds",
        "predict.ensemble: seeds means the seeds of a study; for a run by itself name them, as "
        "[0, 1, 2]",
    )
    _require(
        members is None or not config.evaluate.ensemble_sizes,
        "evaluate.ensemble_sizes counts dropout masks; predict.ensemble is measured with 1, 2, ... "
        "of its networks anyway: leave the sizes out",
    )


def _check_copies(config: RunConfig) -> None:
    """Copies are averaged as likelihoods, and must differ."""
    if config.train.copies is None:
        return
    _require(config.task == "classify", "train.copies is for task: classify")
    takers = [each.name for each in parts("loss").values() if each.is_negative_log_likelihood]
    _require(
        config.loss["name"] in takers,
        "train.copies averages likelihoods: the loss must be "
        f"{' or '.join(takers)}, got {config.loss['name']}",
    )
    _require(
        config.augment is not None or config.inputs is not None,
        "train.copies needs copies that differ: say augment or inputs",
    )


def _check_untrained(config: RunConfig) -> None:
    """Networks that can't be trained, and runs that train nothing."""
    name, model = config.model["name"], find_part("model", config.model["name"])
    if name.startswith(ONNX):
        _require(
            config.train.epochs == 0,
            f"model {name} can't be trained, an ONNX file is for prediction: say train: "
            "{epochs: 0}",
        )
        sampled = config.predict.mc_dropout is not None or bool(config.evaluate.ensemble_sizes)
        _require(
            not sampled,
            f"model {name}: predict.mc_dropout and evaluate.ensemble_sizes need dropout, which an "
            "ONNX file has not",
        )
        frequency = config.evaluate.frequency
        attacked = config.evaluate.attacks or (frequency is not None and frequency.attack)
        _require(
            not attacked,
            f"model {name}: evaluate.attacks and evaluate.frequency.attack need gradients, which "
            "an ONNX file has not",
        )
    elif config.train.epochs == 0 and model.takes("weights"):
        trained = config.model.get("weights") or config.model.get("pretrained")
        _require(
            bool(trained),
            f"train.epochs is 0, and model {name} is not trained: give its file, as weights: "
            "network.safetensors, or pretrained: true where the library has weights",
        )


_OF_CLASSIFIERS = (
    *("ensemble_sizes", "perturbations", "temperature", "normalised", "context", "own"),
    *("attacks", "frequency", "train", "alexnet", "also", "stored"),
)


def _check_segment(config: RunConfig) -> None:
    _require(
        _serves("data", config, "segment"),
        f"task: segment needs label maps; data may be {_names('data', 'segment')}, "
        f"got {config.data['name']}",
    )
    _require(
        _serves("model", config, "segment"),
        f"task: segment needs a network with one output a pixel: {_names('model', 'segment')} "
        f"such as torchvision:deeplabv3_mobilenet_v3_large, got {config.model['name']}",
    )
    _require(
        config.augment is None or _serves("augment", config, "segment"),
        f"task: segment augments with {_names('augment', 'segment')}, got {config.augment}",
    )
    _require(config.inputs is None, "inputs: mollification is for task: classify")
    for name in ("tta", "feature_clipping"):
        _require(not getattr(config.predict, name), f"predict.{name} is for task: classify")
    _require(
        config.train.best != "scaled_nll",
        "train.best: scaled_nll is for task: classify; label maps have accuracy and nll",
    )
    loss = find_part("loss", config.loss["name"])
    _require(
        not loss.remembers_samples(config.loss),
        f"loss: {loss.name} keeps a history of whole images; choose another",
    )
    wanted = config.evaluate
    _require(not wanted.corruption_names, "evaluate.corruptions is for task: classify")
    for name in _OF_CLASSIFIERS:
        _require(not getattr(wanted, name), f"evaluate.{name} is for task: classify")
    _require(
        len(wanted.all_bins) == 1,
        f"evaluate.bins: label maps are measured with one number of bins, got {wanted.bins}",
    )
    if config.class_weight != "equal":
        takers = [each.name for each in parts("loss").values() if each.takes("class_weight")]
        _require(
            loss.name in takers,
            f"class_weight: {config.class_weight} needs one of the losses {', '.join(takers)}, "
            f"got {loss.name}",
        )


def _check_detect(config: RunConfig) -> None:
    _require(
        _serves("data", config, "detect"),
        f"task: detect needs boxes; data may be {_names('data', 'detect')}, "
        f"got {config.data['name']}",
    )
    _require(
        _serves("model", config, "detect"),
        f"task: detect needs a detector: {_names('model', 'detect')}, got {config.model['name']}",
    )
    _require(config.inputs is None, "inputs: mollification is for task: classify")
    for section in ("labels", "objects", "standardise"):
        _require(
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
    _require(
        config.train.best is None,
        "train.best: a detector is not validated after each epoch; train.ema and train.swa need "
        "no validation",
    )
    _require(
        config.train.head_learning_rate is None,
        "train.head_learning_rate: a detector has several heads; leave it out",
    )
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
        not (_serves("data", config, "detect") or _serves("model", config, "detect")),
        f"data {config.data['name']} and model {config.model['name']}: for boxes say task: detect",
    )
    _require(
        _serves("data", config, "classify"),
        f"data {config.data['name']} has label maps: say task: segment",
    )
    _require(
        _serves("model", config, "classify"),
        f"model {config.model['name']} labels every pixel: say task: segment",
    )
    _require(
        config.augment is None or _serves("augment", config, "classify"),
        f"augment: {config.augment and config.augment['name']} is for task: segment",
    )
    if config.data["name"] in SOURCES:
        check_input_kind(config, is_text=config.data["name"] in TEXT_SOURCES)
    for name, spec in config.evaluate.also.items():
        _require(
            "classify" in find_part("data", spec["name"]).tasks
            and spec["name"] not in TEXT_SOURCES,
            f"evaluate.also.{name}: data {spec['name']} has no images with one label each; choose "
            "another source",
        )
    _require(config.predict.temporal is None, "predict.temporal is for task: segment")
    _check_prediction(config)
    _require(config.class_weight == "equal", "class_weight is for task: segment")
    _check_targets(config)


def _check_prediction(config: RunConfig) -> None:
    """A prediction is made in one way."""
    averaged = config.predict.mc_dropout is not None or config.predict.ensemble is not None
    for name in ("tta", "feature_clipping"):
        _require(
            not getattr(config.predict, name) or not (averaged or config.evaluate.ensemble_sizes),
            f"predict.{name} goes without predict.mc_dropout, predict.ensemble and "
            "evaluate.ensemble_sizes: choose one of them",
        )
    _require(
        config.predict.tta is None or config.data["name"] not in TEXT_SOURCES,
        "predict.tta flips, shifts and blurs images; texts have none",
    )


def _check_targets(config: RunConfig) -> None:
    """Known from the configuration, so it needs not wait for the first batch."""
    loss = find_part("loss", config.loss["name"])
    ignored = config.loss.get("ignore_index", UNLABELLED)
    if loss.takes_soft_targets and ignored == UNLABELLED:
        return
    softens = {
        "inputs": config.inputs is not None and not is_own("inputs", config.inputs["name"]),
        "augment": _mixes(config.augment),
        "labels": config.labels is not None,
        "objects.context": config.objects is not None and config.objects.context > 0,
    }
    found = " and ".join(section for section, does in softens.items() if does)
    _require(
        not found or not loss.takes_soft_targets,
        f"loss: ignore_index {ignored} marks class indices, but {found} makes soft labels. Leave "
        "one of them out",
    )
    takers = ", ".join(each.name for each in parts("loss").values() if each.takes_soft_targets)
    _require(
        not found,
        f"loss: {loss.name} is defined for classes, but {found} makes soft labels. Leave that out, "
        f"or choose one of the losses {takers}",
    )


def _mixes(augment: Mapping[str, Any] | None) -> bool:
    """Of a user's own, which is not built for a look at the file, the first batch will tell."""
    if augment is not None and is_own("augment", augment["name"]):
        return False
    return batch_transform(2, build_augmentation(augment), None) is not None


def _serves(kind: Kind, config: RunConfig, task: Task) -> bool:
    """Whether the part that the run names under `kind` can be used by the task."""
    return task in find_part(kind, getattr(config, kind)["name"]).tasks


def _names(kind: Kind, task: Task) -> str:
    return " or ".join(parts(kind, task))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
