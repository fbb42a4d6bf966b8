"""OpenImages as a classification set: leaf classes, confusing ones merged, large ones capped.

Reference: Krothapalli and Abbott, "One Size Doesn't Fit All: Adaptive Label Smoothing", 2020,
appendix A, which takes the 600 boxable classes to 480 and clips them at about 50,000 samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from sfumato._core.checks import check_choice, check_integer
from sfumato._core.files import MOST_JSON, is_file, parse_json, read_bytes
from sfumato.data.annotations import (
    AnnotatedImage,
    Annotations,
    OnBadBox,
    annotated_splits,
    class_descriptions,
    read_openimages,
)
from sfumato.data.dataset import DataSplits
from sfumato.data.splits import Shared, source

_HIERARCHY = ("bbox_labels_600_hierarchy.json",)
_NAMES = ("class-descriptions-boxable.csv", "oidv7-class-descriptions-boxable.csv")
_SURPLUS = ""  # no class has this name: such objects are painted over, and are no samples


@source("validation", "limit_train", "seed", "in_memory", "on_bad_image")
def load_openimages(
    shared: Shared,
    *,
    root: str | Path,
    leaves: bool = True,
    merge: dict[str, list[str]] | None = None,
    exclude: list[str] | None = None,
    per_class: int | None = None,
    test: Literal["validation", "test"] = "validation",
    size: int = 224,
    on_bad_box: OnBadBox = "error",
) -> DataSplits:
    """One sample for each object of OpenImages, all others of its image painted over.

    The folder is as published: `train-annotations-bbox.csv` (or `oidv6-...`), the same for
    `validation` or `test`, `class-descriptions-boxable.csv`, `bbox_labels_600_hierarchy.json`, and
    the images in `train`, `validation` or `test`.

    Args:
        root: the folder.
        leaves: leave out boxes of classes that others are kinds of, as Person of Man.
        merge: names of classes under one new name, as {"Bike": ["Bicycle", "Motorcycle"]}.
        exclude: names of classes whose boxes are left out.
        per_class: most training samples of a class, drawn by `seed`; the paper's is about 50,000.
            What is beyond is painted over in the images of others. None keeps all.
        test: the part to test on.
        size: side in pixels of the samples.
        on_bad_box: "error", "skip" or "clip", as in `BoxReader`.
    """
    check_choice("test", test, ("validation", "test"))
    folder = Path(root).expanduser()
    names_file = _present(folder, _NAMES)
    names = class_descriptions(names_file)
    parents = _parents(_present(folder, _HIERARCHY), names) if leaves else set()
    renamed = _renamed(set(names.values()), parents, merge or {}, exclude or [])
    parts = []
    for part in ("train", test):
        files = (f"{part}-annotations-bbox.csv", f"oidv6-{part}-annotations-bbox.csv")
        found = read_openimages(
            _present(folder, files),
            folder / part,
            class_names=names_file,
            on_bad_box=on_bad_box,
            on_bad_image=shared.on_bad_image,
        )
        parts.append(_relabelled(found, renamed))
    if per_class is not None:
        check_integer("per_class", per_class, low=1)
        _cap(parts[0].images, per_class, shared.seed)
    return annotated_splits(parts, shared, size=size, without=(_SURPLUS,))


def _present(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        if is_file(folder / name):
            return folder / name
    raise FileNotFoundError(f"{folder / names[0]}: not there; OpenImages is published with it")


def _parents(file: Path, names: Mapping[str, str]) -> set[str]:
    """Names of the classes that have kinds; parts, as the wheel of a car, make no parent."""
    try:
        tree = parse_json(read_bytes(file, most=MOST_JSON))
        codes = {node["LabelName"] for node in _nodes(tree) if node.get("Subcategory")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: no hierarchy of classes as OpenImages has it: {error}") from None
    return {names.get(code, code) for code in codes}


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for key in ("Subcategory", "Part"):
        for child in node.get(key, ()):
            yield from _nodes(child)


def _renamed(
    known: set[str], parents: set[str], merge: Mapping[str, Sequence[str]], exclude: Sequence[str]
) -> dict[str, str]:
    named = [*(name for several in merge.values() for name in several), *exclude]
    for name in named:
        if name not in known:
            raise ValueError(f"merge, exclude: this OpenImages has no class {name!r}")
        if name in parents:
            raise ValueError(
                f"merge, exclude: {name!r} has kinds of its own, and leaves: true leaves it out "
                "already; name its kinds, or say leaves: false"
            )
        if named.count(name) > 1:
            raise ValueError(f"merge, exclude: {name!r} is named twice; name it once")
    renamed = {name: name for name in known - parents - set(exclude)}
    for new, several in merge.items():
        renamed |= dict.fromkeys(several, new)
    return renamed


def _relabelled(found: Annotations, renamed: Mapping[str, str]) -> Annotations:
    for image in found.images:
        pairs = zip(image.boxes, image.labels, strict=True)
        kept = [(box, renamed[label]) for box, label in pairs if label in renamed]
        image.boxes, image.labels = [box for box, _ in kept], [label for _, label in kept]
    return found


def _cap(images: Iterable[AnnotatedImage], per_class: int, seed: int) -> None:
    """Mark all but `per_class` objects of each class, drawn by the seed."""
    places: dict[str, list[tuple[AnnotatedImage, int]]] = defaultdict(list)
    for image in images:
        for number, label in enumerate(image.labels):
            places[label].append((image, number))
    generator = torch.Generator().manual_seed(seed)
    for label in sorted(places):
        order = torch.randperm(len(places[label]), generator=generator).tolist()
        for place in order[per_class:]:
            image, number = places[label][place]
            image.labels[number] = _SURPLUS
    for image in images:
        if all(label == _SURPLUS for label in image.labels):
            image.boxes, image.labels = [], []  # no sample: it need not be read
