"""A classifier's trunk inside torchvision's Faster R-CNN with a feature pyramid.

Faster R-CNN, Ren et al., NeurIPS 2015; Feature Pyramid Networks, Lin et al., CVPR 2017.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_number
from sfumato._core.evaluation_mode import evaluating
from sfumato.features.stages import find_stages, record
from sfumato.models.layers import StagedNetwork, check_sizes


class StageMaps(nn.Module):
    """The maps at the ends of a classifier's stages, finest first, without its head."""

    def __init__(self, classifier: nn.Module, image: Tensor) -> None:
        super().__init__()
        self.names: list[str] = []
        if isinstance(classifier, StagedNetwork):
            self.stem, self.stages = classifier.stem, classifier.stages
            return
        from torchvision.models.feature_extraction import create_feature_extractor

        self.names = [stage.module for stage in find_stages(record(classifier, image))]
        if not self.names:
            raise ValueError(f"{type(classifier).__name__} has no stages that end in feature maps")
        self.stages = create_feature_extractor(classifier, self.names)

    def forward(self, x: Tensor) -> list[Tensor]:
        if self.names:
            found = self.stages(x)
            return [found[name] for name in self.names]
        maps = [self.stem(x)]
        for stage in self.stages.children():
            maps.append(stage(maps[-1]))
        return maps[1:]


class PyramidBackbone(nn.Module):
    """Stage maps from stride `finest` on, a feature pyramid on them, and one coarser level."""

    def __init__(self, maps: StageMaps, image: Tensor, channels: int, finest: int) -> None:
        super().__init__()
        from torchvision.ops import FeaturePyramidNetwork
        from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

        with evaluating(maps):
            shapes = [tuple(each.shape) for each in maps(image)]
        strides = [round(image.shape[-1] / shape[-1]) for shape in shapes]
        self.first = next((n for n, stride in enumerate(strides) if stride >= finest), None)
        if self.first is None:
            raise ValueError(f"finest must be at most {strides[-1]}, got {finest}")
        self.maps = maps.train()
        self.strides = [*strides[self.first :], 2 * strides[-1]]
        inputs = [shape[1] for shape in shapes[self.first :]]
        self.pyramid = FeaturePyramidNetwork(inputs, channels, extra_blocks=LastLevelMaxPool())
        self.out_channels = channels

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = self.maps(x)[self.first :]
        return self.pyramid(OrderedDict((str(n), m) for n, m in enumerate(maps)))


def faster_rcnn(
    classifier: nn.Module,
    *,
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    channels: int = 64,
    hidden: int = 128,
    finest: int = 2,
    anchor_scale: float = 6.0,
    proposals: int = 100,
    detections: int = 50,
    freeze_norm: bool = True,
) -> nn.Module:
    """Put a trained classifier's stem and stages into Faster R-CNN with a feature pyramid.

    Made for small images (32 to 128 pixels), which are used at their own size: torchvision's
    detectors would enlarge them to 800. Levels are the classifier's stages of stride `finest` or
    more and one coarser level from max pooling; each has one anchor size, `anchor_scale` times its
    stride, in the aspect ratios 1/2, 1 and 2. ResNet-8 (strides 1, 2, 4) gives the strides 2, 4, 8
    and anchors of 12, 24 and 48 pixels. Objects are pooled from the level whose anchors they
    resemble. For ImageNet stems and large images take finest=4, anchor_scale=8, channels=256,
    hidden=1024, proposals=1000, detections=100: torchvision's own numbers.

    Args:
        classifier: any of our networks, or torchvision's CNNs; its modules are used, not copied.
        num_classes: classes of objects; the background is added as label 0.
        mean, std: per channel, on the [0, 1] scale, of the data that the classifier was trained on.
        channels: of the pyramid.
        hidden: width of the two layers that judge a proposal.
        finest: smallest stride of the levels.
        anchor_scale: side of a level's anchors in its strides.
        proposals: most proposals of an image.
        detections: most detections of an image.
        freeze_norm: keep the classifier's batch-norm statistics and factors as they are, as is
            usual in fine-tuning. Turn it off for a classifier that was not trained.

    Returns:
        torchvision's `FasterRCNN`. In training `model(images, targets)` gives a dict of losses, in
        evaluation `model(images)` a list of dicts with `boxes`, `scores`, `labels` (1 to
        num_classes); images are lists of (3, H, W) in [0, 1].

    Example:
        >>> from sfumato.models import resnet
        >>> network = resnet(8, num_classes=10, width=4)
        >>> statistics = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
        >>> detector = faster_rcnn(network, num_classes=10, **statistics).eval()
        >>> detector.rpn.anchor_generator.sizes
        ((12.0,), (24.0,), (48.0,))

    Reference:
        Krothapalli & Abbott, Adaptive Label Smoothing, Section 4.3 (transfer to detection).
    """
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    check_number("anchor_scale", anchor_scale, low=0.0, open_low=True)
    sizes = {"channels": channels, "hidden": hidden, "finest": finest, "proposals": proposals}
    check_sizes(num_classes=num_classes, **sizes, detections=detections)
    image = torch.zeros(1, 3, 64, 64)  # only the sizes of its maps are looked at
    backbone = PyramidBackbone(StageMaps(classifier, image), image, channels, finest)
    if freeze_norm:
        _freeze_norm(backbone.maps)
    anchors = tuple((anchor_scale * stride,) for stride in backbone.strides)
    # A box as large as the anchors of a level goes to that level (FPN, Eq. (1)).
    pooling = MultiScaleRoIAlign(
        [str(n) for n in range(len(backbone.strides) - 1)],
        output_size=7,
        sampling_ratio=2,
        canonical_scale=round(anchor_scale * 16 / math.sqrt(2)),
        canonical_level=4,
    )
    detector: nn.Module = FasterRCNN(
        backbone,
        rpn_anchor_generator=AnchorGenerator(anchors, ((0.5, 1.0, 2.0),) * len(anchors)),
        rpn_pre_nms_top_n_train=2 * proposals,
        rpn_pre_nms_top_n_test=proposals,
        rpn_post_nms_top_n_train=proposals,
        rpn_post_nms_top_n_test=proposals,
        rpn_batch_size_per_image=min(256, 2 * proposals),
        box_roi_pool=pooling,
        box_head=TwoMLPHead(channels * 7**2, hidden),
        box_predictor=FastRCNNPredictor(hidden, num_classes + 1),
        box_batch_size_per_image=min(512, proposals),
        box_detections_per_img=detections,
    )
    detector.transform = _own_size(mean, std)
    return detector


def _own_size(mean: Sequence[float], std: Sequence[float]) -> nn.Module:
    """torchvision's standardisation and padding without its resizing."""
    from torchvision.models.detection.transform import GeneralizedRCNNTransform

    class OwnSize(GeneralizedRCNNTransform):
        def resize(self, image: Tensor, target: Any = None) -> tuple[Tensor, Any]:
            return image, target

    # The two sizes are for `resize` only.
    return OwnSize(1, 1, list(mean), list(std))


def _freeze_norm(module: nn.Module) -> None:
    """Batch norm with fixed numbers in place of each batch norm."""
    from torchvision.ops import FrozenBatchNorm2d

    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                fixed = FrozenBatchNorm2d(child.num_features, eps=child.eps)
                fixed.load_state_dict(child.state_dict())
                setattr(parent, name, fixed)
