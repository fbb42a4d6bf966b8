"""U-Net for semantic segmentation, with MC dropout in its deep half and spatial smoothing.

U-Net: Convolutional Networks for Biomedical Image Segmentation, Ronneberger et al., MICCAI 2015; as
used in Blurs Behave Like Ensembles, Park and Kim, ICML 2022, Appendix A.2.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._core.checks import check_integer
from sfumato.models.layers import (
    Activation,
    LayerOptions,
    Norm,
    SmoothOptions,
    begin_convolutions,
    check_sizes,
    convolution,
)

_DROPOUTS_EACH_WAY = 3


class UNet(nn.Module):
    """An encoder that halves the resolution, a decoder that doubles it, and skips between them.

    `smooths[i]` is what happens to the output of `encoder[i]` before sub-sampling (the identity
    without smoothing); the skip connection takes the output itself.
    """

    def __init__(
        self,
        encoder: Sequence[nn.Module],
        smooths: Sequence[nn.Module],
        middle: nn.Module,
        decoder: Sequence[nn.Module],
        head: nn.Module,
    ) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(encoder)
        self.smooths = nn.ModuleList(smooths)
        self.middle = middle
        self.decoder = nn.ModuleList(decoder)
        self.head = head
        begin_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, num_classes, H, W) of images (N, in_channels, H, W)."""
        smallest = 2 ** len(self.encoder)
        if x.ndim != 4 or min(x.shape[-2:]) < smallest:
            raise ValueError(
                f"images must be (N, C, H, W) of at least {smallest} x {smallest} pixels for a "
                f"U-Net of depth {len(self.encoder)}, got {tuple(x.shape)}"
            )
        skips = []
        for block, smooth in zip(self.encoder, self.smooths, strict=True):
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(smooth(x), 2)
        x = self.middle(x)
        for block in self.decoder:
            skip = skips.pop()
            # To the size of the skip, which an odd height or width doesn't reach by doubling.
            x = F.interpolate(x, size=skip.shape[-2:], mode="nearest")
            x = block(torch.cat([skip, x], 1))
        return self.head(x)


def unet(
    *,
    num_classes: int,
    in_channels: int = 3,
    width: int = 16,
    depth: int = 4,
    dropout: float = 0.0,
    smooth: bool | SmoothOptions = False,
    norm: Norm = "batch",
    activation: Activation = "relu",
) -> UNet:
    """Build a U-Net: two 3 x 3 convolutions a block, `width` channels doubled at each level.

    With `dropout`, six layers of it: after the three deepest blocks on the way down (the middle
    one included) and the first three on the way up, blocks 3 to 8 of the 9 at depth 4. With
    `smooth`, a smoothing layer before each sub-sampling of the encoder.

    Args:
        num_classes: number of logits of each pixel.
        in_channels, norm, activation: as in `resnet`.
        width: channels of the first block; 64 in the original, 16 is quick on a CPU.
        depth: number of sub-samplings; images need 2 ** depth pixels a side, of any aspect.
        dropout: rate of the MC dropout layers; the authors' SegNet has 0.5. 0 is none. Fewer than
            six layers are there only for `depth` below 3.
        smooth: spatial smoothing; True is the paper's, a mapping says before which of the
            sub-samplings and how, see `SmoothOptions`.

    Shape:
        images (N, in_channels, H, W); logits (N, num_classes, H, W).

    Example:
        >>> network = unet(num_classes=11, width=4, dropout=0.5, smooth=True)
        >>> network(torch.zeros(2, 3, 45, 60)).shape
        torch.Size([2, 11, 45, 60])

    Reference:
        Park and Kim 2022, Appendix A.2, which leaves open what the skips carry; here they carry
        the map before its smoothing, so that borders stay sharp.
    """
    check_integer("num_classes", num_classes, low=2)
    check_sizes(in_channels=in_channels, width=width, depth=depth)
    shared = LayerOptions(norm=norm, activation=activation, dropout=dropout, smooth=smooth)
    widths = [width * 2**level for level in range(depth + 1)]
    levels = list(enumerate(zip([in_channels, *widths], widths, strict=False)))
    deepest = depth - _DROPOUTS_EACH_WAY
    down = [_block(shared, *sizes, drops=level > deepest) for level, sizes in levels]
    up = [
        _block(shared, inputs + outputs, inputs, drops=level > deepest)
        for level, (inputs, outputs) in reversed(levels[1:])
    ]
    smooths = [nn.Sequential() for _ in range(depth)]
    for level in range(1, depth + 1):
        if shared.smooths(level, depth):
            smooths[level - 1] = nn.Sequential(shared.smooth_layer(inplace=False))
    return UNet(down[:-1], smooths, down[-1], up, nn.Conv2d(width, num_classes, 1))


def _block(shared: LayerOptions, inputs: int, outputs: int, *, drops: bool) -> nn.Sequential:
    """Two convolutions, each with norm and activation, and dropout behind them."""
    return nn.Sequential(
        OrderedDict(
            conv1=convolution(inputs, outputs, 3),
            norm1=shared.norm_layer(outputs),
            act1=shared.activation_layer(),
            conv2=convolution(outputs, outputs, 3),
            norm2=shared.norm_layer(outputs),
            act2=shared.activation_layer(),
            **(shared.dropout_layer() if drops else {}),
        )
    )
