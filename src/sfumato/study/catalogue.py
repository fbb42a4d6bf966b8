"""What a study file can name, as `sfumato list` shows it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sfumato._spec import parameters
from sfumato.data import DETECTION_SOURCES, SOURCES
from sfumato.engine.augmentation import AUGMENTATIONS
from sfumato.engine.components import DETECTORS, FROM_CLASSIFIER, INPUTS, LOSSES, MODELS, SUPPLIED
from sfumato.engine.soft_labels import LABELS


def catalogue() -> dict[str, dict[str, str]]:
    """Kind of thing -> name -> its parameters with defaults, as text."""
    tables: dict[str, Mapping[str, Callable[..., Any]]] = {
        "data": {**SOURCES, **DETECTION_SOURCES},
        "models": {**MODELS, **DETECTORS},
        "losses": LOSSES,
        "augmentations": AUGMENTATIONS,
        "inputs": INPUTS,
        "labels": LABELS,
    }
    found = {
        kind: {name: _signature(build) for name, build in table.items()}
        for kind, table in tables.items()
    }
    found["models"]["torchvision:NAME"] = (
        "weights=None, smooth=False, dropout=0.0; any model of torchvision.models"
    )
    return found


def _signature(build: Callable[..., Any]) -> str:
    parts = []
    for name, parameter in parameters(build, supplied=(*SUPPLIED, *FROM_CLASSIFIER)).items():
        required = parameter.default is inspect.Parameter.empty
        parts.append(name if required else f"{name}={parameter.default!r}")
    return ", ".join(parts)
