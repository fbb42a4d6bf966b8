"""Rules between the sections of a configuration: which components go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sfumato.data.dataset import UNLABELLED
from sfumato.data.load import SOURCES, TEXT_SOURCES
from sfumato.engine.config.build import batch_transform, build_augmentation
from sfumato.engine.config.components import (
    components,
    find_component,
    is_own,
    resolve_component,
)
from sfumato.engine.config.kinds import Kind, Task
from sfumato.engine.config.networks import ONNX

if TYPE_CHECKING:
    from sfumato.engine.config.run_config import RunConfig


# What a task needs of the components that not every task can use.
_NEEDS: dict[Task, dict[Kind, str]] = {
    "classify": {
        "data": "images or texts with one label each",
        "model": "a network with one output an image or text",
        "augment": "an augmentation of whole images",
    },
    "segment": {
        "data": "segmentation masks",
        "model": "a network with one output a pixel",
        "augment": "an augmentation that moves segmentation masks",
    },
    "detect": {"data": "boxes", "model": "a detector", "augment": "flips alone"},
}


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def check_input_kind(config: RunConfig, *, is_text: bool) -> None:
    """Raise unless every section can use inputs of this kind, which only the data may tell."""
    model, data = find_component("model", config.model["name"]), config.data["name"]
    readers = [n for n, part in components("model").items() if part.takes("vocabulary_size")]
    reads_texts = model.takes("vocabulary_size")
    require(
        is_text or not reads_texts,
        f"model {model.name} reads texts, and data {data} has images: choose another network",
    )
    require(
        not is_text or reads_texts or not model.takes("in_channels"),
        f"model {model.name} takes images, and data {data} has texts: choose "
        f"{' or '.join(readers)}, or your own network of tokens",
    )
    for section, (used, does) in _pixel_sections(config).items():
        require(
            not (is_text and used), f"{section} {does}, and data {data} has texts: leave it out"
        )


def _pixel_sections(config: RunConfig) -> dict[str, tuple[Any, str]]:
    """Say of each section whether it is used, and what it does to pixels."""
    wanted = config.evaluate
    return {
        "inputs": (config.inputs, "mollifies pixels"),
        "augment": (config.augment, "changes pixels"),
        "standardise": (config.standardise, "standardises pixels"),
        "labels": (config.labels, "measures objects in images"),
        "objects": (config.objects, "paints over objects in images"),
        "evaluate.corruptions": (wanted.corruption_names, "corrupts pixels"),
        "evaluate.perturbations": (wanted.perturbation_names, "perturbs pixels"),
        "evaluate.attacks": (wanted.attacks, "attacks pixels"),
        "evaluate.frequency": (wanted.frequency, "changes pixels"),
        "evaluate.also": (wanted.also, "has words of its own, or pixels"),
        "evaluate.ood": (wanted.ood, "has images"),
        "evaluate.stored": (wanted.stored, "reads images"),
        "evaluate.context": (wanted.context, "paints over objects in images"),
    }


def _check_detect(config: RunConfig) -> None:
    for section in ("labels", "objects", "standardise"):
        require(
            getattr(config, section) is None,
            f"{section} is for task: classify; write the classifier's under classifier:",
        )
    fields, train = type(config).model_fields, config.train
    defaults = {
        "loss": resolve_component("loss", fields["loss"].default).config,
        "predict": fields["predict"].default,
        "evaluate": fields["evaluate"].default,
    }
    for section, default in defaults.items():
        require(
            getattr(config, section) == default,
            f"{section}: a detector has its own; leave the section out, or write the "
            "classifier's under classifier:",
        )
    augment = config.augment or {}
    require(
        not (augment.get("crop") or augment.get("rotation")),
        "task: detect augments with {name: basic, crop: 0} (flips) only",
    )
    require(train.passes == 1, "train.passes is for task: classify")
    require(
        train.best is None,
        "train.best: a detector is not validated after each epoch; train.ema and train.swa need "
        "no validation",
    )
    require(
        train.head_learning_rate is None,
        "train.head_learning_rate: a detector has several heads; leave it out",
    )
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


def check_task(config: RunConfig) -> None:
    """Raise unless every section is one that the task of the run can use."""
    for kind, needed in _NEEDS[config.task].items():
        spec = getattr(config, kind)
        tasks = (config.task,) if spec is None else find_component(kind, spec["name"]).tasks
        require(
            config.task in tasks,
            f"task: {config.task} needs {needed}; {kind} may be "
            f"{' or '.join(components(kind, config.task))}, got {spec and spec['name']}. For that "
            f"say task: {' or '.join(tasks)}",
        )
    checks = {"classify": _check_classify, "segment": _check_segment, "detect": _check_detect}
    checks[config.task](config)
    uses: list[tuple[str, Any, Task]] = [
        ("inputs: mollification", config.inputs, "classify"),
        ("class_weight", config.class_weight != "equal", "segment"),
        ("classifier", config.classifier, "detect"),
        ("train.copies", config.train.copies, "classify"),
        ("predict.temporal", config.predict.temporal, "segment"),
        *((f"predict.{name}", getattr(config.predict, name), "classify") for name in _AVERAGES),
        *((f"evaluate.{name}", getattr(config.evaluate, name), "classify") for name in _OF_CLASSES),
    ]
    for what, used, task in uses:
        require(not used or config.task == task, f"{what} is for task: {task}")
    _check_untrained(config)
    _check_members_and_copies(config)


def _check_members_and_copies(config: RunConfig) -> None:
    members, copies = config.predict.ensemble, config.train.copies
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
    # Copies are averaged as likelihoods, and must differ.
    takers = [each.name for each in components("loss").values() if each.is_negative_log_likelihood]
    require(
        copies is None or config.loss["name"] in takers,
        "train.copies averages likelihoods: the loss must be "
        f"{' or '.join(takers)}, got {config.loss['name']}",
    )
    require(
        copies is None or config.augment is not None or config.inputs is not None,
        "train.copies needs copies that differ: say augment or inputs",
    )


def _check_untrained(config: RunConfig) -> None:
    """Networks that can't be trained, and runs that train nothing."""
    name, model = config.model["name"], find_component("model", config.model["name"])
    wanted, frequency = config.evaluate, config.evaluate.frequency
    if name.startswith(ONNX):
        require(
            config.train.epochs == 0,
            f"model {name} can't be trained, an ONNX file is for prediction: say train: "
            "{epochs: 0}",
        )
        require(
            config.predict.mc_dropout is None and not wanted.ensemble_sizes,
            f"model {name}: predict.mc_dropout and evaluate.ensemble_sizes need dropout, which an "
            "ONNX file has not",
        )
        require(
            not wanted.attacks and (frequency is None or frequency.attack is None),
            f"model {name}: evaluate.attacks and evaluate.frequency.attack need gradients, which "
            "an ONNX file has not",
        )
    elif config.train.epochs == 0 and model.takes("weights"):
        require(
            bool(config.model.get("weights") or config.model.get("pretrained")),
            f"train.epochs is 0, and model {name} is not trained: give its file, as weights: "
            "network.safetensors, or pretrained: NAME where the library has weights",
        )


# Keys of `predict` and `evaluate` that classifiers alone can use.
_AVERAGES = ("ensemble", "tta", "feature_clipping")
_OF_CLASSES = (
    *("ensemble_sizes", "perturbations", "temperature", "normalised", "context", "own"),
    *("corruptions", "attacks", "frequency", "train", "alexnet", "also", "stored", "ood"),
)


def _check_segment(config: RunConfig) -> None:
    require(
        config.train.best != "scaled_nll",
        "train.best: scaled_nll is for task: classify; segmentation masks have accuracy and nll",
    )
    loss = find_component("loss", config.loss["name"])
    require(
        not loss.remembers_samples(config.loss),
        f"loss: {loss.name} keeps a history of whole images; choose another",
    )
    require(
        len(config.evaluate.all_bins) == 1,
        "evaluate.bins: segmentation masks are measured with one number of bins, got "
        f"{config.evaluate.bins}",
    )
    if config.class_weight != "equal":
        takers = [each.name for each in components("loss").values() if each.takes("class_weight")]
        require(
            loss.name in takers,
            f"class_weight: {config.class_weight} needs one of the losses {', '.join(takers)}, "
            f"got {loss.name}",
        )


def _check_classify(config: RunConfig) -> None:
    if config.data["name"] in SOURCES:
        check_input_kind(config, is_text=config.data["name"] in TEXT_SOURCES)
    for key in ("also", "ood"):
        for name, spec in getattr(config.evaluate, key).items():
            require(
                "classify" in find_component("data", spec["name"]).tasks
                and spec["name"] not in TEXT_SOURCES,
                f"evaluate.{key}.{name}: data {spec['name']} has no images with one label each; "
                "choose another source",
            )
    _check_prediction(config)
    _check_targets(config)


def _check_prediction(config: RunConfig) -> None:
    """A prediction is made in one way."""
    predict, wanted = config.predict, config.evaluate
    averaged = predict.mc_dropout is not None or predict.ensemble is not None
    for name in ("tta", "feature_clipping"):
        require(
            not getattr(predict, name) or not (averaged or wanted.ensemble_sizes),
            f"predict.{name} goes without predict.mc_dropout, predict.ensemble and "
            "evaluate.ensemble_sizes: choose one of them",
        )
    require(
        predict.tta is None or config.data["name"] not in TEXT_SOURCES,
        "predict.tta flips, shifts and blurs images; texts have none",
    )
    require(
        predict.tta is None or not wanted.ood,
        "evaluate.ood scores the passes of a network, which predict.tta makes of changed copies: "
        "choose one of them",
    )
    is_onnx = config.model["name"].startswith(ONNX)
    require(
        not (is_onnx and wanted.ood) or wanted.ood_features is False,
        "evaluate.ood measures distances of features, which an ONNX file does not give: say "
        "ood_features: false",
    )


def _check_targets(config: RunConfig) -> None:
    """Known from the configuration, so it needs not wait for the first batch."""
    loss = find_component("loss", config.loss["name"])
    ignored = config.loss.get("ignore_index", UNLABELLED)
    if loss.takes_soft_targets and ignored == UNLABELLED:
        return
    softens = {
        "inputs": config.inputs is not None and not is_own("inputs", config.inputs["name"]),
        # Of a user's own, which is not built for a look at the file, the first batch will tell.
        "augment": not is_own("augment", config.augment and config.augment["name"])
        and batch_transform(2, build_augmentation(config.augment), None) is not None,
        "labels": config.labels is not None,
        "objects.context": config.objects is not None and config.objects.context > 0,
    }
    found = " and ".join(section for section, does in softens.items() if does)
    require(
        not found or not loss.takes_soft_targets,
        f"loss: ignore_index {ignored} marks class indices, but {found} makes soft labels. Leave "
        "one of them out",
    )
    takers = ", ".join(each.name for each in components("loss").values() if each.takes_soft_targets)
    require(
        not found,
        f"loss: {loss.name} is defined for classes, but {found} makes soft labels. Leave that out, "
        f"or choose one of the losses {takers}",
    )
