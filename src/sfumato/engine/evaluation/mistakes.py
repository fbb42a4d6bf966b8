"""The most overconfident mistakes of a run, with small pictures or first words, for its report."""

from __future__ import annotations

import base64
import io

import torch
from PIL import Image
from torch import Tensor

from sfumato._core.checks import check_integer
from sfumato._core.files import write_json
from sfumato.data import ArrayDataset
from sfumato.engine.runs.directory import Predictions, RunDirectory

LARGEST_SIDE = 64  # of a thumbnail, in pixels
WORDS = 25  # of a text


def write_mistakes(
    run: RunDirectory, found: Predictions, data: ArrayDataset, *, count: int = 12
) -> None:
    """Write `samples.json`: the most confident wrong predictions, of images or texts.

    Args:
        run: the run.
        found: predictions of `data`, in any order.
        data: the images, with the index that the predictions name.
        count: how many to keep at most.
    """
    check_integer("count", count, low=0)
    if data.vocabulary is None and data.images.shape[1] not in (1, 3):
        return  # no picture that a page could show
    probs = found.logits.double().softmax(1)
    confidence, predicted = probs.max(1)
    wrong = (predicted != found.labels).nonzero().flatten()
    order = wrong[confidence[wrong].argsort(descending=True, stable=True)][:count]
    position = {int(value): place for place, value in enumerate(data.index)}
    samples = [
        {
            "index": int(found.index[i]),
            "label": data.classes[int(found.labels[i])],
            "predicted": data.classes[int(predicted[i])],
            "confidence": float(confidence[i]),
            "true_confidence": float(probs[i, found.labels[i]]),
            **_shown(data, position[int(found.index[i])]),
        }
        for i in order
    ]
    write_json(run.path / "samples.json", {"samples": samples})


def _shown(data: ArrayDataset, place: int) -> dict[str, str]:
    """A small picture of an image, or how a text begins."""
    if data.vocabulary is not None:
        return {"text": data.vocabulary.decode(data.images[place][:WORDS])}
    return {"image": thumbnail(data.images[place])}


def thumbnail(image: Tensor) -> str:
    """A uint8 image (C, H, W) of 1 or 3 channels as a data address that a page can show."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(
            f"image must be uint8 (1 or 3, H, W), got {image.dtype} {tuple(image.shape)}"
        )
    pixels = image.permute(1, 2, 0).cpu().numpy()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=90, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
