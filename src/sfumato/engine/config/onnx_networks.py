"""Networks in ONNX files as a study names them: `onnx:network.onnx`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from sfumato._core.evaluation_mode import evaluating
from sfumato.engine.config.weight_files import check_file_digest, network_digest
from sfumato.models.onnx_models import OnnxModel, Outputs


def onnx_network(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    image_size: tuple[int, int],
    outputs: Outputs = "logits",
    file_digest: str | None = None,
) -> nn.Module:
    """A classifier in an ONNX file, to be evaluated: it can't be trained.

    Args:
        name: the file.
        num_classes: number of logits.
        in_channels: channels of the data's images.
        image_size: their height and width.
        outputs: what the file gives, "logits" or "probabilities".
        file_digest: of the file's content, which is part of the run's name.
    """
    check_file_digest(name, file_digest, network_digest)
    model = OnnxModel(Path(name), outputs=outputs)
    blank = torch.zeros(1, in_channels, *image_size)
    with evaluating(model):
        found = model(blank).shape[1]
    if found != num_classes:
        raise ValueError(f"{name}: gives {found} classes, the data has {num_classes}")
    return model
