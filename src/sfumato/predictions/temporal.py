"""Temporal smoothing: an ensemble over the last frames of a video, at the cost of one pass.

Vector Quantized Bayesian Neural Network Inference for Data Streams, Park et al., AAAI 2021; as
used in Blurs Behave Like Ensembles, Park and Kim, ICML 2022, Eq. (3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_floating, check_integer, check_number
from sfumato.predictions.scalers import adopt_shapes


def temporal_weights(length: int, decay: float, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Importance exp(-decay k) of the frame k steps ago, k = 0 ... length; not normalised.

    Example:
        >>> temporal_weights(2, 0.8)
        tensor([1.0000, 0.4493, 0.2019])
    """
    check_integer("length", length, low=0)
    check_number("decay", decay, low=0.0)
    return torch.tensor([math.exp(-decay * k) for k in range(length + 1)], dtype=dtype)


_STATE = ("history", "seen", "last_frame")


class TemporalStep(nn.Module):
    """One step of temporal smoothing with explicit state, for ONNX and other stateless runtimes.

    Shape:
        probs: (S, ...), one frame of each of S streams.
        history: (length, S, ...), the frames before, the latest first.
        seen: (S,), how many of them are real, as float.
    """

    def __init__(self, length: int = 5, decay: float = 0.8) -> None:
        super().__init__()
        self.length = length
        # Numbers, since a buffer has one precision and the frames may have another.
        self._weights = temporal_weights(length, decay, dtype=torch.float64).tolist()

    def forward(
        self, probs: Tensor, history: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The smoothed frame, and the state for the next one."""
        steps = torch.arange(self.length, device=probs.device)[:, None]
        past = torch.tensor(self._weights[1:], dtype=probs.dtype, device=probs.device)[:, None]
        weights = past * (steps < seen).to(probs.dtype)  # (L, S)
        shape = (*weights.shape, *[1] * (probs.ndim - 1))
        total = probs + (weights.view(shape) * history).sum(0)  # Eq. (3)
        smoothed = total / (1 + weights.sum(0)).view(shape[1:])
        history = torch.cat([probs.unsqueeze(0), history])[: self.length]
        return smoothed, history, (seen + 1).clamp(max=self.length)


class TemporalSmoother(nn.Module):
    """Averages each frame's probabilities with those of the frames before it.

    p_t <- sum_k w_k p_{t-k} / sum_k w_k over k = 0 ... min(length, frames seen), w_k =
    exp(-decay k), Eq. (3). Frames that are alike are as good as samples of the same frame, at one
    pass each. Memory is `length` frames.

    Args:
        length: number of past frames, K.
        decay: rate of the exponential importance.
        cut_threshold: where given, a stream starts anew when its `frame` differs from the one
            before by more than this, as mean absolute difference of pixel values.

    Shape:
        probs: (S, C) or (S, C, H, W), one frame of each of S streams; the same shape every time.

    Example:
        >>> smoother = TemporalSmoother(length=5, decay=0.8)
        >>> smoother(torch.tensor([[1.0, 0.0]]))
        tensor([[1., 0.]])
        >>> smoother(torch.tensor([[0.0, 1.0]]))
        tensor([[0.3100, 0.6900]])

    Reference:
        Park and Kim 2022, Eq. (3), with 5 past frames and decay e^-0.8 a frame (Appendix A.2).
    """

    history: Tensor
    seen: Tensor
    last_frame: Tensor

    def __init__(
        self, length: int = 5, decay: float = 0.8, *, cut_threshold: float | None = None
    ) -> None:
        super().__init__()
        if cut_threshold is not None:
            check_number("cut_threshold", cut_threshold, low=0.0)
        self.step = TemporalStep(length, decay)
        self.decay = decay
        self.cut_threshold = cut_threshold
        for name in _STATE:
            self.register_buffer(name, torch.empty(0))
        self.register_load_state_dict_pre_hook(adopt_shapes)

    def forward(self, probs: Tensor, frame: Tensor | None = None) -> Tensor:
        """The smoothed probabilities; `frame` (S, ...) are the images, for `cut_threshold`."""
        check_floating("probs", probs)
        if not self.seen.numel():
            self.history = probs.new_zeros((self.step.length, *probs.shape))
            self.seen = probs.new_zeros(probs.shape[0])
        if self.history.shape[1:] != probs.shape:
            raise ValueError(
                f"probs must keep its shape {tuple(self.history.shape[1:])} along a stream, got "
                f"{tuple(probs.shape)}. Call reset() before other streams."
            )
        self._detect_cuts(frame)
        smoothed, self.history, self.seen = self.step(probs, self.history, self.seen)
        # Or the graph of the whole stream would be kept.
        self.history = self.history.detach()
        return smoothed

    def reset(self, streams: Tensor | None = None) -> None:
        """Forget the past of all streams, or of those where the boolean `streams` (S,) is true."""
        if streams is None:
            for name in _STATE:
                setattr(self, name, torch.empty(0))
            return
        if streams.dtype != torch.bool or streams.shape != self.seen.shape:
            raise ValueError(
                f"streams must be boolean {tuple(self.seen.shape)}, got {streams.dtype} "
                f"{tuple(streams.shape)}"
            )
        self.seen = torch.where(streams.to(self.seen.device), 0.0, self.seen)

    def _detect_cuts(self, frame: Tensor | None) -> None:
        if self.cut_threshold is None:
            return
        if frame is None or len(frame) != len(self.seen):
            raise ValueError("cut_threshold needs the images: call with frame=, one per stream")
        frame = frame.float()
        if self.last_frame.shape == frame.shape:
            change = (frame - self.last_frame).abs().flatten(1).mean(1)
            self.reset(change > self.cut_threshold)
        self.last_frame = frame

    def extra_repr(self) -> str:
        kept = math.exp(-self.decay)
        return f"length={self.step.length}, decay={self.decay:g} ({kept:.2f} a frame)"
