"""Draw a study, ask `check` about it, and run what it accepts."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, cast

from pydantic import BaseModel

from sfumato.engine import ConfigError, run
from sfumato.engine.config.combined import PENALTIES
from sfumato.engine.config.own_parts import Named
from sfumato.engine.config.parts import parts
from sfumato.engine.config.preflight import check_runs
from sfumato.engine.config.run_config import EvaluateConfig, ObjectsConfig, PredictConfig
from sfumato.engine.config.sections import TrainConfig, parse
from sfumato.study.config import StudyConfig, plan
from tests.drawn.values import draw_section, draw_value

# The least that each task runs on.
_BASES: dict[str, dict[str, Any]] = {
    "classify": {
        "data": {"name": "scenes", "size": 16, "train": 12, "validation": 6, "test": 8},
        "model": {"name": "resnet", "depth": 8, "width": 2},
    },
    "segment": {
        "task": "segment",
        "data": {
            "name": "scene_streams",
            "size": 16,
            "train": 6,
            "validation": 3,
            "test": 2,
            "test_frames": 3,
        },
        "model": {"name": "unet", "width": 2, "depth": 2},
    },
    "detect": {
        "task": "detect",
        "data": {"name": "scene_objects", "size": 48, "train": 4, "validation": 2, "test": 2},
        "model": {"name": "faster_rcnn", "channels": 8, "proposals": 8, "hidden": 8},
        "classifier": {
            "data": {"name": "scenes", "size": 16, "train": 12, "validation": 6, "test": 8},
            "model": {"name": "resnet", "depth": 8, "width": 2},
            "train": {"epochs": 1, "batch_size": 6},
        },
    },
}
_TRAIN = {"epochs": 1, "batch_size": 4, "learning_rate": 0.01}
# What would take long or depends on the machine: these values, or, where there are none, never.
_KNOWN: dict[str, dict[str, tuple[Any, ...]]] = {
    "train": {
        "epochs": (0, 1, 2),
        "batch_size": (1, 3, 5),
        "learning_rate": (0.01, 0.001),
        "milestones": ([], [1]),
        "precision": ("32-true", "64-true", "bf16-mixed"),
        "accelerator": ("cpu",),
        "devices": (1,),
        "strategy": (),
        "num_nodes": (),
        "freeze": ([], ["stem"], ["nothing"], ["*"]),
        "head_learning_rate": (None, 0.01),
        "clip_norm": (None, 1.0),
        "warmup_epochs": (0.0, 0.5, 2.0),
        "swa": (None, 2),
        "weight_decay": (0.0, 0.001),
        "ema": (None, 0.9),
        "sam": (None, 0.05),
    },
    "predict": {"mc_dropout": (None, 1, 2), "ensemble": (None, "seeds", [0])},
    "evaluate": {
        "resamples": (0, 5),
        "corruptions": ([], ["fog"], ["pixelate", "snow"], ["rain"]),
        "severities": ([1], [5, 2], [7]),
        "corrupted_images": (None, 3, 100),
        "ensemble_sizes": ([], [1, 2], [0]),
        "perturbations": ([], ["tilt"], ["translate"]),
        "bins": (15, [15, 10], [3]),
        "attacks": ({}, {"a": {"name": "fgsm", "epsilon": 0.01}}),
        "own": (),
        "also": (),
        "stored": (),
        "alexnet": (None, "cifar10"),
    },
}
_SECTIONS: dict[str, type[BaseModel]] = {
    "train": TrainConfig,
    "predict": PredictConfig,
    "evaluate": EvaluateConfig,
    "objects": ObjectsConfig,
}
_NETWORKS = {
    "resnet": {"depth": 8, "width": 2},
    "vgg": {"width": 2},
    "wide_resnet": {"depth": 10, "widen": 1},
    "resnext": {"depth": 11, "cardinality": 2, "group_width": 2},
    "densenet": {"depth": 10, "growth": 2},
    "allconv": {"width": 4},
    "unet": {"width": 2, "depth": 2},
    "gpcn": {},
    "text_transformer": {"width": 8, "depth": 1, "heads": 2},
    "torchvision:squeezenet1_1": {},
    "torchvision:shufflenet_v2_x0_5": {},
}
# Options that make a network large, or name files; `data` has its own.
_LEFT_OUT = ("weights", "weights_digest", "pretrained", "image_size", "depth", "width", "widen")
_LARGE = ("cardinality", "group_width", "growth", "heads", "ignore_index", "embedding_width")
# Python's own words for what went wrong: a message with one of them names no remedy.
_RAW = ("RuntimeError", "KeyError", "IndexError", "AttributeError", "ZeroDivisionError")


class Verdict(NamedTuple):
    """What became of a study: accepted and run, or refused, and why."""

    outcome: Literal["ran", "refused"]
    reason: str


def draw_study(rng: Random) -> dict[str, Any]:
    """The content of a study file, as YAML would give it: tiny data, one method, 1 to 4 changes.

    A base that runs in a second is changed in some sections: another part with drawn options, or
    keys of `train`, `predict`, `evaluate`, `objects`, `standardise`. Options are drawn from
    signatures and models, so that what is added to the library is drawn too; about one number in
    ten is out of range. Some studies are possible, many are not; the same `rng` gives the same.

    Args:
        rng: draws everything.
    """
    task = rng.choices(list(_BASES), weights=[8, 2, 1])[0]
    recipe = copy.deepcopy(_BASES[task])
    recipe |= {"train": dict(_TRAIN), "evaluate": {"resamples": 0}}
    for _ in range(rng.randint(1, 4)):
        _change(rng, recipe)
    return {"name": "drawn", "recipe": recipe, "methods": {"method": {}}, "seeds": [0]}


def judge(content: dict[str, Any], folder: Path) -> Verdict:
    """Check a study and run it where it is accepted.

    Args:
        content: of the study file.
        folder: for its runs.

    Raises:
        AssertionError: it was refused without a reason in words.
        Exception: it was accepted and failed, as it failed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            planned = plan(parse(StudyConfig, content, "drawn"))
            check_runs([each.config for each in planned])
        except ConfigError as error:
            message = str(error)
            raw = [word for word in _RAW if f"{word}:" in message]
            assert not raw, f"refused in Python's words: {message}"
            assert len(message) > 30, f"refused without a reason: {message}"
            return Verdict("refused", message)
        for each in planned:
            assert run(each.config, folder, show=False).finished
        return Verdict("ran", "")


def _change(rng: Random, recipe: dict[str, Any]) -> None:
    kinds = ("loss", "model", "augment", "inputs", "labels", "sections")
    what = rng.choices(kinds, weights=[2, 1, 1, 1, 1, 4])[0]
    if what == "sections":
        _change_section(rng, recipe)
    elif what == "model":
        recipe["model"] = _network(rng)
    else:
        recipe[what] = _part(rng, cast(Named, what))


def _change_section(rng: Random, recipe: dict[str, Any]) -> None:
    name = rng.choice(("train", "predict", "evaluate", "objects", "standardise", "class_weight"))
    if name == "class_weight":
        recipe[name] = rng.choice(("equal", "median_frequency"))
    elif name == "standardise":
        channels = rng.choice((3, 3, 1))
        recipe[name] = {"mean": [0.5] * channels, "std": [0.2] * channels}
    else:
        drawn = draw_section(rng, _SECTIONS[name], _KNOWN.get(name))
        recipe[name] = {**recipe.get(name, {}), **drawn}


def _network(rng: Random) -> dict[str, Any]:
    name = rng.choice(list(_NETWORKS))
    family = "torchvision:NAME" if ":" in name else name
    return {"name": name, **_NETWORKS[name], **_options(rng, "model", family)}


def _part(rng: Random, kind: Named) -> dict[str, Any]:
    name = rng.choice(list(parts(kind)))
    if (kind, name) == ("loss", "combined"):
        penalties = {rng.choice(list(PENALTIES)): {"weight": rng.choice((0.1, 1.0, -1.0))}}
        return {"name": name, "fidelity": _part(rng, kind), "penalties": penalties}
    return {"name": name, **_options(rng, kind, name)}


def _options(rng: Random, kind: Named, name: str) -> dict[str, Any]:
    found = parts(kind)[name].options
    free = [key for key in found if key not in (*_LEFT_OUT, *_LARGE)]
    chosen = rng.sample(free, rng.randint(0, min(2, len(free))))
    return {key: draw_value(rng, found[key].annotation, found[key].default) for key in chosen}
