"""How steady a classifier stays while an image changes little by little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sfumato._core.seeds import fold_seed
from sfumato.corruptions import is_ordered, perturb
from sfumato.data import ArrayDataset
from sfumato.data.normalise import Normalise
from sfumato.engine.evaluation.predict import predict_batches
from sfumato.metrics import consistency, cross_entropy_consistency, relative_confidence

_IMAGES_AT_A_TIME = 16
_SHOWN = 3


def evaluate_steadiness(
    model: nn.Module,
    data: ArrayDataset,
    name: str,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    seed: int = 0,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """Consistency along the frames of one kind of perturbation, averaged over images.

    Args:
        model: gives logits; evaluated in evaluation mode.
        data: clean images.
        name: one of `corruptions.PERTURBATIONS` or `HARDER_PERTURBATIONS`.
        mean: per channel, for standardising after the change.
        std: per channel.
        seed: of noise and snow; two models see the same frames.
        device: where to compute.

    Returns:
        `consistency` and `flip_rate` (to the frame before; of noise, to the clean first one), and
        `cec`, the cross-entropy consistency, and the mean `relative_confidence` of all frames;
        `along` is the relative confidence of the first images in each of their frames.
    """
    device = data.images.device if device is None else device
    generator = torch.Generator().manual_seed(fold_seed(seed, "perturbation", name))

    def sequences() -> Iterator[tuple[Tensor, Tensor]]:
        parts = (each.split(_IMAGES_AT_A_TIME) for each in (data.images, data.labels))
        for images, labels in zip(*parts, strict=True):
            yield perturb(images, name, generator=generator), labels.cpu()

    normalise = Normalise(data.images.shape[1], mean, std).to(device)
    return measure_steadiness(model, sequences(), name, normalise=normalise, device=device)


def measure_steadiness(
    model: nn.Module,
    sequences: Iterable[tuple[Tensor, Tensor | None]],
    name: str,
    *,
    normalise: nn.Module,
    device: torch.device | str,
) -> dict[str, Any]:
    """`evaluate_steadiness` of frames that are there.

    Args:
        model: gives logits; evaluated in evaluation mode.
        sequences: uint8 (N, T, C, H, W), and labels (N,); without them there is no relative
            confidence.
        name: of the perturbation.
        normalise: what images go through before the network.
        device: where to compute.
    """
    reference: Literal["previous", "first"] = "previous" if is_ordered(name) else "first"
    kept, moved, relative = [], [], []

    def batches() -> Iterator[tuple[Tensor, tuple[int, Tensor | None]]]:
        for frames, labels in sequences:
            single = frames.flatten(0, 1).to(device)
            yield normalise(single, torch.channels_last), (len(frames), labels)

    def take(logits: Tensor, known: tuple[int, Tensor | None]) -> None:
        count, labels = known
        probs = logits.float().cpu().softmax(1).unflatten(0, (count, -1))
        if labels is not None:
            relative.append(relative_confidence(probs, labels))  # (N, T)
        kept.append(consistency(probs, reference=reference))
        moved.append(cross_entropy_consistency(probs))

    predict_batches(model, batches(), take)
    same = float(torch.cat(kept).double().mean())
    values: dict[str, Any] = {
        "consistency": same,
        "flip_rate": 1 - same,
        "cec": float(torch.cat(moved).double().mean()),
    }
    if relative:
        every = torch.cat(relative)
        values["relative_confidence"] = float(every.mean(1).double().mean())
        values["along"] = every[:_SHOWN].tolist()
    return values
