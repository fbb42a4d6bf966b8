"""U-Net: sizes, the places of dropout and smoothing, and MC sampling through its skips."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.features import Smooth
from sfumato.models import torchvision_segmentation, unet
from sfumato.models.libraries import PixelLogits
from sfumato.predictions import MCDropout


@pytest.mark.parametrize("size", [(16, 16), (45, 60), (37, 19), (180, 240)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_any_size_keeps_its_size(size: tuple[int, int], layout: torch.memory_format) -> None:
    network = unet(num_classes=5, in_channels=1, width=2, smooth=True)
    network.eval().to(memory_format=layout)
    images = torch.rand(1, 1, *size).contiguous(memory_format=layout)
    assert network(images).shape == (1, 5, *size)


def test_too_small_images_say_so() -> None:
    with pytest.raises(ValueError, match=r"at least 16 x 16 pixels for a U-Net of depth 4"):
        unet(num_classes=2, width=2)(torch.zeros(1, 3, 15, 40))


@pytest.mark.parametrize("depth", [3, 4, 5])
def test_six_dropout_layers_in_the_deep_half(depth: int) -> None:
    network = unet(num_classes=2, width=2, depth=depth, dropout=0.5)
    blocks = [*network.encoder, network.middle, *network.decoder]
    where = [
        number
        for number, block in enumerate(blocks, start=1)
        if any(isinstance(part, nn.Dropout) for part in block)
    ]
    assert where == list(range(depth - 1, depth + 5))  # blocks 3 to 8 at depth 4
    assert not any(isinstance(m, nn.Dropout) for m in unet(num_classes=2, width=2).modules())


def test_each_subsampling_sees_a_smoothed_map_and_each_skip_a_sharp_one() -> None:
    network = unet(num_classes=2, width=2, depth=3, smooth=True).eval()
    assert sum(isinstance(m, Smooth) for m in network.modules()) == 3
    seen: dict[str, torch.Tensor] = {}
    network.encoder[0].register_forward_hook(lambda m, i, o: seen.update(skip=o))
    network.encoder[1].register_forward_pre_hook(lambda m, i: seen.update(down=i[0]))
    network.decoder[-1].register_forward_pre_hook(lambda m, i: seen.update(up=i[0]))
    with torch.no_grad():
        network(torch.rand(1, 3, 16, 16))
        expected = nn.functional.max_pool2d(Smooth()(seen["skip"]), 2)
    torch.testing.assert_close(seen["down"], expected)
    torch.testing.assert_close(seen["up"][:, :2], seen["skip"])


def test_depth_widens_the_view() -> None:
    reach = []
    for depth in (1, 3):
        network = unet(num_classes=2, width=2, depth=depth).eval()
        images = torch.rand(1, 3, 64, 64, requires_grad=True)
        network(images)[0, 0, 0, 0].backward()
        assert images.grad is not None
        reach.append(int(images.grad.abs().sum((0, 1, 2)).nonzero().max()))
    # Depth 1: blocks of two 3 x 3 convolutions at steps of 1, 2 and 1 pixels, and the pooling.
    assert reach[0] <= 2 + 4 + 2 + 2 < reach[1]


def test_mc_dropout_folds_skips_from_before_the_first_dropout() -> None:
    network = unet(num_classes=3, width=2, depth=4, dropout=0.5).eval()
    images = torch.rand(2, 3, 20, 20)
    sampler = MCDropout(network, samples=4, max_batch=8)
    with torch.no_grad():
        folded = sampler(images)
    assert sampler._folds
    torch.testing.assert_close(folded.sum(1), torch.ones(2, 20, 20))
    # The mean over many masks is that of single passes, in law.
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        many = MCDropout(network, 200, max_batch=8)(images, generator=generator)
        for module in network.modules():
            module.training = isinstance(module, nn.Dropout)
        passes = torch.stack([network(images).softmax(1) for _ in range(200)]).mean(0)
    assert float((many - passes).abs().mean()) < 0.03


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("depth", 0, "depth must be at least 1"),
        ("width", 0, "width must be at least 1"),
        ("num_classes", 1, "num_classes must be at least 2"),
        ("dropout", 1.0, r"dropout must be in \[0, 1\)"),
    ],
)
def test_bad_arguments(name: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unet(**{"num_classes": 2, name: value})  # type: ignore[arg-type]


def test_torchvision_segmentation_gives_logits_and_downloads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("tried to download")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)
    network = torchvision_segmentation("deeplabv3_mobilenet_v3_large", num_classes=7).eval()
    assert isinstance(network, PixelLogits)
    with torch.no_grad():
        assert network(torch.rand(1, 3, 40, 56)).shape == (1, 7, 40, 56)
    with pytest.raises(ValueError, match="no segmentation model 'resnet18'; it has deeplabv3"):
        torchvision_segmentation("resnet18", num_classes=7)
