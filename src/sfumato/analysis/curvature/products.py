"""Products of the Hessian of a regularised loss with vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sfumato.analysis.batches import Batch, LossFunction, check_scalar, seeded, trainable


class HessianProduct:
    """v -> H v for the loss of one mini-batch, by a second backward pass through one kept graph.

    The graph holds one forward pass, hence one dropout mask for all products. The Hessian of the
    regulariser weight_decay/2 |w|^2 is weight_decay times the identity and needs no graph.

    Args:
        model: the network, in the mode that is to be examined.
        batch: images and target.
        loss: `loss(logits, target)` with mean reduction.
        weight_decay: of the regulariser, on all parameters that require gradients.
        seed: of the dropout masks.
    """

    def __init__(
        self, model: nn.Module, batch: Batch, loss: LossFunction, weight_decay: float, seed: int
    ) -> None:
        self.parameters = list(trainable(model).values())
        self.weight_decay = weight_decay
        images, target = batch
        # Fused attention has no second derivative; attention as a softmax and two products has.
        with torch.enable_grad(), seeded(seed), sdpa_kernel(SDPBackend.MATH):
            # The second backward pass of convolutions on a CPU is 1.7 times slower channels-last.
            value = check_scalar(loss(model(images.contiguous()), target))
            gradients = torch.autograd.grad(
                value, self.parameters, create_graph=True, materialize_grads=True
            )
        self.gradients = gradients

    def start(self, generator: torch.Generator | None) -> Tensor:
        """A random vector of the size of all parameters."""
        return random_vector(self.parameters, generator)

    def __call__(self, vector: Tensor) -> Tensor:
        sizes = [parameter.numel() for parameter in self.parameters]
        pieces = zip(self.gradients, vector.split(sizes), strict=True)
        # A gradient that depends on no weight has no graph, and no part in the Hessian.
        curved = [(g, piece.view_as(g)) for g, piece in pieces if g.requires_grad]
        if not curved:
            return self.weight_decay * vector
        outputs, weights = zip(*curved, strict=True)
        products = torch.autograd.grad(
            outputs, self.parameters, weights, retain_graph=True, materialize_grads=True
        )
        flat = torch.cat([product.reshape(-1) for product in products])
        return flat.add_(vector, alpha=self.weight_decay)


class MeanHessianProduct:
    """v -> H v for the mean loss over several mini-batches, weighted by their sizes.

    Only one graph is in memory at a time: each is built anew for each product, from its own seed,
    so that every mini-batch keeps its dropout mask.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Batch],
        loss: LossFunction,
        weight_decay: float,
        seed: int,
    ) -> None:
        self.model = model
        self.batches = batches
        self.loss = loss
        self.weight_decay = weight_decay
        self.seed = seed
        self.kept = self._build(0) if len(batches) == 1 else None

    def _build(self, number: int) -> HessianProduct:
        seed = self.seed + number
        batch = self.batches[number]
        return HessianProduct(self.model, batch, self.loss, self.weight_decay, seed)

    def start(self, generator: torch.Generator | None) -> Tensor:
        """A random vector of the size of all parameters."""
        return random_vector(list(trainable(self.model).values()), generator)

    def __call__(self, vector: Tensor) -> Tensor:
        if self.kept is not None:
            return self.kept(vector)
        total = sum(len(target) for _, target in self.batches)
        result = torch.zeros_like(vector)
        for number, (_, target) in enumerate(self.batches):
            result.add_(self._build(number)(vector), alpha=len(target) / total)
        return result


def random_vector(parameters: Sequence[nn.Parameter], generator: torch.Generator | None) -> Tensor:
    """Standard normal, as long as all parameters together."""
    size = sum(parameter.numel() for parameter in parameters)
    first = parameters[0]
    return torch.randn(size, generator=generator, dtype=first.dtype).to(first.device)
