"""Which parts of a configuration go together with which task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sfumato.data.dataset import UNLABELLED
from sfumato.data.load import SOURCES, TEXT_SOURCES
from sfumato.engine.config.components import build_augmentation
from sfumato.engine.config.detect_rules import check_detection
from sfumato.engine.config.input_rules import check_input_kind
from sfumato.engine.config.parts import find_part, is_own, parts
from sfumato.engine.config.rules import names_for, require, serves
from sfumato.engine.config.weight_files import ONNX
from sfumato.engine.training.transforms import batch_transform

if TYPE_CHECKING:
    from sfumato.engine.config.run_config import RunConfig


def check_task(config: RunConfig) -> None:
    """Raise unless every section is one that the task of the run can use."""
    if config.task == "segment":
        _check_segment(config)
    elif config.task == "detect":
        check_detection(config)
    else:
        _check_classify(config)
    if config.task != "detect":
        require(config.classifier is None, "classifier is for task: detect")
    _check_untrained(config)
    _check_ensemble(config)
    _check_copies(config)


def _check_ensemble(config: RunConfig) -> None:
    members = config.predict.ensemble
    require(members is None or config.task == "classify", "predict.ensemble is for task: classify")
    require(
        members != "seeds",
        "predict.ensemble: seeds means the seeds of a study; for a run by itself name them, as "
        "[0, 1, 2]",
    )
    require(
        members is None or not config.evaluate.ensemble_sizes,
        "evaluate.ensemble_sizes counts dropout masks; predict.ensemble is measured with 1, 2, ... "
        "of its networks anyway: leave the sizes out",
    )


def _check_copies(config: RunConfig) -> None:
    """Copies are averaged as likelihoods, and must differ."""
    if config.train.copies is None:
        return
    require(config.task == "classify", "train.copies is for task: classify")
    takers = [each.name for each in parts("loss").values() if each.is_negative_log_likelihood]
    require(
        config.loss["name"] in takers,
        "train.copies averages likelihoods: the loss must be "
        f"{' or '.join(takers)}, got {config.loss['name']}",
    )
    require(
        config.augment is not None or config.inputs is not None,
        "train.copies needs copies that differ: say augment or inputs",
    )


def _check_untrained(config: RunConfig) -> None:
    """Networks that can't be trained, and runs that train nothing."""
    name, model = config.model["name"], find_part("model", config.model["name"])
    if name.startswith(ONNX):
        require(
            config.train.epochs == 0,
            f"model {name} can't be trained, an ONNX file is for prediction: say train: "
            "{epochs: 0}",
        )
        sampled = config.predict.mc_dropout is not None or bool(config.evaluate.ensemble_sizes)
        require(
            not sampled,
            f"model {name}: predict.mc_dropout and evaluate.ensemble_sizes need dropout, which an "
            "ONNX file has not",
        )
        frequency = config.evaluate.frequency
        attacked = config.evaluate.attacks or (frequency is not None and frequency.attack)
        require(
            not attacked,
            f"model {name}: evaluate.attacks and evaluate.frequency.attack need gradients, which "
            "an ONNX file has not",
        )
    elif config.train.epochs == 0 and model.takes("weights"):
        trained = config.model.get("weights") or config.model.get("pretrained")
        require(
            bool(trained),
            f"train.epochs is 0, and model {name} is not trained: give its file, as weights: "
            "network.safetensors, or pretrained: true where the library has weights",
        )


_OF_CLASSIFIERS = (
    *("ensemble_sizes", "perturbations", "temperature", "normalised", "context", "own"),
    *("attacks", "frequency", "train", "alexnet", "also", "stored"),
)


def _check_segment(config: RunConfig) -> None:
    require(
        serves("data", config, "segment"),
        f"task: segment needs label maps; data may be {names_for('data', 'segment')}, "
        f"got {config.data['name']}",
    )
    require(
        serves("model", config, "segment"),
        f"task: segment needs a network with one output a pixel: {names_for('model', 'segment')} "
        f"such as torchvision:deeplabv3_mobilenet_v3_large, got {config.model['name']}",
    )
    require(
        config.augment is None or serves("augment", config, "segment"),
        f"task: segment augments with {names_for('augment', 'segment')}, got {config.augment}",
    )
    require(config.inputs is None, "inputs: mollification is for task: classify")
    for name in ("tta", "feature_clipping"):
        require(not getattr(config.predict, name), f"predict.{name} is for task: classify")
    require(
        config.train.best != "scaled_nll",
        "train.best: scaled_nll is for task: classify; label maps have accuracy and nll",
    )
    loss = find_part("loss", config.loss["name"])
    require(
        not loss.remembers_samples(config.loss),
        f"loss: {loss.name} keeps a history of whole images; choose another",
    )
    wanted = config.evaluate
    require(not wanted.corruption_names, "evaluate.corruptions is for task: classify")
    for name in _OF_CLASSIFIERS:
        require(not getattr(wanted, name), f"evaluate.{name} is for task: classify")
    require(
        len(wanted.all_bins) == 1,
        f"evaluate.bins: label maps are measured with one number of bins, got {wanted.bins}",
    )
    if config.class_weight != "equal":
        takers = [each.name for each in parts("loss").values() if each.takes("class_weight")]
        require(
            loss.name in takers,
            f"class_weight: {config.class_weight} needs one of the losses {', '.join(takers)}, "
            f"got {loss.name}",
        )


def _check_classify(config: RunConfig) -> None:
    require(
        not (serves("data", config, "detect") or serves("model", config, "detect")),
        f"data {config.data['name']} and model {config.model['name']}: for boxes say task: detect",
    )
    require(
        serves("data", config, "classify"),
        f"data {config.data['name']} has label maps: say task: segment",
    )
    require(
        serves("model", config, "classify"),
        f"model {config.model['name']} labels every pixel: say task: segment",
    )
    require(
        config.augment is None or serves("augment", config, "classify"),
        f"augment: {config.augment and config.augment['name']} is for task: segment",
    )
    if config.data["name"] in SOURCES:
        check_input_kind(config, is_text=config.data["name"] in TEXT_SOURCES)
    for name, spec in config.evaluate.also.items():
        require(
            "classify" in find_part("data", spec["name"]).tasks
            and spec["name"] not in TEXT_SOURCES,
            f"evaluate.also.{name}: data {spec['name']} has no images with one label each; choose "
            "another source",
        )
    require(config.predict.temporal is None, "predict.temporal is for task: segment")
    _check_prediction(config)
    require(config.class_weight == "equal", "class_weight is for task: segment")
    _check_targets(config)


def _check_prediction(config: RunConfig) -> None:
    """A prediction is made in one way."""
    averaged = config.predict.mc_dropout is not None or config.predict.ensemble is not None
    for name in ("tta", "feature_clipping"):
        require(
            not getattr(config.predict, name) or not (averaged or config.evaluate.ensemble_sizes),
            f"predict.{name} goes without predict.mc_dropout, predict.ensemble and "
            "evaluate.ensemble_sizes: choose one of them",
        )
    require(
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
    require(
        not found or not loss.takes_soft_targets,
        f"loss: ignore_index {ignored} marks class indices, but {found} makes soft labels. Leave "
        "one of them out",
    )
    takers = ", ".join(each.name for each in parts("loss").values() if each.takes_soft_targets)
    require(
        not found,
        f"loss: {loss.name} is defined for classes, but {found} makes soft labels. Leave that out, "
        f"or choose one of the losses {takers}",
    )


def _mixes(augment: Mapping[str, Any] | None) -> bool:
    """Of a user's own, which is not built for a look at the file, the first batch will tell."""
    if augment is not None and is_own("augment", augment["name"]):
        return False
    return batch_transform(2, build_augmentation(augment), None) is not None
