"""What to do next about audited predictions, as commands that can be copied."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple


class Step(NamedTuple):
    """Something to do: why, and the command."""

    why: str
    command: str


def next_steps(model: Mapping[str, Any]) -> list[Step]:
    """The most useful step first, of those that were not taken yet."""
    steps, source = [], " ".join(shlex.quote(each) for each in model.get("source", ())) or "FILE"
    is_off = model["verdict"] not in ("no miscalibration found", "can't tell")
    has_classes = "nll" in model["metrics"]
    what = "predictions that were held out" if has_classes else "held-out 'probs' of all classes"
    if is_off and "scaled" not in model:
        steps.append(
            Step(
                f"Mend the confidences: fit a calibrator on {what}, and ship it.",
                "sfumato calibrate VALIDATION_FILE --out calibrator.json",
            )
        )
    if model.get("thresholds") is None:
        steps.append(
            Step(
                "Act on the confident ones: the threshold from which on at most 2 % are wrong.",
                f"sfumato audit {source} --target-risk 0.02",
            )
        )
    elif model["thresholds"]["accept"]["confidence"] is None:
        allowed = min(1.0, 2 * model["thresholds"]["accept"]["target_risk"])
        steps.append(
            Step(
                "No threshold keeps that error: allow more, or audit more labelled predictions.",
                f"sfumato audit {source} --target-risk {allowed:g}",
            )
        )
    if has_classes and "scaled" not in model and not is_off:
        steps.append(
            Step(
                "Hold it to new data: audit what the model says next month, with its labels.",
                "sfumato audit NEW_FILE --out audit-new",
            )
        )
    if not steps:
        steps.append(
            Step("Audit again when the data changes.", "sfumato audit NEW_FILE --out audit-new")
        )
    return steps
