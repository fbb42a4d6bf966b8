"""How a detector learns from a batch: by the losses that it returns itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sfumato.data.detection import DetectionBatch, Objects, Target
from sfumato.engine.training.step import Totals


class SummedLosses(nn.Module):
    """The sum of the losses that a detector returns in training."""

    def forward(self, losses: dict[str, Tensor]) -> Tensor:
        return torch.stack(list(losses.values())).sum()


@dataclass
class DetectionStep:
    """The step of `Trainer` for torchvision's detectors, whose sampled proposals are random."""

    device: torch.device
    loss: nn.Module = field(default_factory=SummedLosses)

    def prepare(self, number: int, batch: DetectionBatch) -> DetectionBatch:
        """The batch as it is: flips are drawn by its loader."""
        return batch

    def __call__(
        self, model: nn.Module, number: int, batch: DetectionBatch
    ) -> tuple[Tensor, Totals]:
        """The sum of the losses; the log gets each of them too."""
        targets = [detector_target(each, self.device) for each in batch.objects]
        losses: dict[str, Tensor] = model(batch.images, targets)
        total: Tensor = self.loss(losses)
        size = torch.tensor(len(batch.images), device=self.device)
        each = {"train_loss": total, **{f"train_{name}": loss for name, loss in losses.items()}}
        return total, {name: (loss.detach().double() * size, size) for name, loss in each.items()}


def detector_target(objects: Objects, device: torch.device) -> Target:
    """What torchvision's detectors train on: label 0 is the background, crowds are left out."""
    single = ~objects.crowd
    return {
        "boxes": objects.boxes[single].to(device),
        "labels": objects.labels[single].to(device) + 1,
    }
