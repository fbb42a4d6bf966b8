"""Mollification of one sample, for pipelines that transform samples and not batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torchvision import tv_tensors
from torchvision.transforms import v2

from sfumato._core.checks import check_images
from sfumato._core.seeds import fold_seed
from sfumato.inputs.mollify import Mollify


class MollifySample(v2.Transform):
    """`Mollify` as a torchvision v2 transform of one (image, label) pair.

    The last transform of a dataset's `transforms=`, after the conversion to floating point and the
    normalisation. `Mollify` on batches, in the collate function or the training loop, is faster.

    Args:
        mollify: what to do, with its parameters.
        generator: where to draw from; None is torch's global generator. Each worker of a DataLoader
            seeds its copy by the generator's own seed and by its worker seed, which
            `DataLoader(generator=...)` makes reproducible.

    Shape:
        image: (C, H, W), floating point. label: an integer, or soft labels (num_classes,).
        Returns the image, of the type it had, and soft labels (num_classes,).

    Example:
        >>> transform = v2.Compose([
        ...     v2.ToDtype(torch.float32, scale=True),
        ...     MollifySample(Mollify(10, mean=(0.5,), std=(0.25,))),
        ... ])
        >>> image = tv_tensors.Image(torch.zeros(1, 8, 8, dtype=torch.uint8))
        >>> image, label = transform(image, 3)
        >>> type(image).__name__, label.shape
        ('Image', torch.Size([10]))
    """

    def __init__(self, mollify: Mollify, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.mollify = mollify
        self.generator = generator
        self._worker_seed: int | None = None

    def forward(self, image: Tensor, label: Any) -> tuple[Tensor, Tensor]:
        """The mollified image and its soft label."""
        if not isinstance(image, Tensor) or image.ndim != 3:
            found = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
            raise ValueError(
                f"image must be one tensor (C, H, W), got {found}. Put v2.ToImage() before; "
                "for batches use Mollify itself."
            )
        pixels = image.as_subclass(Tensor)[None]
        check_images(pixels)
        target = torch.as_tensor(label, device=image.device)[None]
        mollified, soft_target = self.mollify(pixels, target, generator=self._own_generator())
        if isinstance(image, tv_tensors.Image):
            return tv_tensors.wrap(mollified[0], like=image), soft_target[0]
        return mollified[0], soft_target[0]

    def _own_generator(self) -> torch.Generator | None:
        """The generator; in a worker of a DataLoader, which has a copy, with a seed of its own."""
        worker, generator = get_worker_info(), self.generator
        # A worker has another seed in each epoch, and the same one within it.
        if generator is not None and worker is not None and worker.seed != self._worker_seed:
            self._worker_seed = worker.seed
            generator.manual_seed(fold_seed(generator.initial_seed(), "worker", worker.seed))
        return generator
