"""The one table of what a study can name.

Configuration, `sfumato list`, the JSON schema, the command line, the contract tests and the
benchmark of the losses read it, so a line here is all that a new part needs. The callable's
signature is the list of its options; what a loss needs is declared on its class.

A name is looked up in one order: a line of the table; a member of a family, as
`torchvision:resnet18`; anything else with a colon is the import path of a user's own part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from sfumato import corruptions, labels
from sfumato._core.import_path import is_import_path
from sfumato._core.spec import DIGEST, Resolved, Spec, resolve
from sfumato.augment import ObjectnessLabels
from sfumato.augment.named import AUGMENTATIONS
from sfumato.data import DETECTION_SOURCES, SOURCES
from sfumato.data.load import SEGMENTATION_SOURCES
from sfumato.engine.config.combined import combined
from sfumato.engine.config.library_networks import timm_network, torchvision_network
from sfumato.engine.config.onnx_networks import onnx_network
from sfumato.engine.config.own_parts import OWN_TASKS, Named, hint_of_a_batch, import_part
from sfumato.engine.config.part import SUPPLIED, Part
from sfumato.engine.config.part_kinds import Task
from sfumato.engine.config.weight_files import with_weights
from sfumato.engine.training.transforms import mollify
from sfumato.features import ClippedFeatures
from sfumato.inputs import AveragedCopies
from sfumato.models import (
    allconv,
    densenet,
    faster_rcnn,
    gpcn,
    is_segmentation_model,
    resnet,
    resnext,
    text_transformer,
    unet,
    vgg,
    wide_resnet,
)
from sfumato.predictions import DeepEnsemble, MCDropout, TemporalSmoother


def _data_task(name: str) -> Task:
    return "segment" if name in SEGMENTATION_SOURCES else "classify"


def _augment_tasks(name: str) -> tuple[Task, ...]:
    """Policies and mixing are for single labels; a detector only flips, which `basic` can."""
    others: dict[str, tuple[Task, ...]] = {
        "basic": ("classify", "segment", "detect"),
        "window": ("segment",),
    }
    return others.get(name, ("classify",))


PARTS: tuple[Part, ...] = (
    *(Part("data", name, build, (_data_task(name),)) for name, build in SOURCES.items()),
    *(Part("data", name, build, ("detect",)) for name, build in DETECTION_SOURCES.items()),
    Part("model", "resnet", with_weights(resnet), ("classify",)),
    Part("model", "vgg", with_weights(vgg), ("classify",)),
    Part("model", "wide_resnet", with_weights(wide_resnet), ("classify",)),
    Part("model", "resnext", with_weights(resnext), ("classify",)),
    Part("model", "densenet", with_weights(densenet), ("classify",)),
    Part("model", "allconv", with_weights(allconv), ("classify",)),
    Part("model", "gpcn", with_weights(gpcn), ("classify",)),
    Part("model", "text_transformer", with_weights(text_transformer), ("classify",)),
    Part("model", "unet", with_weights(unet), ("segment",)),
    Part("model", "faster_rcnn", faster_rcnn, ("detect",)),
    Part("model", "torchvision:NAME", with_weights(torchvision_network)),
    Part("model", "timm:NAME", with_weights(timm_network), ("classify",)),
    Part("model", "onnx:FILE", onnx_network, ("classify",)),
    Part("loss", "cross_entropy", labels.CrossEntropyLoss),
    Part("loss", "focal", labels.FocalLoss),
    Part("loss", "flsd", labels.FLSDLoss),
    Part("loss", "ecp", labels.ECPLoss),
    Part("loss", "mmce", labels.MMCELoss),
    Part("loss", "mdca", labels.MDCALoss),
    Part("loss", "cpc", labels.CPCLoss),
    Part("loss", "crl", labels.CRLLoss),
    Part("loss", "cape", labels.CaPELoss),
    Part("loss", "mbls", labels.MbLSLoss),
    Part("loss", "acls", labels.ACLSLoss),
    Part("loss", "maxsup", labels.MaxSupLoss),
    Part("loss", "dual_focal", labels.DualFocalLoss),
    Part("loss", "bsce", labels.BSCELoss),
    Part("loss", "adafocal", labels.AdaFocalLoss),
    Part("loss", "nacl", labels.NACLLoss),
    Part("loss", "cals", labels.CALSLoss),
    Part("loss", "online_label_smoothing", labels.OnlineLabelSmoothingLoss),
    Part("loss", "normalised_cross_entropy", labels.NormalisedCrossEntropyLoss),
    Part("loss", "combined", combined),
    *(Part("augment", name, build, _augment_tasks(name)) for name, build in AUGMENTATIONS.items()),
    Part("inputs", "mollify", mollify, ("classify",)),
    Part("labels", "objectness", ObjectnessLabels, ("classify",)),
    Part("predict", "mc_dropout", MCDropout),
    Part("predict", "ensemble", DeepEnsemble, ("classify",)),
    Part("predict", "temporal", TemporalSmoother, ("segment",)),
    Part("predict", "feature_clipping", ClippedFeatures, ("classify",)),
    Part("predict", "tta", AveragedCopies, ("classify",)),
    *(
        Part("corruptions", name, partial(corruptions.corrupt, name=name), ("classify",))
        for name in (*corruptions.CORRUPTIONS, *corruptions.EXTRA_CORRUPTIONS)
    ),
    *(
        Part("perturbations", name, partial(corruptions.perturb, name=name), ("classify",))
        for name in (*corruptions.PERTURBATIONS, *corruptions.HARDER_PERTURBATIONS)
    ),
)


def parts(kind: Named, task: Task | None = None) -> dict[str, Part]:
    """The parts of a kind by name, families included; with a task, those that it can use.

    Example:
        >>> list(parts("model", "segment"))
        ['unet', 'torchvision:NAME']
    """
    return {
        part.name: part
        for part in PARTS
        if part.kind == kind and (task is None or task in part.tasks)
    }


def find_part(kind: Named, name: str) -> Part:
    """The part of this name: a line of the table, a member of a family, or a user's own.

    Raises:
        KeyError: there is none; `resolve_part` says so in words.
        ValueError, TypeError: a user's own that can't be imported or called.

    Example:
        >>> find_part("model", "torchvision:fcn_resnet50").tasks
        ('segment',)
    """
    return _named(kind, name)[name]


def is_own(kind: Named, name: object) -> bool:
    """Whether a name is the import path of a user's own part; nothing is imported.

    Example:
        >>> is_own("model", "my_models:Net"), is_own("model", "torchvision:resnet18")
        (True, False)
    """
    families = tuple(part.prefix for part in parts(kind).values() if part.is_family)
    is_member = isinstance(name, str) and name.startswith(families)
    return kind in OWN_TASKS and is_import_path(name) and not is_member


def own_names(config: Mapping[str, Any]) -> list[str]:
    """The import paths in a run's configuration as it is on disk; nothing is imported."""
    specs: list[tuple[Named, Any]] = [(kind, config.get(kind)) for kind in OWN_TASKS]
    evaluations = (config.get("evaluate") or {}).get("own") or {}
    specs += [("own", spec) for spec in evaluations.values()]
    named = [
        (kind, each.get("name") if isinstance(each, Mapping) else each) for kind, each in specs
    ]
    names = [str(name) for kind, name in named if is_own(kind, name)]
    recipe = config.get("classifier")
    return names + (own_names(recipe) if isinstance(recipe, Mapping) else [])


def resolve_part(kind: Named, spec: Spec, task: Task | None = None) -> Resolved:
    """Check a spec against the table, or a user's own part, without calling anything.

    Args:
        kind: what the spec names.
        spec: a name, or a mapping with `name` and parameters. A user's own part may have its
            `source_digest` there, as a run's configuration does: then it must still be that.
        task: leave out the parts that this task can't use.

    Raises:
        ValueError, TypeError: as `resolve`; also code that has changed since.
    """
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    found = _named(kind, name)
    table = {key: part.build for key, part in found.items() if task in (None, *part.tasks)}
    chosen = found.get(name) if isinstance(name, str) else None
    supplied = SUPPLIED.get(kind, ()) if chosen is None else chosen.supplied
    if kind == "model" and chosen is not None and chosen.takes("vocabulary_size"):
        _refuse_feature_maps(chosen, spec)
    if not is_own(kind, name):
        hint = ", or name your own as package.module:Name" if kind in OWN_TASKS else ""
        return resolve(spec, table, kind, supplied=supplied, hint=hint)
    given = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    said, digest = given.pop(DIGEST, None), found[str(name)].source_digest
    if said not in (None, digest):
        raise ValueError(
            f"{kind} {name!r}: its code has changed since this run was planned (its digest is "
            f"{digest}, not {said}). Start the study again: a changed part is a new run"
        )
    hint = hint_of_a_batch(kind, table[str(name)]) if name in table else ""
    checked = resolve(given, table, kind, supplied=supplied, hint_missing=hint)
    return dataclasses.replace(checked, source_digest=digest)


def _refuse_feature_maps(model: Part, spec: Spec) -> None:
    for key in ("smooth", "blur_pool"):
        if isinstance(spec, Mapping) and key in spec and not model.takes(key):
            raise ValueError(
                f"{key} smooths feature maps of images, and model {model.name} reads texts: "
                "leave it out"
            )


def _named(kind: Named, name: Any) -> dict[str, Part]:
    """The parts of a kind, with the one that has this name in place of families."""
    found = parts(kind)
    members = {}
    for family in [part for part in found.values() if part.is_family]:
        del found[family.name]
        if isinstance(name, str) and name.startswith(family.prefix):
            members[name] = _member(family, name)
    if is_own(kind, name):
        build, digest = import_part(kind, name)
        members[name] = Part(kind, name, build, OWN_TASKS[kind], is_own=True, source_digest=digest)
    return {**found, **members}


def _member(family: Part, name: str) -> Part:
    inner = name.removeprefix(family.prefix)
    task: Task = "segment" if is_segmentation_model(inner) else "classify"
    return dataclasses.replace(family, name=name, build=partial(family.build, inner), tasks=(task,))
