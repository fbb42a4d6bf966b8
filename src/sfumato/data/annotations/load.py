"""Classification sets from annotated images of any size: one sample an object, or an image."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice, check_integer
from sfumato.data.annotations.coco import read_coco
from sfumato.data.annotations.objects import AnnotatedImage, Annotations, OnBadBox
from sfumato.data.annotations.openimages import read_openimages
from sfumato.data.annotations.voc import read_voc
from sfumato.data.bad_images import bad_rows
from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.decode import image_size
from sfumato.data.holding import InMemory, OnBadImage, image_files, keeps_in_memory
from sfumato.data.objects import single_objects
from sfumato.data.split import with_test
from sfumato.data.tiny_imagenet import padded_boxes

READERS: dict[str, Callable[..., Annotations]] = {
    "voc": read_voc,
    "coco": read_coco,
    "openimages": read_openimages,
}


def load_annotated(
    *,
    format: Literal["voc", "coco", "openimages"],
    train_annotations: str | Path,
    train_images: str | Path,
    test_annotations: str | Path,
    test_images: str | Path,
    size: int = 64,
    validation: float | int = 0.1,
    limit_train: int | None = None,
    on_bad_box: OnBadBox = "error",
    seed: int = 0,
    in_memory: InMemory = None,
    others: Literal["paint", "keep"] | None = None,
    on_bad_image: OnBadImage = None,
) -> DataSplits:
    """Splits from annotated images: one sample for each object, all others painted over.

    Classes are those of the training boxes, by name. What was skipped is said in one warning.

    Args:
        format: of the annotation files.
        train_annotations: file or folder, as `read_voc`, `read_coco` or `read_openimages` takes it.
        train_images: the folder of the training images.
        test_annotations: as for training.
        test_images: the folder of the test images.
        size: side in pixels of the samples; images are scaled to cover it and cut at the centre.
        validation: share or count of training samples, stratified.
        limit_train: size of the training set, stratified. None keeps all.
        on_bad_box: "error", "skip" or "clip", as in `BoxReader`.
        seed: of the split.
        in_memory: keep decoded pixels in memory; without it files are decoded, and objects painted
            over, when needed. "auto" where the images fit into 2 GB.
        others: "keep" gives one sample for each image instead, with all its objects, which must be
            of one class; "paint", also None, is one for each object.
        on_bad_image: "error", or "skip" to leave out files that can't be decoded, with all their
            objects, as `folder`.

    Raises:
        ValueError: what is wrong in which file; with `others="keep"` also objects of several
            classes in an image.
    """
    check_choice("format", format, READERS)
    check_choice("others", others, (None, "paint", "keep"))
    read = READERS[format]
    if format == "openimages":  # the only reader that looks into images: its boxes are shares
        read = partial(read, on_bad_image=on_bad_image)
    found = [
        read(annotations, images, on_bad_box=on_bad_box)
        for annotations, images in (
            (train_annotations, train_images),
            (test_annotations, test_images),
        )
    ]
    return annotated_splits(
        found,
        size=size,
        validation=validation,
        limit_train=limit_train,
        seed=seed,
        in_memory=in_memory,
        keep_others=others == "keep",
        on_bad_image=on_bad_image,
    )


def annotated_splits(
    found: Sequence[Annotations],
    *,
    size: int,
    validation: float | int,
    limit_train: int | None,
    seed: int,
    in_memory: InMemory,
    without: Sequence[str] = (),
    keep_others: bool = False,
    on_bad_image: OnBadImage = None,
) -> DataSplits:
    """Splits from the annotations of a training and a test set; see `load_annotated`.

    Args:
        found: both; what was skipped is said in one warning each.
        size, validation, limit_train, seed, in_memory, on_bad_image: as for `load_annotated`.
        without: labels of objects that are painted over and no samples.
        keep_others: one sample for each image, as it is.
    """
    check_choice("on_bad_image", on_bad_image, (None, "error", "skip"))
    for name, part in zip(("training", "test"), found, strict=True):
        if part.skipped or part.clipped:
            warnings.warn(f"{name} annotations: {part.report}", UserWarning, stacklevel=3)
    labels = {label for image in found[0].images for label in image.labels}
    classes = sorted(labels - set(without))
    if on_bad_image == "skip":
        found = [_decodable(part, size) for part in found]
    files = [_whole_images(part.images, classes, size) for part in found]
    if keeps_in_memory([each.images for each, _ in files], in_memory):
        files = [(replace(each, images=each.images[:]), labels) for each, labels in files]
    if keep_others:
        train, test = (_labelled(*each) for each in files)
    else:
        train, test = (_known_only(*each, None) for each in files)
    parts = with_test(train, test, validation=validation, limit_train=limit_train, seed=seed)
    return replace(parts, skipped={**found[0].unreadable, **found[1].unreadable})


def _decodable(part: Annotations, size: int) -> Annotations:
    """The images that can be decoded, of those that have objects; `unreadable` lists the others."""
    chosen = [image for image in part.images if image.boxes]
    faults = bad_rows(image_files([image.path for image in chosen], size=size)) if chosen else {}
    bad = {str(chosen[row].path): reason for row, reason in faults.items()}
    kept = [image for row, image in enumerate(chosen) if row not in faults]
    return replace(part, images=kept, unreadable={**part.unreadable, **bad})


def annotated_set(
    images: Sequence[AnnotatedImage],
    classes: Sequence[str],
    *,
    size: int,
    fill: Sequence[float] | None = None,
) -> ArrayDataset:
    """One sample for each object whose class is in `classes`, with all others painted over.

    Objects of other classes are painted over too; images without objects are left out.

    Args:
        images: as an annotation reader gives them.
        classes: names; their order gives the labels.
        size: side in pixels; images are scaled to cover it and cut at the centre, boxes with them.
        fill: one number in [0, 1] for each channel; None is the mean of these images.

    Raises:
        ValueError: no object is left, or an image has another size than its annotation says.
    """
    whole, box_labels = _whole_images(images, classes, size)
    return _known_only(replace(whole, images=whole.images[:]), box_labels, fill)


def _whole_images(
    images: Sequence[AnnotatedImage], classes: Sequence[str], size: int
) -> tuple[ArrayDataset, Tensor]:
    """The files of all images with objects, their boxes, and the class of each box or -1."""
    check_integer("size", size, low=1)
    chosen = [image for image in images if image.boxes]
    if not chosen:
        raise ValueError("none of the images has an object; read the annotations' report")
    for image in chosen:
        if image_size(image.path) != (image.width, image.height):
            raise ValueError(
                f"{image.path}: annotated as {image.width}x{image.height} pixels, but has "
                f"{'x'.join(map(str, image_size(image.path)))}; its boxes can't be placed"
            )
    number = {name: label for label, name in enumerate(classes)}
    boxes = padded_boxes([[_fitted(box, image, size) for box in image.boxes] for image in chosen])
    box_labels = torch.full(boxes.shape[:2], -1)
    for position, image in enumerate(chosen):
        codes = torch.tensor([number.get(label, -1) for label in image.labels])
        box_labels[position, : len(codes)] = codes
    whole = ArrayDataset(
        image_files([image.path for image in chosen], size=size),
        torch.zeros(len(chosen), dtype=torch.int64),
        tuple(classes),
        boxes=boxes,
    )
    return whole, box_labels


def _known_only(
    whole: ArrayDataset, box_labels: Tensor, fill: Sequence[float] | None
) -> ArrayDataset:
    """Samples of the objects whose class is known; -1 marks those that are only painted over."""
    extra = ArrayDataset(
        whole.images, whole.labels, (*whole.classes, "other"), whole.index, boxes=whole.boxes
    )
    other = torch.where(box_labels < 0, whole.num_classes, box_labels)
    samples = single_objects(extra, fill=fill, box_labels=other)
    kept = (samples.labels[:] < whole.num_classes).nonzero()[:, 0]
    if not len(kept):
        raise ValueError(f"no object of the classes {list(whole.classes)} is in view")
    known = samples.subset(kept)
    return replace(known, classes=whole.classes, index=torch.arange(len(known)))


def _labelled(whole: ArrayDataset, box_labels: Tensor) -> ArrayDataset:
    """Whole images with the class of their objects; those with none in view are left out."""
    assert whole.boxes is not None  # of `_whole_images`
    known = (whole.boxes[..., 2] > whole.boxes[..., 0]) & (box_labels >= 0)
    highest = box_labels.where(known, -1).amax(1)
    lowest = box_labels.where(known, whole.num_classes).amin(1)
    mixed = ((highest >= 0) & (lowest != highest)).nonzero()[:, 0]
    if len(mixed):
        first = int(mixed[0])
        names = [whole.classes[int(each[first])] for each in (lowest, highest)]
        raise ValueError(
            f"image {first} has objects of several classes, such as {names}: others='keep' needs "
            "images of one class; leave it out for one sample an object"
        )
    kept = (highest >= 0).nonzero()[:, 0]
    samples = replace(whole, labels=highest.clamp(min=0)).subset(kept)
    return replace(samples, index=torch.arange(len(samples)))


def _fitted(
    box: tuple[float, float, float, float], image: AnnotatedImage, size: int
) -> tuple[float, float, float, float]:
    """A box in its image, scaled to cover a square and cut at the centre; zeros if cut off."""
    scale = size / min(image.width, image.height)
    left, top = (image.width * scale - size) / 2, (image.height * scale - size) / 2
    x1, x2 = (min(max(x * scale - left, 0.0), float(size)) for x in (box[0], box[2]))
    y1, y2 = (min(max(y * scale - top, 0.0), float(size)) for y in (box[1], box[3]))
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else (0.0, 0.0, 0.0, 0.0)
