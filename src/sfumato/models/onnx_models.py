"""Networks in ONNX files, for prediction: onnxruntime behind the interface of a module."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from sfumato._core.checks import are_probabilities, check_choice
from sfumato._core.exports import optional
from sfumato._core.files import ContentError, checked_file, expanded, is_file, read_bytes
from sfumato._core.text import brief

Outputs = Literal["logits", "probabilities"]
_MOST_BYTES = 2**31  # of protobuf
_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(double)": torch.float64,
    "tensor(uint8)": torch.uint8,
}


class OnnxModel(nn.Module):
    """A classifier in an ONNX file: images in, logits out, computed by onnxruntime on the CPU.

    It has no weights that PyTorch knows of: it can't be trained, has no dropout to sample and no
    gradients.

    Args:
        file: with one input of images (N, C, H, W) and one output (N, K). Sizes that the file fixes
            are held; a fixed N is met by padding.
        outputs: what the file's output is. Probabilities become their logarithms, which serve as
            logits.
    """

    def __init__(self, file: str | Path, *, outputs: Outputs = "logits") -> None:
        super().__init__()
        check_choice("outputs", outputs, get_args(Outputs))
        self.file, self.outputs = expanded(file), outputs
        self._session = _open(self.file)
        given, made = self._session.get_inputs(), self._session.get_outputs()
        if len(given) != 1 or len(given[0].shape) != 4 or given[0].type not in _TYPES:
            raise ContentError(
                f"{self.file}: expected one input of images (N, C, H, W) in floating point or "
                f"uint8, the file has {[(each.name, each.type, each.shape) for each in given]}"
            )
        if len(made) != 1 or len(made[0].shape) != 2:
            raise ContentError(
                f"{self.file}: expected one output (N, classes), the file has "
                f"{[(each.name, each.shape) for each in made]}. Export the logits of a classifier "
                "alone"
            )
        self._input, self._dtype = given[0].name, _TYPES[given[0].type]
        # Names, or None, stand where any size will do.
        self._sizes = [each if isinstance(each, int) else None for each in given[0].shape]

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, K) on the device of the images."""
        self._check_images(images)
        batch = self._sizes[0] or max(1, len(images))
        parts = [self._run(part, batch) for part in images.detach().cpu().split(batch)]
        output = torch.cat(parts) if parts else torch.empty(0, 0)
        return self._logits(output).to(images.device)

    def _run(self, images: Tensor, batch: int) -> Tensor:
        missing = batch - len(images) if self._sizes[0] else 0
        padded = torch.cat([images, images[-1:].expand(missing, -1, -1, -1)])
        given = padded.to(self._dtype).contiguous().numpy()
        try:
            (output,) = self._session.run(None, {self._input: given})
        except Exception as error:  # its errors share no class but that of all
            raise ValueError(f"{self.file}: onnxruntime can't compute it: {_said(error)}") from None
        return torch.from_numpy(output)[: len(images)]

    def _logits(self, output: Tensor) -> Tensor:
        values = output.float()
        if self.outputs == "probabilities":
            # The logarithm of 0 would make differences of logits nan.
            return values.clamp_min(torch.finfo(values.dtype).tiny).log()
        if are_probabilities(values):
            raise ValueError(
                f"{self.file}: the outputs are probabilities (no one is negative, and each row "
                "sums to 1), where logits were expected: say outputs: probabilities"
            )
        return values

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless the file takes images of this shape (N, C, H, W)."""
        wanted = ", ".join("any" if size is None else str(size) for size in self._sizes[1:])
        fits = len(shape) == 4 and all(
            size in (None, found) for size, found in zip(self._sizes[1:], shape[1:], strict=True)
        )
        if not fits:
            raise ValueError(
                f"{self.file}: takes images (N, {wanted}), got {shape}. Bring the data to that "
                "size, or export the network for this one"
            )

    def _check_images(self, images: Tensor) -> None:
        self.check_shape(tuple(images.shape))
        if (self._dtype == torch.uint8) != (images.dtype == torch.uint8):
            raise TypeError(f"{self.file}: takes images of {self._dtype}, got {images.dtype}")


def _open(file: Path) -> Any:
    if not is_file(file):
        raise FileNotFoundError(brief(f"{file}: no such ONNX file"))
    onnxruntime = optional("onnxruntime", f"{file}: networks in ONNX files need", "export")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3  # errors; how it divides a graph is nobody's concern here
    try:
        return onnxruntime.InferenceSession(
            checked_file(file), settings, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # its errors share no class but that of all
        raise ValueError(f"{file}: onnxruntime can't read it: {_said(error)}") from None


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def weights_elsewhere(file: Path) -> set[Path]:
    """The files besides an ONNX file that it names as those of its weights."""
    facts, real = file.stat(), file.resolve()
    names = _locations(real, facts.st_mtime_ns, facts.st_size)
    # onnxruntime looks beside a link or beside its target, depending on its version.
    found = (folder / name for folder in (file.parent, real.parent) for name in names)
    return {each.resolve() for each in found if is_file(each)}


@functools.lru_cache(maxsize=64)
def _locations(file: Path, changed: int, size: int) -> frozenset[str]:
    """Kept as long as the file stays: every run of a study asks."""
    content = read_bytes(file, most=_MOST_BYTES)
    if b"location" not in content:  # as of most networks, which need no package onnx then
        return frozenset()
    onnx = optional("onnx", f"{file}: networks in ONNX files need", "export")
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # its errors share no class in all versions of protobuf
        raise ValueError(f"{file}: onnx can't read it: {_said(error)}") from None
    return frozenset(_named(model))


def _named(message: Any) -> Iterator[str]:
    """The location of every tensor in a message of protobuf, of graphs in graphs too."""
    if getattr(message, "key", None) == "location":
        yield message.value
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from _named(each)
