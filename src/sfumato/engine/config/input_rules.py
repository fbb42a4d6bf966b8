"""Which parts of a configuration go together with which kind of input: images, or texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato.engine.config.part import Part
from sfumato.engine.config.parts import find_part, parts
from sfumato.engine.config.rules import require

if TYPE_CHECKING:
    from sfumato.engine.config.run_config import RunConfig


def check_input_kind(config: RunConfig, *, is_text: bool) -> None:
    """Raise unless every section can use inputs of this kind.

    Known from the configuration for the sources of the table, and for any other source once its
    data is loaded.
    """
    model = find_part("model", config.model["name"])
    if not is_text:
        require(
            not _reads_texts(model),
            f"model {model.name} reads texts, and data {config.data['name']} has images: choose "
            "another network",
        )
        return
    networks = " or ".join(name for name, part in parts("model").items() if _reads_texts(part))
    require(
        _reads_texts(model) or not model.takes("in_channels"),
        f"model {model.name} takes images, and data {config.data['name']} has texts: choose "
        f"{networks}, or your own network of tokens",
    )
    for section, does in _pixel_sections(config).items():
        require(
            does is None,
            f"{section} {does}, and data {config.data['name']} has texts: leave it out",
        )


def _reads_texts(model: Part) -> bool:
    return model.takes("vocabulary_size")


def _pixel_sections(config: RunConfig) -> dict[str, str | None]:
    """What each section does to pixels, or None where it is not used."""
    wanted = config.evaluate
    uses = {
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
        "evaluate.stored": (wanted.stored, "reads images"),
        "evaluate.context": (wanted.context, "paints over objects in images"),
    }
    return {section: does if used else None for section, (used, does) in uses.items()}
