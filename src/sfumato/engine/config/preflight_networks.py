"""Whether a run's network can be built, takes its images, and can do what is asked of it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from sfumato.engine.config.components import build_network, build_part, without_download
from sfumato.engine.config.first_batch import check_logits
from sfumato.engine.config.library_networks import check_pretrained
from sfumato.engine.config.parts import is_own
from sfumato.engine.config.preflight_data import SeenData
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import content_hash, parse
from sfumato.engine.config.weight_files import NewHeadWarning
from sfumato.engine.runs.networks import load_network
from sfumato.engine.training.trained_parameters import parameter_groups
from sfumato.features import ClippedFeatures
from sfumato.predictions import MCDropout


def classifier_recipe(config: RunConfig) -> list[RunConfig]:
    """The classifier that a detector trains first."""
    if not isinstance(config.classifier, dict):
        return []
    return [parse(RunConfig, config.classifier, "classifier")]


def network_content(config: RunConfig) -> dict[str, Any]:
    """All that decides whether a network can be built, takes the images and can be sampled."""
    return {
        "data": config.data,
        "model": config.model,
        "classifier": config.classifier,
        "dropout": dropout_users(config),
        "features": config.predict.feature_clipping,
        "single": config.train.batch_size == 1,
        "untrained": config.train.epochs == 0,
        "train": config.train.model_dump(include={"freeze", "head_learning_rate"}),
        "runs": [each for each in config.predict.ensemble or () if isinstance(each, str)],
    }


def checked_network(config: RunConfig, seen: dict[str, SeenData]) -> nn.Module:
    """The network of a run, untrained, after it was given blank images.

    Args:
        config: the run.
        seen: its data, and those of the classifier of a detector, by the hash of their content.

    Raises:
        ValueError, TypeError, RuntimeError: it can't be built, does not take the images, or has no
            dropout or features where a section of the run needs them.
    """
    if config.task == "detect":
        detector = _build_detector(config, seen)
        parameter_groups(detector, config.train)
        return detector
    given = seen[content_hash(config.data)]
    for member in config.predict.ensemble or ():
        if isinstance(member, str):
            load_network(member)
    network = _build_trained(config, given)
    if config.train.epochs:  # else there may be nothing to train, as in an ONNX file
        parameter_groups(network, config.train)
    rows = 1 if config.train.batch_size == 1 else 2
    blank = given.blank(rows)
    with torch.no_grad():
        logits = _asked(network.train(), blank, config.model["name"])
        check_logits(logits, blank, given.num_classes, one_label=config.task == "classify")
        if users := dropout_users(config):
            _check_dropout(network, blank, users)
        if config.predict.feature_clipping:
            _check_features(network, blank)
    return network


def _asked(network: nn.Module, blank: torch.Tensor, name: str) -> Any:
    """What it says to blank images; one of ours that fails can only dislike their size."""
    try:
        return network(blank)
    except RuntimeError as error:
        if is_own("model", name) or blank.ndim != 4:
            raise
        height, width = blank.shape[2:]
        said = str(error).splitlines()[0]
        raise ValueError(
            f"it does not take images of {height} x {width} pixels ({said}): give it larger ones "
            "(size of the data), or choose another network"
        ) from error


def _build_trained(config: RunConfig, given: SeenData) -> nn.Module:
    """The network; without training its weights must be those of all its layers."""
    with warnings.catch_warnings():
        if config.train.epochs == 0:
            warnings.simplefilter("error", NewHeadWarning)
        try:
            return _build_classifier(config, given)
        except NewHeadWarning as warning:
            raise ValueError(
                f"{warning}, but train.epochs: 0 evaluates the network as it comes: give weights "
                f"for the data's {given.num_classes} classes, or train for some epochs"
            ) from None


def _build_classifier(config: RunConfig, given: SeenData) -> nn.Module:
    model = config.model
    check_pretrained(model["name"], model.get("pretrained"), model.get("weights_backbone"))
    return build_network(
        without_download(config.model),
        num_classes=given.num_classes,
        in_channels=given.in_channels,
        image_size=given.image_size,
        vocabulary=given.vocabulary,
    )


def _build_detector(config: RunConfig, seen: dict[str, SeenData]) -> nn.Module:
    if isinstance(config.classifier, dict):
        (recipe,) = classifier_recipe(config)
        trunk = _build_classifier(recipe, seen[content_hash(recipe.data)])
    else:
        trunk = load_network(str(config.classifier)).network
    detector: nn.Module = build_part(
        "model",
        config.model,
        task="detect",
        classifier=trunk,
        num_classes=seen[content_hash(config.data)].num_classes,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
    )
    return detector


def _check_features(network: nn.Module, images: torch.Tensor) -> None:
    try:
        features = ClippedFeatures(network).features(images)
    except ValueError as error:
        raise ValueError(f"predict.feature_clipping: {error}; leave the key out") from error
    if features.ndim != 2:
        raise ValueError(
            "predict.feature_clipping needs a network whose last linear layer takes (B, D), and "
            f"this one's takes {tuple(features.shape)}: leave the key out"
        )


def dropout_users(config: RunConfig) -> list[str]:
    """The keys that make no sense without dropout."""
    asked = {
        "predict.mc_dropout": config.predict.mc_dropout,
        "evaluate.ensemble_sizes": config.evaluate.ensemble_sizes,
        "train.passes": config.train.passes > 1,
    }
    return [key for key, wanted in asked.items() if wanted]


def _check_dropout(network: nn.Module, images: torch.Tensor, users: list[str]) -> None:
    try:
        MCDropout(network, samples=1)(images)
    except ValueError as error:
        raise ValueError(
            f"{' and '.join(users)} needs a network with dropout, and this has none: give the "
            "model a rate, as dropout: 0.1, or leave the key out"
        ) from error
