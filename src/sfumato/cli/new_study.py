"""A study file for a folder of images, written after looking at what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sfumato._core.text import one_line, yaml_text
from sfumato.data.files import image_size
from sfumato.data.index import (
    check_split_folders,
    class_names,
    folder_of_splits,
    labelled_names,
    split_folders,
)
from sfumato.data.sources.folders import IMAGES
from sfumato.engine import ConfigError

_LOOKED_AT = 500  # headers of images that are read, spread over all of them
_FEW = 30  # images of a class, below which its numbers are mostly chance
_TEST_SHARE, _VALIDATION_SHARE = 0.2, 0.1


@dataclass(frozen=True)
class FolderFacts:
    """Counts and sizes of a folder of images."""

    counts: Mapping[str, int]  # images of each class, over all parts
    training: int  # images that are left for training
    testing: int
    sizes: tuple[int, int]  # smallest and largest shorter side of the images that were looked at
    is_uniform: bool  # those all have one size
    is_divided: bool  # it has `train/` and `test/` of its own
    looked_at: int  # files whose headers were read
    unreadable: int  # how many of those can't be

    @property
    def images(self) -> int:
        return sum(self.counts.values())

    @property
    def size(self) -> int:
        """The side to scale images to: enough for a first study, small enough to be quick."""
        return min(64, max(16, self.sizes[0]))

    @property
    def margin(self) -> float:
        """Margin of MbLS and ACLS: the papers have 6 for ten classes and 10 for more."""
        return 6.0 if len(self.counts) <= 10 else 10.0


def look_at_folder(root: Path) -> FolderFacts:
    """Count classes and images, and read the sizes of some."""
    parts = sorted(split_folders(root))
    if parts:
        with _mistakes_of_the_folder():
            check_split_folders(root, set(parts), IMAGES, validation=None, test=None)
    folders = [root / part for part in parts] or [root]
    classes = class_names(root / "train" if parts else root)
    if len(classes) < 2:
        raise ConfigError(
            f"{root}: holds {len(classes)} class folders; a classifier needs at least two, each "
            "a folder of images: photos/cat/1.jpg, photos/dog/2.jpg, ..."
        )
    with _mistakes_of_the_folder():
        found = {folder.name: labelled_names(folder, classes, IMAGES) for folder in folders}
    everything = [folder / name for folder in folders for name in found[folder.name][0]]
    labels = [label for _, each in found.values() for label in each]
    counts = {name: labels.count(number) for number, name in enumerate(classes)}
    least = min(counts, key=lambda name: counts[name])
    if not parts and counts[least] < 5:
        raise ConfigError(
            f"{root}: class {least!r} has {counts[least]} images; each needs at least five, so "
            "that every part (training, validation, test) has some"
        )
    looked_at = everything[:: max(1, len(everything) // _LOOKED_AT)]
    found_sizes = _sizes(looked_at)
    seen = set(found_sizes)
    sides = [min(size) for size in seen]
    roles = folder_of_splits(set(parts))
    testing = len(found[roles["test"]][0]) if parts else round(_TEST_SHARE * len(everything))
    training = len(found["train"][0]) if parts else len(everything) - testing
    if "validation" not in roles:
        training -= round(_VALIDATION_SHARE * training)
    return FolderFacts(
        counts,
        training,
        testing,
        (min(sides), max(sides)),
        is_uniform=len(seen) == 1,
        is_divided=bool(parts),
        looked_at=len(looked_at),
        unreadable=len(looked_at) - len(found_sizes),
    )


def study_text(name: str, root: str, facts: FolderFacts) -> str:
    """The study file: a comparison that runs as it stands, with what to change beside it."""
    batch = max(8, min(64, facts.training // 20))
    depth, width = (8, 16) if facts.size <= 40 else (18, 16)
    skip = ", on_bad_image: skip" if facts.unreadable else ""
    lines = [
        *(f"# {line}" for line in remarks(root, facts)),
        "#",
        "# Next: sfumato check FILE looks at all of it, sfumato run FILE --dry-run says how long",
        "# it takes, sfumato run FILE runs it and ends with a report.",
        f"name: {yaml_text(name)}",
        "recipe:",
        f"  data: {{name: folder, root: {yaml_text(root)}, size: {facts.size}{skip}}}"
        "  # scaled and cropped to squares",
        f"  model: {{name: resnet, depth: {depth}, width: {width}}}"
        "  # also torchvision:resnet50, timm:NAME; see sfumato list models",
        "  augment: fcr  # flips, crops and rotations",
        f"  train: {{epochs: 30, batch_size: {batch}, clip_norm: 2.0}}"
        "  # ACLS wants its gradients clipped",
        "  evaluate:",
        "    corruptions: [gaussian_noise, motion_blur, fog, contrast, pixelate]"
        "  # all: the fifteen of the benchmark",
        "    severities: [3]",
        "    temperature: true  # each method also with one temperature",
        "methods:  # each changes only what it names",
        "  cross entropy: {}  # the first one is the baseline",
        "  label smoothing: {loss: {name: cross_entropy, smoothing: 0.05}}",
        f"  ACLS: {{loss: {{name: acls, margin: {facts.margin}}}}}",
        "  mollification: {inputs: mollify}  # for images with noise or blur",
        "  spatial smoothing:",
        f"    model: {{name: resnet, depth: {depth}, width: {width}, smooth: true}}",
        "seeds: [0, 1, 2]  # three show large differences; with one there are no verdicts",
    ]
    return "\n".join(lines) + "\n"


def remarks(root: str, facts: FolderFacts) -> list[str]:
    """Say what the folder holds and what that means for a study; one line each."""
    low, high = facts.sizes
    kind = "of one size" if facts.is_uniform else f"with shorter sides of {low} to {high} pixels"
    division = "as train/ and test/ say" if facts.is_divided else "divided here, by seed"
    said = [
        f"{one_line(root)}: {facts.images:,} images of {len(facts.counts)} classes, {kind}.",
        f"About {facts.training:,} to train on and {facts.testing:,} to test on, {division}.",
    ]
    if facts.unreadable:
        said.append(
            f"{facts.unreadable:,} of {facts.looked_at:,} files can't be read; on_bad_image: skip "
            "leaves such files out, and lists them with each run."
        )
    few = [name for name, count in facts.counts.items() if count < _FEW]
    if few:
        said.append(f"Fewer than {_FEW} images, so little can be said of: {_listed(few)}.")
    least, most = min(facts.counts.values()), max(facts.counts.values())
    if most > 5 * least:
        said.append(f"Classes differ in size, {least:,} to {most:,}: look at classwise errors too.")
    if facts.testing < 500:
        said.append("Few test images: intervals will be wide, and small differences inconclusive.")
    return said


@contextmanager
def _mistakes_of_the_folder() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _sizes(paths: Sequence[Path]) -> list[tuple[int, int]]:
    """Width and height of each file that can be read, of which there must be one."""
    found, problem = [], ""
    for path in paths:
        try:
            found.append(image_size(path))
        except ValueError as error:
            problem = problem or str(error)
    if not found:
        raise ConfigError(f"no image can be read: {problem}")
    return found


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
