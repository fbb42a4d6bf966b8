"""The table of components: everything that a study can name, and a user's own by import path.

docs/extending.md has the protocols of a user's own with an example of each. Such a component is a
callable that gets its parameters and what it asks for of the run, and gives the thing itself; or
the function itself, told by the names of its parameters.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from sfumato import corruptions, labels
from sfumato._core.import_path import import_named, is_import_path
from sfumato._core.spec import DIGEST, Resolved, Spec, parameters, resolve
from sfumato.augment import ObjectnessLabels
from sfumato.augment.recipes import AUGMENTATIONS
from sfumato.data import DETECTION_SOURCES, SOURCES
from sfumato.data.load import SEGMENTATION_SOURCES
from sfumato.data.sources.map_style import as_splits
from sfumato.engine.config.kinds import Named, Task
from sfumato.engine.config.networks import (
    onnx_network,
    timm_network,
    torchvision_network,
    with_weights,
)
from sfumato.features import ClippedFeatures
from sfumato.inputs import AveragedCopies, Mollify
from sfumato.models import (
    allconv,
    densenet,
    faster_rcnn,
    gpcn,
    resnet,
    resnext,
    text_transformer,
    unet,
    vgg,
    wide_resnet,
)
from sfumato.models.libraries import is_segmentation_model
from sfumato.predictions import DeepEnsemble, MCDropout, TemporalSmoother

# Set from the data or by the run, never by the user.
SUPPLIED: Mapping[Named, tuple[str, ...]] = {
    "model": (
        *("num_classes", "in_channels", "image_size", "data_size", "classifier", "mean", "std"),
        *("vocabulary_size", "embeddings"),
    ),
    "loss": ("num_samples", "num_classes", "epochs", "class_weight", "reduction", "class_dim"),
    "inputs": ("num_classes", "mean", "std"),
    "predict": ("model", "models", "max_batch", "cut_threshold", "threshold"),
    "corruptions": ("images", "name", "severity", "constants", "generator"),
    "perturbations": ("images", "name", "generator"),
}

_IMAGES_AND_PIXELS: tuple[Task, ...] = ("classify", "segment")
OWN_TASKS: Mapping[Named, tuple[Task, ...]] = {
    **dict.fromkeys(("data", "model", "loss", "augment"), _IMAGES_AND_PIXELS),
    **dict.fromkeys(("inputs", "labels", "own"), ("classify",)),
}

# Handed to a part that asks for it; never set in a study.
OWN_SUPPLIED: Mapping[Named, tuple[str, ...]] = {
    "model": ("num_classes", "in_channels", "image_size", "vocabulary_size", "embeddings"),
    "loss": ("logits", "target", "index", "num_samples", "num_classes", "epochs", "class_weight"),
    "inputs": ("images", "target", "num_classes"),
    "labels": ("sample", "num_classes"),
    "own": ("logits", "probs", "target", "index", "data", "network"),
}

# A callable with these parameters is the part itself and not what makes it.
_OF_A_BATCH: Mapping[Named, tuple[str, ...]] = {
    "loss": ("logits", "target"),
    "inputs": ("images", "target"),
    "labels": ("sample",),
}

_SPLITTING = parameters(as_splits, supplied=("found",))
_ANY = ("NAME", "FILE")


@dataclass(frozen=True)
class Component:
    """One thing that a study can name."""

    kind: Named
    # `torchvision:NAME` is a family: anything may stand for NAME, which its `build` takes first.
    name: str
    build: Callable[..., Any]
    tasks: tuple[Task, ...] = ("classify", "segment")
    is_own: bool = False
    source_digest: str | None = None

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        found = parameters(self.build, supplied=self.supplied)
        return dict(list(found.items())[1:]) if self.is_family else found

    @property
    def supplied(self) -> tuple[str, ...]:
        """Parameters from the run: `image_size` is the user's if a network asks for `data_size`."""
        if self.is_own:
            return OWN_SUPPLIED.get(self.kind, ())
        names = SUPPLIED.get(self.kind, ())
        return tuple(each for each in names if each != "image_size" or not self.takes("data_size"))

    @property
    def is_family(self) -> bool:
        return self.name.endswith(_ANY)

    @property
    def prefix(self) -> str:
        return self.name[: self.name.index(":") + 1]

    def takes(self, parameter: str) -> bool:
        """Tell whether `build` has this parameter, as a loss with a history `num_samples`."""
        return parameter in inspect.signature(self.build).parameters

    def remembers_samples(self, options: Mapping[str, Any]) -> bool:
        """True for a loss that keeps a history of each sample, with these options."""
        rule = getattr(self.build, "remembers_samples", None)
        if rule is not None:
            return bool(rule(options))
        return self.takes("num_samples") and not self.is_composite

    @property
    def is_composite(self) -> bool:
        """True for a loss that is put together from others, and so no class of its own."""
        return not inspect.isclass(self.build)

    @property
    def is_of_single_entries(self) -> bool:
        """True for a loss in which each entry's value depends on that entry alone."""
        return getattr(self.build, "is_of_single_entries", False)

    @property
    def is_negative_log_likelihood(self) -> bool:
        """True for a loss whose exp(-loss) of an entry is the likelihood of its label."""
        return getattr(self.build, "is_negative_log_likelihood", False)

    @property
    def takes_soft_targets(self) -> bool:
        """True for a loss whose target may be a distribution over the classes."""
        return getattr(self.build, "takes_soft_targets", True)


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

_SUPPLIED = ("logits", "target", "correctness", "reduction", "class_dim", "ignore_index")


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
    from sfumato.engine.config.build import build_loss

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
    built = {}
    for name, options in (penalties or {}).items():
        spec = {"name": name, **options}
        weight = spec.pop("weight", 1.0)
        found = resolve(spec, PENALTIES, "penalty", supplied=_SUPPLIED)
        built[name] = weight, partial(found.build, **found.params)
    return labels.CombinedLoss(term, built)


def mollify(
    *,
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    modes: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
    alpha: float = 1.0,
    beta: float = 2.0,
    noise_k: float = 1.0,
    blur_k: float = 1.0,
    labels: Literal["smooth", "temper", "keep"] = "smooth",
    blur_decay: Literal["power", "png"] | None = None,
) -> Mollify:
    """Build `Mollify` for standardised batches, as the engine's loaders give them.

    Args:
        num_classes: number of classes, from the data.
        mean: mean of each channel, from the data.
        std: standard deviation of each channel, from the data.
        modes: probabilities of clean, noise and blur.
        alpha: first parameter of the Beta distribution of the time t.
        beta: its second parameter; larger values degrade less.
        noise_k: slope of the label decay of noisy images; below 1 labels decay faster.
        blur_k: slope of the label decay of blurred images.
        labels: `smooth` (the paper's), `temper`, or `keep` for labels as they are.
        blur_decay: of blurred images, `power` (t^k), or `png` for the bits that an image loses.
    """
    options = {**locals(), "blur_decay": blur_decay or "power"}
    return Mollify(**options, standardised=True)


# Policies and mixing are for single labels; a detector only flips, which `basic` can.
_AUGMENT_TASKS: Mapping[str, tuple[Task, ...]] = {
    "basic": ("classify", "segment", "detect"),
    "window": ("segment",),
}


_CLASSIFIERS: tuple[Callable[..., nn.Module], ...] = (
    *(resnet, vgg, wide_resnet, resnext, densenet, allconv),
    *(gpcn, text_transformer),  # of texts
)

COMPONENTS: tuple[Component, ...] = (
    *(
        Component("data", name, build, ("segment" if name in SEGMENTATION_SOURCES else "classify",))
        for name, build in SOURCES.items()
    ),
    *(Component("data", name, build, ("detect",)) for name, build in DETECTION_SOURCES.items()),
    *(
        Component("model", build.__name__, with_weights(build), ("classify",))
        for build in _CLASSIFIERS
    ),
    Component("model", "unet", with_weights(unet), ("segment",)),
    Component("model", "faster_rcnn", faster_rcnn, ("detect",)),
    Component("model", "torchvision:NAME", with_weights(torchvision_network)),
    Component("model", "timm:NAME", with_weights(timm_network), ("classify",)),
    Component("model", "onnx:FILE", onnx_network, ("classify",)),
    Component("loss", "cross_entropy", labels.CrossEntropyLoss),
    Component("loss", "focal", labels.FocalLoss),
    Component("loss", "flsd", labels.FLSDLoss),
    Component("loss", "ecp", labels.ECPLoss),
    Component("loss", "mmce", labels.MMCELoss),
    Component("loss", "mdca", labels.MDCALoss),
    Component("loss", "cpc", labels.CPCLoss),
    Component("loss", "crl", labels.CRLLoss),
    Component("loss", "cape", labels.CaPELoss),
    Component("loss", "mbls", labels.MbLSLoss),
    Component("loss", "acls", labels.ACLSLoss),
    Component("loss", "maxsup", labels.MaxSupLoss),
    Component("loss", "dual_focal", labels.DualFocalLoss),
    Component("loss", "bsce", labels.BSCELoss),
    Component("loss", "adafocal", labels.AdaFocalLoss),
    Component("loss", "nacl", labels.NACLLoss),
    Component("loss", "cals", labels.CALSLoss),
    Component("loss", "online_label_smoothing", labels.OnlineLabelSmoothingLoss),
    Component("loss", "normalised_cross_entropy", labels.NormalisedCrossEntropyLoss),
    Component("loss", "combined", combined),
    *(
        Component("augment", name, build, _AUGMENT_TASKS.get(name, ("classify",)))
        for name, build in AUGMENTATIONS.items()
    ),
    Component("inputs", "mollify", mollify, ("classify",)),
    Component("labels", "objectness", ObjectnessLabels, ("classify",)),
    Component("predict", "mc_dropout", MCDropout),
    Component("predict", "ensemble", DeepEnsemble, ("classify",)),
    Component("predict", "temporal", TemporalSmoother, ("segment",)),
    Component("predict", "feature_clipping", ClippedFeatures, ("classify",)),
    Component("predict", "tta", AveragedCopies, ("classify",)),
    *(
        Component("corruptions", name, partial(corruptions.corrupt, name=name), ("classify",))
        for name in (*corruptions.CORRUPTIONS, *corruptions.EXTRA_CORRUPTIONS)
    ),
    *(
        Component("perturbations", name, partial(corruptions.perturb, name=name), ("classify",))
        for name in (*corruptions.PERTURBATIONS, *corruptions.HARDER_PERTURBATIONS)
    ),
)


def components(kind: Named, task: Task | None = None) -> dict[str, Component]:
    """The parts of a kind by name, families included; with a task, those that it can use.

    Example:
        >>> list(components("model", "segment"))
        ['unet', 'torchvision:NAME']
    """
    return {
        part.name: part
        for part in COMPONENTS
        if part.kind == kind and (task is None or task in part.tasks)
    }


def find_component(kind: Named, name: str) -> Component:
    """The part of this name: a line of the table, a member of a family, or a user's own."""
    return _named(kind, name)[name]


def is_own(kind: Named, name: object) -> bool:
    """Tell whether a name is the import path of a user's own component; nothing is imported.

    Example:
        >>> is_own("model", "my_models:Net"), is_own("model", "torchvision:resnet18")
        (True, False)
    """
    families = tuple(part.prefix for part in components(kind).values() if part.is_family)
    is_member = isinstance(name, str) and name.startswith(families)
    return kind in OWN_TASKS and is_import_path(name) and not is_member


def resolve_component(kind: Named, spec: Spec, task: Task | None = None) -> Resolved:
    """Check a spec against the table, or a user's own component, without calling anything."""
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    found = _named(kind, name)
    table = {key: part.build for key, part in found.items() if task in (None, *part.tasks)}
    chosen = found.get(name) if isinstance(name, str) else None
    supplied = SUPPLIED.get(kind, ()) if chosen is None else chosen.supplied
    # "Unknown option" would not say that the option is for images.
    if kind == "model" and chosen is not None and chosen.takes("vocabulary_size"):
        _refuse_feature_maps(chosen, spec)
    if chosen is None or not chosen.is_own:
        hint = ", or name your own as package.module:Name" if kind in OWN_TASKS else ""
        return resolve(
            spec, table, kind, supplied=supplied, hint=hint, meant=_meant(kind, name, table)
        )
    given = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    # The configuration of a past run has the digest of the code that it ran.
    said, digest = given.pop(DIGEST, None), chosen.source_digest
    if said not in (None, digest):
        raise ValueError(
            f"{kind} {name!r}: its code has changed since this run was planned (its digest is "
            f"{digest}, not {said}). Start the study again: a changed part is a new run"
        )
    hint = hint_of_a_batch(kind, chosen.build) if chosen.name in table else ""
    checked = resolve(given, table, kind, supplied=supplied, hint_missing=hint)
    return dataclasses.replace(checked, source_digest=digest)


# What people write for a component, without case, and what they mean by it; difflib would propose
# the name that looks alike, which may be another method.
_MEANT: dict[str, str] = {
    "loss label_smoothing": "{name: cross_entropy, smoothing: 0.05}",
    "loss labelsmoothing": "{name: cross_entropy, smoothing: 0.05}",
    "loss ls": "{name: cross_entropy, smoothing: 0.05}",
    "loss ce": "cross_entropy",
    "loss nll": "cross_entropy",
    "loss crossentropy": "cross_entropy",
    "loss bce": "cross_entropy",
    "loss ols": "online_label_smoothing",
    "loss fl": "focal",
    "loss fl_53": "flsd",
    "loss entropy": "ecp",
    "data imagefolder": "folder",
    "data imagenet": "folder",
    "labels als": "objectness",
    "model wrn": "wide_resnet",
    "model wideresnet": "wide_resnet",
}


def _meant(kind: str, name: Any, table: Mapping[str, Any]) -> str | None:
    """The component that an unknown name stands for, as it is written in a study, or None."""
    from torchvision.models import list_models

    if not isinstance(name, str) or name in table:
        return None
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    stem = plain.rstrip("0123456789")
    family, depth = stem.rstrip("_"), plain[len(stem) :]
    if kind == "model" and family in table and depth:
        own = f"{{name: {family}, depth: {depth}}}"
        return f"{own} for small images or torchvision:{family}{depth} for large ones"
    short, joined = plain.removesuffix("loss").rstrip("_"), plain.replace("_", "")
    for each in (plain, short, joined):
        if each in table:
            return each
        if f"{kind} {each}" in _MEANT:
            return _MEANT[f"{kind} {each}"]
    return f"torchvision:{plain}" if kind == "model" and plain in list_models() else None


def _refuse_feature_maps(model: Component, spec: Spec) -> None:
    for key in ("smooth", "blur_pool"):
        if isinstance(spec, Mapping) and key in spec and not model.takes(key):
            raise ValueError(
                f"{key} smooths feature maps of images, and model {model.name} reads texts: "
                "leave it out"
            )


def _named(kind: Named, name: Any) -> dict[str, Component]:
    """The parts of a kind, with the one that has this name in place of families."""
    found = components(kind)
    members = {}
    for family in [part for part in found.values() if part.is_family]:
        del found[family.name]
        if isinstance(name, str) and name.startswith(family.prefix):
            inner = name.removeprefix(family.prefix)
            task: Task = "segment" if is_segmentation_model(inner) else "classify"
            member = partial(family.build, inner)
            members[name] = dataclasses.replace(family, name=name, build=member, tasks=(task,))
    if is_own(kind, name):
        build, digest = import_component(kind, name)
        members[name] = Component(kind, name, build, OWN_TASKS[kind], True, digest)
    return {**found, **members}


def import_component(kind: Named, name: str) -> tuple[Callable[..., Any], str | None]:
    """The callable behind an import path, ready to be called; and the digest of its source."""
    try:
        found, digest = import_named(name)
    except ValueError as error:
        raise ValueError(f"{kind} {name!r}: {error}") from error
    if not callable(found):
        raise TypeError(
            f"{kind} {name!r} must be a function or a class, got {type(found).__name__} "
            f"{found!r}: name something that can be called"
        )
    try:
        inspect.signature(found)
    except ValueError:
        raise TypeError(
            f"{kind} {name!r} has no signature that Python can read: wrap it in a function"
        ) from None
    wrap = {"data": _data_source, "model": _network}.get(kind, lambda build: build)
    return wrap(found), digest


def is_of_a_batch(kind: Named, build: Callable[..., Any]) -> bool:
    """Tell whether a callable is the component itself, as a loss of logits and target."""
    return kind in _OF_A_BATCH and {*_OF_A_BATCH[kind]} <= {*inspect.signature(build).parameters}


def hint_of_a_batch(kind: Named, build: Callable[..., Any]) -> str:
    """Say that a function which lacks a parameter may be meant as the component itself."""
    names = _OF_A_BATCH.get(kind, ())
    if not names or not inspect.isfunction(build):
        return ""
    called = "arguments" if len(names) > 1 else "argument"
    return f". If it works on batches itself, its {called} must be called {' and '.join(names)}"


def check_built(kind: Named, name: str, built: Any) -> None:
    wanted, fits = {
        "model": ("a torch.nn.Module", isinstance(built, nn.Module)),
        "loss": ("a torch.nn.Module or a function of (logits, target)", callable(built)),
        "inputs": ("a function of (images, target)", callable(built)),
        "labels": ("a function of (sample), a batch", callable(built)),
        "augment": (
            "an object with `draws` and `apply` (sfumato.augment.BatchAugment)",
            hasattr(built, "draws") and callable(getattr(built, "apply", None)),
        ),
    }.get(kind, ("", True))
    if not fits:
        raise TypeError(f"{kind} {name!r} must give {wanted}, got {type(built).__name__} {built!r}")


def _network(build: Callable[..., Any]) -> Callable[..., Any]:
    """With `weights`, a file to start from, as every network has, unless it has its own."""
    asked = parameters(build)
    if "weights" in asked:
        return build

    def make(**given: Any) -> Any:
        return build(**given)

    make.__signature__ = _by_name(asked.values())  # type: ignore[attr-defined]
    return with_weights(make)


def _data_source(build: Callable[..., Any]) -> Callable[..., Any]:
    """A loader of `DataSplits` around a user's data set, with our options of how it is divided."""
    asked = parameters(build)
    # The parameter that says which split is wanted, as torchvision's sets have it.
    train, split = asked.get("train"), asked.get("split")
    part: dict[str, tuple[Any, Any]] = {}
    if train is not None and (train.annotation is bool or isinstance(train.default, bool)):
        part = {"train": (True, False)}
    elif split is not None and split.default == "train":
        part = {"split": ("train", "test")}
    options = {key: each for key, each in _SPLITTING.items() if key not in asked}

    def load(**given: Any) -> Any:
        splitting = {key: given.pop(key) for key in options if key in given}
        make = partial(build, **given)
        for key, values in part.items():
            return as_splits(tuple(make(**{key: value}) for value in values), **splitting)
        return as_splits(make(), **splitting)

    merged = [each for key, each in asked.items() if key not in part] + list(options.values())
    load.__signature__ = _by_name(merged)  # type: ignore[attr-defined]
    return load


def _by_name(asked: Iterable[inspect.Parameter]) -> inspect.Signature:
    return inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in asked])
