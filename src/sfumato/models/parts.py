"""The choices that all layers of a network share, and the layers they stand for."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn
from typing_extensions import TypedDict

from sfumato._core.checks import check_choice, check_number
from sfumato.features import Padding, ProbKind, Smooth

Norm = Literal["batch", "group"]
Activation = Literal["relu", "relu6"]


class SmoothOptions(TypedDict, total=False):
    """Spatial smoothing other than the paper's: where, and the parameters of `Smooth`.

    `stages` are numbers of stages from 1, as in Fig. B.2; all that the network usually smooths
    where they are left out. `padding: grow` is the released form, whose maps grow by a point.
    """

    __pydantic_config__ = {"extra": "forbid"}  # type: ignore[misc]  # noqa: RUF012

    stages: list[int]
    kernel: tuple[float, ...]
    prob: ProbKind
    temperature: float
    padding: Padding


@dataclass(frozen=True)
class Parts:
    """What the layers of a network have in common.

    Args:
        norm: `batch`, or `group` where batches are small or split between processes.
        activation: `relu`, or `relu6` everywhere (Park & Kim 2022, Appendix C.3).
        dropout: rate of the dropout layer in each block; 0 for none.
        smooth: spatial smoothing at the ends of stages; True for the paper's.
    """

    norm: Norm = "batch"
    activation: Activation = "relu"
    dropout: float = 0.0
    smooth: bool | SmoothOptions = False

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, get_args(Norm))
        check_choice("activation", self.activation, get_args(Activation))
        check_number("dropout", self.dropout, low=0.0)
        if self.dropout >= 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout!r}")
        if not isinstance(self.smooth, bool | dict):
            raise TypeError(
                "smooth must be True, False or options of Smooth such as {'kernel': (1, 2, 1)}, "
                f"got {self.smooth!r}"
            )
        if isinstance(self.smooth, dict):
            for key in self.smooth:
                check_choice("key of smooth", key, SmoothOptions.__annotations__)

    def smooths(self, stage: int, stages: int, *, usually: bool = True) -> bool:
        """Whether a stage ends with a smoothing layer.

        Args:
            stage: its number, from 1.
            stages: how many the network has.
            usually: whether it does where no stages are named.

        Raises:
            ValueError: the stages that are named are none of the network's.
        """
        if not isinstance(self.smooth, dict) or "stages" not in self.smooth:
            return usually and self.smooth is not False
        named = self.smooth["stages"]
        if not named or not all(number in range(1, stages + 1) for number in named):
            raise ValueError(
                f"smooth.stages must be numbers of stages, 1 to {stages} here, got {named!r}"
            )
        return stage in named

    @property
    def smooth_activates(self) -> bool:
        """Whether a smoothing layer does the activation of the layer before it.

        ReLU(tanh(ReLU(z))) = ReLU(tanh(z)), Eq. (41)-(42): one pass over the map is saved.
        """
        options = self.smooth if isinstance(self.smooth, dict) else {}
        rectifies = options.get("prob", "tanh") != "identity"
        return self.activation == "relu" and rectifies

    def smooth_layer(self, *, inplace: bool) -> OrderedDict[str, nn.Module]:
        """The layer at the end of a stage that is smoothed, by its name."""
        options: SmoothOptions = self.smooth if isinstance(self.smooth, dict) else {}
        kernel = options.get("kernel", (1, 1))
        prob = options.get("prob", "tanh")
        temperature = options.get("temperature", 10.0)
        padding = options.get("padding", "zeros")
        layer = Smooth(kernel, prob=prob, temperature=temperature, padding=padding, inplace=inplace)
        return OrderedDict(smooth=layer)

    def dropout_layer(self) -> OrderedDict[str, nn.Module]:
        """The dropout of a block by its name; empty at rate 0."""
        return OrderedDict(dropout=nn.Dropout(self.dropout)) if self.dropout else OrderedDict()

    def activation_layer(self) -> nn.Module:
        return nn.ReLU(inplace=True) if self.activation == "relu" else nn.ReLU6(inplace=True)

    def norm_layer(self, channels: int) -> nn.Module:
        if self.norm == "batch":
            return nn.BatchNorm2d(channels)
        groups = next(g for g in (8, 4, 2, 1) if channels % g == 0)
        return nn.GroupNorm(groups, channels)


def convolution(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Conv2d:
    """A convolution without bias that keeps the size up to its stride."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
