"""Activation maps (CAM, Grad-CAM, Grad-CAM++), and how well they find the object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._core.checks import (
    check_class_indices,
    check_floating,
    check_number,
    to_float64,
    to_float64_device,
)
from sfumato._core.plots import new_figure
from sfumato.analysis.batches import running
from sfumato.analysis.feature_maps import stage_ends, tapped
from sfumato.features.clipping import last_linear
from sfumato.features.stages import map_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_TINY = 1e-12


@dataclass(frozen=True)
class ActivationMaps:
    """Maps of where a model looked in each image, for one class each.

    Attributes:
        maps: (N, H, W), scaled to the images' size and, image by image, to [0, 1].
        raw: (N, h, w), the values of the equation on the grid of the feature map.
        target: (N,), the class that each map is for.
        probs: (N, K), what the model said.
        module: name of the module whose feature map was read.
    """

    maps: Tensor
    raw: Tensor
    target: Tensor
    probs: Tensor
    module: str


def class_activation_map(
    model: nn.Module, images: Tensor, target: Tensor | None = None, *, module: str | None = None
) -> ActivationMaps:
    """CAM: the feature maps added up with the class's own weights.

        M^c = sum_k w_k^c A^k,      logit^c = mean_ij M^c_ij + b^c

    Only for networks that end in global average pooling and one linear layer, where it says how
    much each place adds to the logit. This is checked: the linear layer must be given the mean of
    the map. For any other network use `grad_cam` or `grad_cam_plus_plus`.

    Args:
        model: a classifier; left as it was.
        images: (N, C, H, W), as the model takes them (normalised).
        target: (N,) classes to look for; the predicted ones by default.
        module: name of the module that returns the feature map; the last one before global
            pooling by default.

    Raises:
        ValueError: the network does not end in global average pooling and a linear layer.

    Example:
        >>> from sfumato.models import resnet
        >>> model = resnet(8, num_classes=10, width=4)
        >>> found = class_activation_map(model, torch.zeros(2, 3, 32, 32))
        >>> found.module, found.raw.shape, found.maps.shape
        ('stages.2', torch.Size([2, 8, 8]), torch.Size([2, 32, 32]))

    Reference:
        Zhou et al., Learning Deep Features for Discriminative Localization, CVPR 2016, Eq. (2).
    """
    name, layer = _map_module(model, images, module), last_linear(model)
    given: list[Tensor] = []
    with layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].detach())):
        features, logits = _forward(model, images, name)
    mean = features.mean((2, 3))
    near = 1e-4 * max(float(mean.abs().max()), _TINY)
    same = given and given[0].shape == mean.shape
    if not same or not float((given[0] - mean).abs().max()) <= near:
        raise ValueError(
            f"class_activation_map needs a network that ends in global average pooling of the map "
            f"of module {name!r} and one linear layer; this {type(model).__name__} does not. Use "
            "grad_cam or grad_cam_plus_plus, or name another module"
        )
    chosen = _target(logits, target)
    raw = torch.einsum("nk,nkhw->nhw", layer.weight.detach()[chosen], features)  # Eq. (2)
    return _result(raw, images, chosen, logits, name)


def grad_cam(
    model: nn.Module, images: Tensor, target: Tensor | None = None, *, module: str | None = None
) -> ActivationMaps:
    """Grad-CAM: the feature maps added up with the mean slope of the class's logit.

        M^c = ReLU(sum_k a_k^c A^k),      a_k^c = mean_ij d logit^c / d A^k_ij

    For a network that ends in global average pooling, a_k^c = w_k^c / (h w): CAM without its
    negative places, up to a factor. Arguments as for `class_activation_map`.

    Reference:
        Selvaraju et al., Grad-CAM, ICCV 2017, Eq. (1) and (2).
    """
    weigh = lambda features, slopes: slopes.mean((2, 3))  # noqa: E731  Eq. (1)
    return _by_slopes(model, images, target, module, weigh)


def grad_cam_plus_plus(
    model: nn.Module, images: Tensor, target: Tensor | None = None, *, module: str | None = None
) -> ActivationMaps:
    """Grad-CAM++: only places that raise the score count, each with a weight of its own.

        M^c = ReLU(sum_k w_k^c A^k),      w_k^c = sum_ij alpha_ij^kc ReLU(g_ij^k)
        alpha_ij^kc = (g_ij^k)^2 / (2 (g_ij^k)^2 + sum_ab A_ab^k (g_ij^k)^3),   g = d logit^c / dA

    Several objects of one class, or parts of one, all show. The paper's score is exp(logit), which
    multiplies an image's whole map by exp(logit^c) and could overflow; that factor is left out, and
    the maps in [0, 1] are the same. alpha is 0 where the slope is, and where its denominator is not
    positive. Arguments as for `class_activation_map`.

    Reference:
        Chattopadhyay et al., Grad-CAM++, WACV 2018, Eq. (5), (14) and (19).
    """
    return _by_slopes(model, images, target, module, _weigh_places)


def _weigh_places(features: Tensor, slopes: Tensor) -> Tensor:
    squared = slopes.square()
    below = 2 * squared + features.sum((2, 3), keepdim=True) * squared * slopes
    alpha = torch.where(below > 0, squared / below.clamp_min(torch.finfo(below.dtype).tiny), 0.0)
    return (alpha * slopes.relu()).sum((2, 3))


def _map_module(model: nn.Module, images: Tensor, module: str | None) -> str:
    """The named module, or the last one that returns a map before pooling."""
    check_floating("images", images, hint="Pass them as the model takes them, normalised")
    if images.ndim != 4 or not len(images):
        raise ValueError(f"images must be (N, C, H, W) with N > 0, got {tuple(images.shape)}")
    if module is not None:
        return module
    # A pre-activation network normalises and activates its last map inside the head.
    named = dict(model.named_modules())
    inside = "head.activation"
    return inside if {inside, "head.pool"} <= named.keys() else stage_ends(model, images)[-1]


def _forward(model: nn.Module, images: Tensor, name: str) -> tuple[Tensor, Tensor]:
    kept: list[Tensor] = []
    # Cloned, since a later layer may overwrite the map in place.
    reader = lambda _, features: kept.append(features.clone())  # noqa: E731
    with torch.no_grad(), running(model, "eval"), tapped(model, [name], images, reader):
        logits = _check_logits(model(images))
    return kept[0], logits


def _by_slopes(
    model: nn.Module,
    images: Tensor,
    target: Tensor | None,
    module: str | None,
    weigh: Callable[[Tensor, Tensor], Tensor],
) -> ActivationMaps:
    """ReLU of the maps added up with `weigh(maps, slopes of the chosen logits in them)`."""
    name = _map_module(model, images, module)
    kept: list[Tensor] = []

    def cut(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
        # The tape begins here: nothing before the map is differentiated, frozen weights or not.
        kept.append(output.detach().requires_grad_())
        return kept[-1].clone()

    # One image first: a wrong name is told by its message, not by a failed gradient.
    _forward(model, images[:1], name)
    hook = model.get_submodule(name).register_forward_hook(cut)
    with hook, torch.enable_grad(), running(model, "eval"):
        logits = _check_logits(model(images))
        chosen = _target(logits.detach(), target)
        score = logits.gather(1, chosen[:, None]).sum()
        (slopes,) = torch.autograd.grad(score, kept[-1])
    features = kept[-1].detach()
    size = map_size(features.shape, images.shape)
    if size is not None and size.channels_last:
        features, slopes = features.movedim(-1, 1), slopes.movedim(-1, 1)
    raw = torch.einsum("nk,nkhw->nhw", weigh(features, slopes), features).relu()
    return _result(raw, images, chosen, logits.detach(), name)


def _check_logits(logits: object) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        shape = tuple(getattr(logits, "shape", ()))
        raise ValueError(f"model must return logits (N, K), got {type(logits).__name__} {shape}")
    return logits


def _target(logits: Tensor, target: Tensor | None) -> Tensor:
    if target is None:
        return logits.argmax(1)
    if target.shape != logits.shape[:1]:
        raise ValueError(f"target must be ({len(logits)},), got {tuple(target.shape)}")
    check_class_indices("target", target, logits.shape[1])
    return target


def _result(
    raw: Tensor, images: Tensor, target: Tensor, logits: Tensor, name: str
) -> ActivationMaps:
    size = (images.shape[2], images.shape[3])
    maps = F.interpolate(raw[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = (maps - low) / (high - low).clamp_min(_TINY)
    return ActivationMaps(maps, raw, target, logits.softmax(1), name)


_THRESHOLDS = tuple(step / 20 for step in range(1, 20))


@dataclass(frozen=True)
class Localisation:
    """Agreement of a set of maps with the boxes.

    Attributes:
        threshold: the threshold at which the mean IoU is largest.
        iou: mean IoU there, of the box around the largest bright region with the best true box.
        box_accuracy: largest share, over thresholds, of images whose IoU reaches 0.5 (Choe et al.'s
            MaxBoxAcc).
        pointing: share of images whose brightest point lies in a true box (pointing game).
        iou_by_threshold: (T,), mean IoU at each threshold.
        images: how many images had a box, and count.
    """

    threshold: float
    iou: float
    box_accuracy: float
    pointing: float
    iou_by_threshold: Tensor
    images: int


def localisation_scores(
    maps: Tensor, boxes: Tensor, *, thresholds: Sequence[float] = _THRESHOLDS
) -> Localisation:
    """Measure maps against true boxes: IoU at the best threshold, and the pointing game.

    One threshold serves all images, as it would in use. Images without any box are left out.

    Args:
        maps: (N, H, W) in [0, 1], as `ActivationMaps.maps`.
        boxes: (N, B, 4) as x1, y1, x2, y2 in pixels; a missing box is all zeros.
        thresholds: in [0, 1]; a region is where a map is at least this bright.

    Example:
        >>> maps = torch.zeros(1, 8, 8)
        >>> maps[0, 2:4, 2:6] = 1.0
        >>> found = localisation_scores(maps, torch.tensor([[[2.0, 2.0, 6.0, 4.0]]]))
        >>> found.iou, found.pointing
        (1.0, 1.0)

    Reference:
        Zhang et al., Top-down Neural Attention by Excitation Backprop, ECCV 2016 (pointing game);
        Choe et al., Evaluating Weakly Supervised Object Localization Methods Right, CVPR 2020.
    """
    maps, boxes = _with_boxes(maps, boxes)
    if not thresholds:
        raise ValueError("thresholds must hold at least one number, got none")
    for value in thresholds:
        check_number("threshold", value, low=0.0, high=1.0)
    regions = [region_boxes(maps >= value) for value in thresholds]
    overlaps = torch.stack([best_overlap(each, boxes) for each in regions])  # (T, N)
    means = overlaps.mean(1)
    best = int(means.argmax())
    return Localisation(
        threshold=float(thresholds[best]),
        iou=float(means[best]),
        box_accuracy=float(to_float64(overlaps >= 0.5).mean(1).max()),
        pointing=float(to_float64(hits(maps, boxes)).mean()),
        iou_by_threshold=means,
        images=len(maps),
    )


def hits(maps: Tensor, boxes: Tensor) -> Tensor:
    """(N,) booleans: whether the centre of the brightest pixel lies in one of the boxes."""
    width = maps.shape[2]
    place = maps.flatten(1).argmax(1)[:, None]
    centre = torch.stack([place % width, place // width], 2).float() + 0.5  # (N, 1, 2)
    return ((boxes[..., :2] <= centre) & (centre <= boxes[..., 2:])).all(2).any(1)


def region_boxes(masks: Tensor) -> Tensor:
    """The tightest boxes (N, 4) around the largest region of each (N, H, W) mask; zeros if empty.

    Pixels that touch by a side or a corner are one region.
    """
    largest = _largest_region(masks)
    spans = []
    for axis in (1, 2):
        occupied = largest.any(axis)  # over rows: columns that are occupied
        first = occupied.int().argmax(1)
        last = occupied.shape[1] - occupied.flip(1).int().argmax(1)
        spans.append((first, last))
    (left, right), (top, bottom) = spans
    found = torch.stack([left, top, right, bottom], 1).float()
    return found * largest.flatten(1).any(1)[:, None]


def best_overlap(found: Tensor, boxes: Tensor) -> Tensor:
    """(N,): IoU of each found box (N, 4) with the best of its image's boxes (N, B, 4)."""
    corner = torch.maximum(found[:, None, :2], boxes[..., :2])
    far = torch.minimum(found[:, None, 2:], boxes[..., 2:])
    shared = (far - corner).clamp_min(0).prod(-1)
    area = (found[:, 2:] - found[:, :2]).prod(-1)[:, None]
    union = area + (boxes[..., 2:] - boxes[..., :2]).prod(-1) - shared
    return torch.where(union > 0, shared / union.clamp_min(1e-9), 0.0).amax(1)


def _largest_region(masks: Tensor) -> Tensor:
    """The largest connected region of each mask, by spreading the highest pixel number."""
    height, width = masks.shape[1:]
    # On the processor where a device has no float64: float32 can't count beyond 2^24 pixels.
    wanted, masks = masks.device, to_float64_device(masks)
    numbers = torch.arange(1, height * width + 1, device=masks.device, dtype=torch.float64)
    inside = masks.double()
    labels = numbers.view(1, height, width) * inside
    while True:
        spread = F.max_pool2d(labels[:, None], 3, 1, 1)[:, 0] * inside
        if torch.equal(spread, labels):
            break
        labels = spread
    flat = labels.flatten(1).long()
    counts = torch.zeros(len(masks), height * width + 1, dtype=torch.long, device=masks.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    counts[:, 0] = 0
    return ((labels == counts.argmax(1)[:, None, None]) & masks).to(wanted)


def _with_boxes(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    if maps.ndim != 3 or boxes.ndim != 3 or boxes.shape[2] != 4 or len(maps) != len(boxes):
        raise ValueError(
            f"maps must be (N, H, W) and boxes (N, B, 4), got {tuple(maps.shape)} and "
            f"{tuple(boxes.shape)}"
        )
    present = (boxes[..., 2:] > boxes[..., :2]).all(-1)
    some = present.any(1)
    if not bool(some.any()):
        raise ValueError("boxes must hold at least one box of positive area, got none")
    boxes = torch.where(present[..., None], boxes, -1.0)  # a missing box overlaps nothing
    return maps[some], boxes[some]


_RIGHT, _WRONG, _BOX = "#1a7f37", "#c2271a", "white"


def overlay_maps(images: Tensor, maps: Tensor, *, opacity: float = 0.5) -> Tensor:
    """Pictures with the maps laid over them in colour, dark blue to red."""
    from matplotlib import colormaps

    check_number("opacity", opacity, low=0.0, high=1.0)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must be uint8 (N, 1 or 3, H, W), got {images.dtype} {tuple(images.shape)}"
        )
    if maps.shape != (len(images), *images.shape[2:]):
        raise ValueError(f"maps must be (N, H, W) as the images, got {tuple(maps.shape)}")
    colours = torch.from_numpy(colormaps["jet"](maps.cpu().numpy())[..., :3]).movedim(-1, 1)
    shown = (1 - opacity) * images.cpu().double() + opacity * 255 * colours
    return shown.round().clamp(0, 255).to(torch.uint8)


def plot_activation_maps(
    images: Tensor,
    found: Mapping[str, ActivationMaps],
    *,
    target: Tensor,
    classes: Sequence[str],
    boxes: Tensor | None = None,
    opacity: float = 0.5,
) -> Figure:
    """A row for each image: the image with its box, then each model's map over it.

    Under each map stand the model's three highest probabilities, the true class in green, a wrong
    prediction in red.

    Args:
        images: (N, C, H, W), uint8.
        found: title to the maps of one model on these images.
        target: (N,) true classes.
        classes: one name per class.
        boxes: (N, B, 4) in pixels; a missing box is all zeros.
        opacity: of the maps.

    Reference: Krothapalli & Abbott, Adaptive Label Smoothing, Fig. 6-8.
    """
    rows, columns = len(images), 1 + len(found)
    figure = new_figure(1.7 * columns, 2.1 * rows + 0.2, found=found)
    figure.set_layout_engine("constrained", h_pad=0.08)
    axes = figure.subplots(rows, columns, squeeze=False)
    known = [[]] * rows if boxes is None else boxes.tolist()
    shown = {title: overlay_maps(images, m.maps, opacity=opacity) for title, m in found.items()}
    for column, (title, pictures) in enumerate({"image": images, **shown}.items()):
        axes[0, column].set_title(title, fontsize="medium")
        for axis, picture, own in zip(axes[:, column], pictures, known, strict=True):
            _show(axis, picture, own)
    for row, label in enumerate(target.tolist()):
        axes[row, 0].set_xlabel(classes[label], fontsize="small")
        for axis, each in zip(axes[row, 1:], found.values(), strict=True):
            _write_probabilities(axis, each.probs[row], label, classes)
    return figure


def _show(axis: Axes, picture: Tensor, boxes: list[list[float]]) -> None:
    from matplotlib.patches import Rectangle

    axis.imshow(picture.expand(3, -1, -1).permute(1, 2, 0).numpy(), interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    for left, top, right, bottom in boxes:
        if right > left and bottom > top:  # imshow counts from pixel centres
            corner, width, height = (left - 0.5, top - 0.5), right - left, bottom - top
            axis.add_patch(Rectangle(corner, width, height, fill=False, color=_BOX, lw=1.2))


def _write_probabilities(axis: Axes, probs: Tensor, label: int, classes: Sequence[str]) -> None:
    for place, index in enumerate(probs.topk(min(3, len(probs))).indices.tolist()):
        colour = _RIGHT if index == label else _WRONG if place == 0 else "0.35"
        axis.text(
            0.5, -0.04 - 0.11 * place, f"{classes[index]} {probs[index]:.2f}", color=colour,
            transform=axis.transAxes, ha="center", va="top", fontsize="x-small",
        )  # fmt: skip
    axis.set_xlabel(" \n \n ", fontsize="x-small")
