"""How each loss of a study smooths the label, for its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from sfumato._core.files import write_json
from sfumato._core.import_path import searching
from sfumato._core.spec import DIGEST
from sfumato.analysis import smoothing_profile
from sfumato.engine.config.components import build_loss
from sfumato.engine.config.parts import find_part
from sfumato.study.config import PlannedRun

_STEPS = 60
_CLASSES = 10
_NOT_SHOWN = ("name", "ignore_index", DIGEST)


def write_profiles(runs: Sequence[PlannedRun], folder: Path) -> None:
    """Write `profiles.json`: one profile for each different loss, named by its methods."""
    losses: dict[str, list[str]] = {}
    with searching(runs[0].config.modules):
        for planned in runs:
            spec = planned.config.loss
            # The others compare the samples of a batch or keep a history: no profile of one.
            loss = find_part("loss", spec["name"])
            if loss.is_of_single_entries and not loss.remembers_samples(spec):
                names = losses.setdefault(json.dumps(spec, sort_keys=True), [])
                names += [] if planned.method in names else [planned.method]
        found = {_title(names): _profile(json.loads(spec)) for spec, names in losses.items()}
    write_json(folder / "profiles.json", found)


def _plain(values: Tensor) -> list[float]:
    """Without the rounding errors of a gradient that is zero, which would fill a chart."""
    return [round(value, 9) for value in values.tolist()]


def _title(methods: Sequence[str]) -> str:
    rest = len(methods) - 1
    return methods[0] + (f" and {rest} more" if rest else "")


def _profile(spec: dict[str, Any]) -> dict[str, Any]:
    loss = build_loss(spec, num_samples=1, num_classes=_CLASSES, epochs=1)
    found = smoothing_profile(loss, num_classes=_CLASSES, num_steps=_STEPS)
    settings = ", ".join(f"{key} {value}" for key, value in spec.items() if key not in _NOT_SHOWN)
    return {
        "loss": f"{spec['name']}: {settings}" if settings else spec["name"],
        "lead": found.lead.tolist(),
        "predicted": _plain(found.smoothing[:, -1]),
        "others": _plain(found.smoothing[:, :-1].mean(1)),
    }
