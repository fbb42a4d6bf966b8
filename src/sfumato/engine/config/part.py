"""One thing that a study can name: its options, and what the run supplies to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sfumato._core.spec import parameters
from sfumato.engine.config.own_parts import OWN_SUPPLIED, Named
from sfumato.engine.config.part_kinds import Task

# Set from the data or by the run, never by the user.
SUPPLIED: Mapping[Named, tuple[str, ...]] = {
    "model": (
        *("num_classes", "in_channels", "image_size", "data_size", "classifier", "mean", "std"),
        *("vocabulary_size", "embeddings"),
    ),
    "loss": ("num_samples", "num_classes", "epochs", "class_weight", "reduction"),
    "inputs": ("num_classes", "mean", "std"),
    "predict": ("model", "models", "max_batch", "cut_threshold", "threshold"),
    "corruptions": ("images", "name", "severity", "constants", "generator"),
    "perturbations": ("images", "name", "generator"),
}
_ANY = ("NAME", "FILE")


@dataclass(frozen=True)
class Part:
    """One thing that a study can name.

    Attributes:
        kind: the key of a study file under which it is named.
        name: its name there; `torchvision:NAME` is a family, with anything in place of NAME.
        build: makes it; a family's takes NAME first.
        tasks: the tasks that can use it.
        is_own: whether it is a user's own, named by its import path.
        source_digest: of its code, where it is a user's own.
    """

    kind: Named
    name: str
    build: Callable[..., Any]
    tasks: tuple[Task, ...] = ("classify", "segment")
    is_own: bool = False
    source_digest: str | None = None

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """What a user may set."""
        found = parameters(self.build, supplied=self.supplied)
        return dict(list(found.items())[1:]) if self.is_family else found

    @property
    def supplied(self) -> tuple[str, ...]:
        """What the run supplies: `image_size` too, unless a network asks for `data_size` besides.

        Then it is the user's, to resize the images to.
        """
        if self.is_own:
            return OWN_SUPPLIED.get(self.kind, ())
        names = SUPPLIED.get(self.kind, ())
        return tuple(each for each in names if each != "image_size" or not self.takes("data_size"))

    @property
    def is_family(self) -> bool:
        return self.name.endswith(_ANY)

    @property
    def prefix(self) -> str:
        """How the names of a family begin."""
        return self.name[: self.name.index(":") + 1]

    def takes(self, parameter: str) -> bool:
        """Whether `build` has a parameter of this name, as a loss with a history `num_samples`."""
        return parameter in inspect.signature(self.build).parameters

    def remembers_samples(self, options: Mapping[str, Any]) -> bool:
        """Of a loss: whether it keeps a history of each sample, with these options."""
        rule = getattr(self.build, "remembers_samples", None)
        if rule is not None:
            return bool(rule(options))
        return self.takes("num_samples") and not self.is_composite

    @property
    def is_composite(self) -> bool:
        """Of a loss: whether it is put together from others, and so no class of its own."""
        return not inspect.isclass(self.build)

    @property
    def is_of_single_entries(self) -> bool:
        """Of a loss: whether each entry's value depends on that entry alone."""
        return getattr(self.build, "is_of_single_entries", False)

    @property
    def is_negative_log_likelihood(self) -> bool:
        """Of a loss: whether exp(-loss) of an entry is the likelihood of its label."""
        return getattr(self.build, "is_negative_log_likelihood", False)

    @property
    def takes_soft_targets(self) -> bool:
        """Of a loss: whether a target may be a distribution over the classes."""
        return getattr(self.build, "takes_soft_targets", True)
