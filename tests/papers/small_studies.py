"""The studies of `studies/papers`, small enough to run: random sets of few images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfumato._core.import_path import searching
from sfumato.study.config import StudyConfig

HERE = Path(__file__).parent
FILES = sorted((HERE.parents[1] / "studies" / "papers").glob("*.yaml"))
# What a set is made of: the classes and the sizes that a network sees.
SETS: dict[str, dict[str, Any]] = {
    "cifar10": {"name": "random_sets:images", "classes": 10, "size": 32},
    "cifar100": {"name": "random_sets:images", "classes": 100, "size": 32},
    "tiny_imagenet": {"name": "random_sets:images", "classes": 200, "size": 64},
    "newsgroups": {"name": "random_sets:texts", "classes": 20, "length": 60},
    "camvid": {"name": "random_sets:maps", "classes": 11, "height": 32, "width": 48},
    "voc_segmentation": {"name": "random_sets:maps", "classes": 21, "height": 64, "width": 64},
    "folder": {"name": "random_sets:images", "classes": 1000, "size": 64},
    "cub": {"name": "random_sets:images", "classes": 200, "size": 64},
    "annotated": {"name": "random_sets:images", "classes": 1000, "size": 64},
    "openimages": {"name": "random_sets:images", "classes": 480, "size": 64},
    "coco": {"name": "scene_objects", "size": 48, "train": 2, "validation": 1, "test": 1},
}


def small(study: StudyConfig) -> StudyConfig:
    """Narrow networks of the same depth, one batch, two masks, two corrupted images."""
    changed = {name: _shrunk(changes) for name, changes in study.methods.items()}
    recipe = _shrunk(study.recipe)
    if recipe.get("task") != "detect":
        recipe["evaluate"] = {**recipe.get("evaluate", {}), "resamples": 0, "corrupted_images": 2}
    seeds = [0, 1] if "seeds" in str(study.methods) else [0]
    with searching(HERE):
        return StudyConfig(name=study.name, recipe=recipe, methods=changed, seeds=seeds)


def _shrunk(changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(changes)
    if "data" in found:
        found["data"] = SETS[found["data"]["name"]]
    if "classifier" in found:
        found["classifier"] = _shrunk(found["classifier"])
    if isinstance(found.get("model"), dict):
        found["model"] = _narrow(found["model"])
    if "train" in found:
        found["train"] = _short(found["train"])
    if found.get("predict", {}).get("mc_dropout"):
        found["predict"] = {**found["predict"], "mc_dropout": 2}
    if "evaluate" in found:
        found["evaluate"] = _quick(found["evaluate"])
    if "augment" in found and isinstance(found["augment"], dict):
        found["augment"] = {
            key: {"height": 16, "width": 32}.get(key, value)
            for key, value in found["augment"].items()
        }
    return found


def _narrow(model: Mapping[str, Any]) -> dict[str, Any]:
    fetched = ("pretrained", "weights_backbone", "image_size")
    kept = {key: value for key, value in model.items() if key not in fetched}
    if model["name"] == "faster_rcnn":
        return {"name": "faster_rcnn", "channels": 8, "hidden": 8, "proposals": 8}
    if "image_size" in model:
        return {**kept, "image_size": 32}
    widths = {"resnet": 16, "vgg": 4, "unet": 2}
    return {**kept, "width": widths[model["name"]]} if model["name"] in widths else kept


def _short(train: Mapping[str, Any]) -> dict[str, Any]:
    said = {"epochs": 1, "batch_size": 4, "milestones": [1], "warmup_epochs": 0.5}
    return {key: said.get(key, value) for key, value in train.items()}


def _quick(evaluate: Mapping[str, Any]) -> dict[str, Any]:
    said = {
        "corruptions": ["fog"],
        "severities": [1],
        "perturbations": ["translate"],
        "ensemble_sizes": [1, 2],
        "also": {key: SETS[data["name"]] for key, data in evaluate.get("also", {}).items()},
    }
    return {key: said.get(key, value) for key, value in evaluate.items()}
