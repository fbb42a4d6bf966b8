"""Finding the ends of stages: the trunk, the levels, the stem."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.features.stages import find_stages, map_size, record


def ends(model: nn.Module, size: int = 32) -> list[str]:
    return [stage.module for stage in find_stages(record(model, torch.randn(2, 3, size, size)))]


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU(inplace=True))


def head(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4))


class Residual(nn.Module):
    """Strided in its second convolution, as in a ResNet bottleneck, and in its shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 1)
        self.second = nn.Conv2d(outputs, outputs, 3, stride, 1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.layer(x.mean((2, 3), keepdim=True)).sigmoid()


def test_plain_network() -> None:
    model = nn.Sequential(
        conv(3, 4), nn.MaxPool2d(2), conv(4, 8), nn.MaxPool2d(2), conv(8, 8), head(8)
    )
    assert ends(model) == ["0", "2", "4"]


def test_both_branches_of_a_strided_block_start_after_the_stage() -> None:
    model = nn.Sequential(Residual(3, 4, 1), Residual(4, 8, 2), Residual(8, 8, 2), head(8))
    assert ends(model) == ["0", "1", "2"]


def test_squeeze_and_excitation_is_no_global_pooling() -> None:
    model = nn.Sequential(
        conv(3, 4), SqueezeExcite(4), conv(4, 4), conv(4, 8, 2), SqueezeExcite(8), head(8)
    )
    assert ends(model) == ["2", "4"]


def test_nothing_in_a_stem() -> None:
    stem = nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    assert ends(nn.Sequential(stem, conv(4, 4), conv(4, 4), conv(4, 8, 2), head(8))) == ["2", "3"]
    deep = nn.Sequential(conv(3, 4, 2), conv(4, 4), conv(4, 4), nn.MaxPool2d(3, 2, 1))
    assert ends(nn.Sequential(deep, conv(4, 4), conv(4, 4), conv(4, 8, 2), head(8))) == ["2", "3"]
    lone = nn.Sequential(conv(3, 4), conv(4, 4, 2), conv(4, 4), conv(4, 8, 2), head(8))
    assert ends(lone) == ["2", "3"]


def test_unet_encoder(unet: nn.Module) -> None:
    assert ends(unet) == ["down1", "down2"]


def test_classifier_on_the_flattened_map() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(8 * 16 * 16, 4))
    assert ends(nn.Sequential(conv(3, 4), conv(4, 4), nn.MaxPool2d(2), conv(4, 8), flat)) == [
        "1",
        "3",
    ]


def test_output_of_its_own_type() -> None:
    class Answer:
        def __init__(self, logits: Tensor) -> None:
            self.logits = logits

    class Model(nn.Sequential):
        def forward(self, x: Tensor) -> Answer:  # type: ignore[override]
            return Answer(super().forward(x))

    assert ends(Model(conv(3, 4), conv(4, 4), nn.MaxPool2d(2), conv(4, 8), head(8))) == ["1", "3"]


def test_no_stage_in_patches() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, 8, 8, 8)
            self.layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(self.patch(x).flatten(2).transpose(1, 2)).mean(1)

    assert ends(Patches()) == []


def test_function_without_module_is_explained() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU()
            self.a, self.b = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.ones(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            x = F.max_pool2d(F.conv2d(F.conv2d(x, self.a, padding=1), self.b[..., None, None]), 2)
            return x.mean((2, 3))

    with pytest.raises(ValueError, match="no module returns it"):
        ends(Bare())


def test_map_size() -> None:
    image = (1, 3, 64, 96)
    assert map_size((1, 256, 16, 24), image) == (16, 24, False)
    assert map_size((1, 16, 24, 256), image) == (16, 24, True)
    assert map_size((1, 256, 1, 1), image) == (1, 1, False)
    assert map_size((1, 8, 8, 12), (1, 3, 32, 32)) == (8, 8, True)
    assert map_size((1, 8, 8, 8), (1, 3, 32, 32)) == (8, 8, False)
    assert map_size((1, 384, 96), image) is None
    assert map_size((1, 7, 384, 96), image) is None


def test_recording_leaves_the_model_alone() -> None:
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.Dropout(), head(4)).train()
    model[2].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    trace = record(model, torch.randn(3, 3, 8, 8))
    torch.random.set_rng_state(state)
    assert trace.steps[0].shape == (1, 3, 8, 8)
    assert model.training
    assert not model[2].training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
