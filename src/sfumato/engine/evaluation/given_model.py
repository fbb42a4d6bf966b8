"""Any classifier of the user's as a network that the evaluation can run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._core.evaluation_mode import evaluating
from sfumato.models.onnx_models import is_distribution
from sfumato.predictions import DeepEnsemble

GivenModel = nn.Module | Callable[[Tensor], Tensor]


class AsGiven(nn.Module):
    """A model that gets images in the form in which its own loader gives them.

    Args:
        model: a module, which goes into evaluation mode with this one, or a plain function.

    Attributes:
        takes_bytes: whether images in [0, 1] are turned into uint8 first.
    """

    def __init__(self, model: GivenModel) -> None:
        super().__init__()
        self.model = model
        self.takes_bytes = False

    def forward(self, images: Tensor) -> Tensor:
        if self.takes_bytes and images.is_floating_point():
            images = (images * 255).round().to(torch.uint8)
        # The evaluation's own batches are channels-last, which `view` in a model may not like.
        return self.model(images.contiguous())


def as_network(model: GivenModel, ensemble: int | Sequence[GivenModel] | None) -> nn.Module:
    """The network to evaluate: the model itself, or the deep ensemble of it and others.

    Args:
        model: gives logits.
        ensemble: other models, which are averaged with `model`; a number of dropout masks and None
            leave it as it is.

    Raises:
        TypeError: something that can't be called.
        ValueError: no other models, or `model` itself among them.
    """
    network = _as_module("model", model)
    if ensemble is None or isinstance(ensemble, int):
        return network
    others = list(ensemble)
    if not others:
        raise ValueError(
            "ensemble must hold the other models, which are averaged with model; got none"
        )
    if any(each is model for each in others):
        raise ValueError(
            "ensemble must hold the other models only: model is a member anyway and would count "
            "twice"
        )
    return DeepEnsemble([network, *(_as_module("ensemble", each) for each in others)])


def _as_module(name: str, model: Any) -> AsGiven:
    if isinstance(model, type) or not callable(model):
        what = f"the class {model.__name__}" if isinstance(model, type) else repr(model)[:80]
        raise TypeError(
            f"{name} must be an nn.Module or a function from images to logits, got {what}"
        )
    return AsGiven(model)


def members_of(network: nn.Module) -> list[AsGiven]:
    """The user's models behind a network."""
    return [each for each in network.modules() if isinstance(each, AsGiven)]


def try_out(network: nn.Module, images: Tensor, num_classes: int | None) -> None:
    """Give every model one batch and look at what it returns.

    Raises:
        TypeError, ValueError: as `check_logits`; models whose classes differ in number, or are not
            as many as the data's.
    """
    for member in members_of(network):
        with evaluating(member):
            logits = member(images)
        check_logits(logits, images)
        if is_distribution(logits):
            raise ValueError(
                "the model returned probabilities (no one is negative, and each row sums to 1), "
                "where logits are expected: leave its softmax out, or return probs.log()"
            )
        num_classes = num_classes or logits.shape[1]
        if logits.shape[1] != num_classes:
            raise ValueError(
                f"the model returned {logits.shape[1]} logits an image, but the data (or the first "
                f"model) has {num_classes} classes"
            )


def device_of(network: nn.Module, device: torch.device | str | None) -> torch.device:
    """Where the images go: where the caller says, else where the weights are, else the CPU.

    Raises:
        ValueError: the caller names a GPU, and there is none.
    """
    if device is not None:
        named = torch.device(device)
        if named.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device={str(device)!r}: PyTorch finds no CUDA device here. Leave device out, or "
                'say "cpu"'
            )
        return named
    tensors = itertools.chain(network.parameters(), network.buffers())
    return next((each.device for each in tensors), torch.device("cpu"))


def check_logits(logits: Any, images: Tensor) -> None:
    """Raise unless a model's output for a batch is finite logits (N, C).

    Raises:
        TypeError: no tensor, or one of integers.
        ValueError: another shape, or a value that is not finite.
    """
    if not isinstance(logits, Tensor):
        picks = ": evaluate lambda images: model(images).logits" if _has_logits(logits) else ""
        raise TypeError(
            f"the model must return a tensor of logits (N, C), it returned "
            f"{type(logits).__name__}. Wrap it in a function that picks the logits{picks}"
        )
    count, shape = len(images), tuple(logits.shape)
    if logits.ndim != 2 or len(logits) != count or logits.shape[1] < 2:
        raise ValueError(
            f"the model must return logits ({count}, C) with C of 2 or more for {count} images, "
            f"it returned {shape}. Two classes have two logits; features are no logits"
        )
    if not logits.is_floating_point():
        raise TypeError(f"the model's logits must be floating point, got {logits.dtype}")
    rows = logits.isfinite().all(1)
    if not bool(rows.all()):
        first = int((~rows).nonzero()[0])
        raise ValueError(
            f"the model's logits must be finite, got {logits[first].tolist()[:5]} for image "
            f"{first} of a batch. Are the images standardised as in training (mean=, std=)?"
        )


def _has_logits(output: Any) -> bool:
    """Whether it is an output as Hugging Face's models give it."""
    return isinstance(getattr(output, "logits", None), Tensor)
