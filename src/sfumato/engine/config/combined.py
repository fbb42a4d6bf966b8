"""The loss `combined` of a study: any fidelity and any penalties, each with its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from sfumato import labels
from sfumato._core.spec import Spec, resolve

# What may be added to a fidelity; each is called with logits and target.
PENALTIES: Mapping[str, Callable[..., Tensor]] = {
    "acls": labels.acls_penalty,
    "discrimination": labels.discrimination_penalty,
    "entropy": labels.entropy_penalty,
    "exclusion": labels.exclusion_penalty,
    "margin": labels.margin_penalty,
    "maxsup": labels.maxsup_penalty,
    "mdca": labels.mdca_penalty,
    "mmce": labels.mmce_penalty,
}
_SUPPLIED = ("logits", "target", "correctness", "reduction", "ignore_index")


def combined(
    *,
    num_samples: int,
    num_classes: int,
    epochs: int,
    class_weight: Tensor | None = None,
    fidelity: dict[str, Any] | str = "cross_entropy",
    penalties: dict[str, dict[str, Any]] | None = None,
) -> labels.CombinedLoss:
    """`CombinedLoss` of what a study names.

    Args:
        num_samples, num_classes, epochs, class_weight: for the fidelity, where it asks for them.
        fidelity: a loss, as under `loss`.
        penalties: by name, each with `weight` (1 where it is left out) and its own options.

    Raises:
        ValueError: an unknown name or option, or a fidelity that remembers each sample.

    Example:
        >>> loss = combined(num_samples=9, num_classes=3, epochs=1, penalties={"mdca": {}})
        >>> sorted(loss.penalties)
        ['mdca']
    """
    from sfumato.engine.config.components import build_loss

    term = build_loss(
        fidelity,
        num_samples=num_samples,
        num_classes=num_classes,
        epochs=epochs,
        class_weight=class_weight,
    )
    if "index" in inspect.signature(term.forward).parameters:
        raise ValueError(
            f"fidelity of loss 'combined' can't be {fidelity!r}, which remembers each sample; "
            "name it as the loss itself"
        )
    return labels.CombinedLoss(
        term, {name: _penalty(name, options) for name, options in (penalties or {}).items()}
    )


def _penalty(name: str, options: Mapping[str, Any]) -> tuple[float, Callable[..., Tensor]]:
    given = dict(options)
    weight = given.pop("weight", 1.0)
    spec: Spec = {"name": name, **given}
    found = resolve(spec, PENALTIES, "penalty", supplied=_SUPPLIED)
    return weight, partial(found.build, **found.params)
