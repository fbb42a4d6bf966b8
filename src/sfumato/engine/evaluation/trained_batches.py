"""The batches and the loss that a network was trained on, for analyses of that loss.

Appendix A.3 of the spatial smoothing paper: training minimises a regularised loss on augmented
images, and the curvature of another loss on clean images says something else.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato._core.seeds import fold_seed
from sfumato.data import TensorLoader
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.training.transforms import BatchTransform
from sfumato.predictions.training_ensemble import average_passes, repeat_images


@dataclass(frozen=True)
class TrainedBatches:
    """Images and targets after augmentation, soft labels, mixing and mollification.

    Every iteration gives the same batches, whatever random numbers were drawn in between.

    Args:
        loader: of augmented training images.
        inputs: mixes and mollifies a batch; None leaves it as it is.
        with_index: whether a target has its sample's number as a last column, for `TrainedLoss`.
        passes: how often the images are there in a row, for `TrainedLoss` to average; targets are
            there once.
    """

    loader: TensorLoader
    inputs: BatchTransform | None
    with_index: bool
    passes: int = 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, batch in enumerate(self.loader):
            images, target = batch["image"], batch.get("soft_label", batch["label"])
            if self.inputs is not None:
                with torch.random.fork_rng():
                    torch.manual_seed(fold_seed(0, "analysed batch", number))
                    images, target = self.inputs(images, target)
            if self.with_index:
                index = batch["index"].unsqueeze(1)
                columns = target.unsqueeze(1) if target.ndim == 1 else target.double()
                target = torch.cat([columns, index.to(columns.dtype)], 1)
            yield repeat_images(images, self.passes), target


class TrainedLoss:
    """A run's loss as a function of logits and of a target of `TrainedBatches`.

    Args:
        loss: in evaluation mode it reads a history of samples and never adds to it.
        passes: stochastic passes whose mean probability was trained.
    """

    def __init__(self, loss: nn.Module, passes: int = 1) -> None:
        self.loss = loss.eval()
        self.passes = passes
        self.takes_index = "index" in inspect.signature(loss.forward).parameters

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        value: Tensor
        logits = self.average(logits)
        if not self.takes_index:
            value = self.loss(logits, target)
            return value
        known, index = self.split(target, logits.dtype)
        value = self.loss(logits, known, index=index)
        return value

    def average(self, logits: Tensor) -> Tensor:
        """One row for each target: the logarithm of the mean probability of several passes."""
        return logits if self.passes == 1 else average_passes(logits, self.passes)

    def split(self, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Labels, or probabilities of a dtype, and the samples' numbers where they are known."""
        if not self.takes_index:
            return target, None
        index = target[:, -1].long()
        if target.is_floating_point():
            return target[:, :-1].to(dtype), index
        return target[:, 0], index


def describe_objective(config: RunConfig) -> str:
    """What a run was trained for, in a few words."""
    said = [f"loss {config.loss['name']}"]
    for key in ("augment", "inputs", "labels"):
        spec = getattr(config, key)
        if spec is not None:
            said.append(f"{key} {spec['name']}")
    if config.objects is not None:
        said.append("objects")
    if config.train.copies is not None:
        said.append(f"{config.train.copies.count} copies")
    if config.train.passes > 1:
        said.append(f"{config.train.passes} passes")
    said.append(f"weight decay {config.train.weight_decay:g}")
    return ", ".join(said)
