"""A labelled picture of the built-in world, to look at before training on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._core.checks import check_choice, check_integer, check_matplotlib
from sfumato._core.files import write_atomically
from sfumato.data.dataset import ArrayDataset
from sfumato.data.scenes.render import CLASSES, CONTEXTS, draw_scenes
from sfumato.data.scenes.sets import generate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAPER, _INK, _FAINT, _ACCENT = "#fbfaf7", "#24211d", "#8a847a", "#c2571a"
# inches
_MARGIN, _HEADER, _NAMES, _CELL, _GAP, _CAPTION, _PANEL = 0.4, 1.0, 1.2, 0.92, 0.09, 0.17, 2.04


def preview(
    path: str | Path,
    *,
    seed: int = 0,
    size: int = 32,
    columns: int = 9,
    context: float = 0.9,
    noise: float = 0.03,
) -> Path:
    """Write a picture: a row for each class with boxes drawn, then morphs with their posterior.

    The name under an image tells a background that is not the habitual one. Needs matplotlib
    (`pip install "sfumato[study]"`).

    Args:
        path: where to write, ending in .png, .pdf or .svg; its folder must exist.
        columns: samples of each class, 6 to 20.
        seed, size, context, noise: as in `generate`.
    """
    target = Path(path)
    check_choice("the ending of path", target.suffix, (".png", ".pdf", ".svg"))
    check_integer("columns", columns, low=6, high=20)
    if not target.parent.is_dir():
        raise ValueError(
            f"path must be in a folder that exists, got {target}. Make {target.parent}."
        )
    made = partial(generate, seed=seed, size=size, context=context, noise=noise)
    samples = made(len(CLASSES) * columns, ambiguity=0.0)
    scene, _ = draw_scenes(len(samples), seed, context=context, ambiguity=0.0)
    sheet = _Sheet(columns)
    _show_classes(sheet, samples, scene.background.texture.tolist())
    _show_morphs(sheet, made(sheet.num_panels, ambiguity=1.0))
    form = target.suffix.removeprefix(".")
    write_atomically(
        target, lambda path: sheet.figure.savefig(path, format=form, dpi=160, facecolor=_PAPER)
    )
    return target


class _Sheet:
    def __init__(self, columns: int) -> None:
        check_matplotlib()
        from matplotlib.figure import Figure

        self.width = 2 * _MARGIN + _NAMES + columns * (_CELL + _GAP) - _GAP
        self.bottom = _HEADER + len(CLASSES) * (_CELL + _CAPTION)  # of the rows of classes
        self.height = self.bottom + _CELL + 1.2
        self.num_panels = int((self.width - 2 * _MARGIN) / _PANEL)
        self.figure = Figure(figsize=(self.width, self.height))

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self.height - top - height
        inches = (left / self.width, bottom / self.height, width / self.width)
        return self.figure.add_axes((*inches, height / self.height))

    def text(self, left: float, baseline: float, content: str, **looks: Any) -> None:
        position = left / self.width, 1 - baseline / self.height
        self.figure.text(*position, content, **{"color": _INK, **looks})


def _show_image(axes: Axes, samples: ArrayDataset, position: int) -> None:
    from matplotlib.patches import Rectangle

    axes.imshow(samples.images[position].permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_axis_off()
    box = samples.batch(position)["boxes"][0] - 0.5  # imshow counts from pixel centres
    side = samples.images.shape[-1]
    left, top, right, bottom = box.clamp(-0.5 + side / 100, side - 0.5 - side / 100).tolist()
    width, height = right - left, bottom - top
    axes.add_patch(Rectangle((left, top), width, height, fill=False, color="white", lw=0.9))


def _show_classes(sheet: _Sheet, samples: ArrayDataset, textures: list[int]) -> None:
    sheet.text(_MARGIN, 0.5, "Sfumato scenes", size=18, weight="bold")
    subtitle = "ten silhouettes, each at home on its own background; a foreign one is named"
    sheet.text(_MARGIN, 0.75, subtitle, size=9.5, color=_FAINT)
    for kind in range(len(CLASSES)):
        top = _HEADER + kind * (_CELL + _CAPTION)
        sheet.text(_MARGIN, top + 0.45, f"{kind}  {CLASSES[kind]}", size=11, weight="bold")
        sheet.text(_MARGIN, top + 0.63, f"on {CONTEXTS[kind]}", size=8.5, color=_FAINT)
        for column, position in enumerate((samples.labels[:] == kind).nonzero().flatten().tolist()):
            left = _MARGIN + _NAMES + column * (_CELL + _GAP)
            _show_image(sheet.axes(left, top, _CELL, _CELL), samples, position)
            if textures[position] != kind:
                caption = f"on {CONTEXTS[textures[position]]}"
                sheet.text(left, top + _CELL + 0.11, caption, size=7, color=_ACCENT)


def _show_morphs(sheet: _Sheet, morphs: ArrayDataset) -> None:
    top = sheet.bottom + 0.62
    sheet.text(_MARGIN, sheet.bottom + 0.28, "Morphs", size=13, weight="bold")
    subtitle = "the label is drawn with the probabilities shown; the drawn one is orange"
    sheet.text(_MARGIN, sheet.bottom + 0.48, subtitle, size=9.5, color=_FAINT)
    for number in range(len(morphs)):
        sample = morphs.batch(number)
        left = _MARGIN + number * _PANEL
        _show_image(sheet.axes(left, top, _CELL, _CELL), morphs, number)
        axes = sheet.axes(left + _CELL + 0.1, top, _PANEL - _CELL - 0.28, _CELL)
        axes.set(xlim=(0, 1), ylim=(2.0, 0.0))
        axes.set_axis_off()
        probabilities, kinds = sample["posterior"].topk(2)
        for row in range(2):
            probability, kind = float(probabilities[row]), int(kinds[row])
            drawn = kind == int(sample["label"])
            axes.text(0, row + 0.38, CLASSES[kind], size=8, color=_INK)
            axes.text(1, row + 0.38, f"{probability:.0%}", size=8, color=_INK, ha="right")
            axes.barh(row + 0.62, 1.0, height=0.2, color="#e8e4da")
            axes.barh(row + 0.62, probability, height=0.2, color=_ACCENT if drawn else _FAINT)
