"""Where a classifier looks: CAM, Grad-CAM and Grad-CAM++.

Learning Deep Features for Discriminative Localization, Zhou et al., CVPR 2016; Grad-CAM, Selvaraju
et al., ICCV 2017; Grad-CAM++, Chattopadhyay et al., WACV 2018 (the maps of Fig. 6-8 of adaptive
label smoothing).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._core.checks import check_class_indices, check_floating
from sfumato.analysis.batches import running
from sfumato.analysis.feature_maps.taps import stage_ends, tapped
from sfumato.features.stages import map_size

_TINY = 1e-12


@dataclass(frozen=True)
class ActivationMaps:
    """Where a model looked in each image, for one class each.

    Args:
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
    name, layer = _map_module(model, images, module), _last_linear(model)
    given: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].detach()))
    try:
        features, logits = _forward(model, images, name)
    finally:
        handle.remove()
    mean = features.mean((2, 3))
    if not given or given[0].shape != mean.shape or not _close(given[0], mean):
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
    name = _map_module(model, images, module)
    features, slopes, logits, chosen = _slopes(model, images, target, name)
    weight = slopes.mean((2, 3))  # Eq. (1)
    raw = torch.einsum("nk,nkhw->nhw", weight, features).relu()  # Eq. (2)
    return _result(raw, images, chosen, logits, name)


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
    name = _map_module(model, images, module)
    features, slopes, logits, chosen = _slopes(model, images, target, name)
    squared = slopes.square()
    total = features.sum((2, 3), keepdim=True)
    below = 2 * squared + total * squared * slopes
    alpha = torch.where(below > 0, squared / below.clamp_min(torch.finfo(below.dtype).tiny), 0.0)
    weight = (alpha * slopes.relu()).sum((2, 3))
    raw = torch.einsum("nk,nkhw->nhw", weight, features).relu()
    return _result(raw, images, chosen, logits, name)


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


def _slopes(
    model: nn.Module, images: Tensor, target: Tensor | None, name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Feature maps, slopes of the chosen logits in them, logits, chosen classes."""
    kept: list[Tensor] = []

    def cut(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
        # The tape begins here: nothing before the map is differentiated, frozen weights or not.
        kept.append(output.detach().requires_grad_())
        return kept[-1].clone()

    with torch.no_grad():
        _forward(model, images[:1], name)  # complains of a wrong module
    handle = model.get_submodule(name).register_forward_hook(cut)
    try:
        with torch.enable_grad(), running(model, "eval"):
            logits = _check_logits(model(images))
            chosen = _target(logits.detach(), target)
            score = logits.gather(1, chosen[:, None]).sum()
            (slopes,) = torch.autograd.grad(score, kept[-1])
    finally:
        handle.remove()
    features = kept[-1].detach()
    size = map_size(features.shape, images.shape)
    if size is not None and size.channels_last:
        features, slopes = features.movedim(-1, 1), slopes.movedim(-1, 1)
    return features, slopes, logits.detach(), chosen


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


def _last_linear(model: nn.Module) -> nn.Linear:
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    if not layers:
        raise ValueError(f"model must end in a linear layer, {type(model).__name__} has none")
    return layers[-1]


def _close(first: Tensor, second: Tensor) -> bool:
    scale = max(float(second.abs().max()), _TINY)
    return float((first - second).abs().max()) <= 1e-4 * scale


def _result(
    raw: Tensor, images: Tensor, target: Tensor, logits: Tensor, name: str
) -> ActivationMaps:
    size = (images.shape[2], images.shape[3])
    maps = F.interpolate(raw[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = (maps - low) / (high - low).clamp_min(_TINY)
    return ActivationMaps(maps, raw, target, logits.softmax(1), name)
