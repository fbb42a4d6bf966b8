"""Products with the Hessian of a regularised loss, and its extreme eigenvalues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sfumato._core.checks import to_float64
from sfumato.analysis.batches import Batch, LossFunction, check_scalar, seeded, trainable

Product = Callable[[Tensor], Tensor]


def hessian_product(
    model: nn.Module, batch: Batch, loss: LossFunction, weight_decay: float, seed: int
) -> Product:
    """Return v -> H v for the loss of a mini-batch: a second backward pass through a kept graph.

    The graph holds one forward pass, hence one dropout mask for all products. The Hessian of the
    regulariser weight_decay/2 |w|^2 is weight_decay times the identity and needs no graph.
    """
    parameters = list(trainable(model).values())
    sizes = [parameter.numel() for parameter in parameters]
    images, target = batch
    # Fused attention has no second derivative; attention as a softmax and two products has.
    with torch.enable_grad(), seeded(seed), sdpa_kernel(SDPBackend.MATH):
        # The second backward pass of convolutions on a CPU is 1.7 times slower channels-last.
        value = check_scalar(loss(model(images.contiguous()), target))
        gradients = torch.autograd.grad(
            value, parameters, create_graph=True, materialize_grads=True
        )

    def product(vector: Tensor) -> Tensor:
        pieces = zip(gradients, vector.split(sizes), strict=True)
        # A gradient that depends on no weight has no graph, and no part in the Hessian.
        curved = [(g, piece.view_as(g)) for g, piece in pieces if g.requires_grad]
        if not curved:
            return weight_decay * vector
        outputs, weights = zip(*curved, strict=True)
        products = torch.autograd.grad(
            outputs, parameters, weights, retain_graph=True, materialize_grads=True
        )
        flat = torch.cat([product.reshape(-1) for product in products])
        return flat.add_(vector, alpha=weight_decay)

    return product


def mean_hessian_product(
    model: nn.Module, batches: Sequence[Batch], loss: LossFunction, weight_decay: float, seed: int
) -> Product:
    """Return v -> H v for the mean loss over several mini-batches, weighted by their sizes.

    Only one graph is in memory at a time: each is built anew for each product, from its own seed,
    so that every mini-batch keeps its dropout mask.
    """
    if len(batches) == 1:
        return hessian_product(model, batches[0], loss, weight_decay, seed)
    total = sum(len(target) for _, target in batches)

    def product(vector: Tensor) -> Tensor:
        result = torch.zeros_like(vector)
        for number, batch in enumerate(batches):
            one = hessian_product(model, batch, loss, weight_decay, seed + number)
            result.add_(one(vector), alpha=len(batch[1]) / total)
        return result

    return product


def random_vector(model: nn.Module, generator: torch.Generator | None) -> Tensor:
    """Standard normal, as long as all parameters together."""
    first, *others = trainable(model).values()
    size = first.numel() + sum(parameter.numel() for parameter in others)
    return torch.randn(size, generator=generator, dtype=first.dtype).to(first.device)


Which = Literal["magnitude", "largest"]


class HessianSpectrum(NamedTuple):
    """The largest Hessian eigenvalues of each mini-batch, (batches, top) each; of one, (top,).

    Attributes:
        eigenvalues: float64, signed; the first of a row is the largest.
        residuals: |H v - eigenvalue v| of the unit vectors v.
        errors: estimate of the error of each eigenvalue.
        converged: bool, whether that is below the tolerance.
        products: (batches,), Hessian-vector products that were needed.
    """

    eigenvalues: Tensor
    residuals: Tensor
    errors: Tensor
    converged: Tensor
    products: Tensor


class Krylov:
    """An orthonormal basis, and the operator seen through it.

    Every new vector is made orthogonal to all others, twice: what single precision leaves over
    after the first time would otherwise come back as false copies of converged eigenvalues.
    """

    def __init__(self, product: Product, start: Tensor, capacity: int) -> None:
        self.product = product
        self.basis = start.new_empty(capacity, start.numel())
        self.projected = torch.zeros(capacity, capacity, dtype=torch.float64)
        self.size = 0
        self.products = 0
        self.next = start / start.norm()
        self.coupling = 0.0

    def extend(self) -> None:
        """Take the next vector into the basis: one product."""
        self.basis[self.size] = self.next
        self.size += 1
        self.products += 1
        overlap, rest = self._split(self.product(self.next))
        column = to_float64(overlap).cpu()
        self.projected[: self.size, self.size - 1] = column
        self.projected[self.size - 1, : self.size] = column
        length, limits = float(rest.norm()), torch.finfo(rest.dtype)
        scale = float(self.projected.abs().max())
        if length > 10 * limits.eps * max(scale, limits.tiny):
            self.next, self.coupling = rest / length, length
            return
        # The basis is invariant: go on elsewhere, for eigenvalues that it does not hold.
        _, fresh = self._split(torch.randn(rest.shape, dtype=rest.dtype).to(rest.device))
        self.next, self.coupling = fresh / fresh.norm(), 0.0

    def _split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients of a vector in the basis, and what is left of it."""
        rows = self.basis[: self.size]
        overlap = rows.new_zeros(self.size)
        # "Twice is enough" (Kahan and Parlett): the second pass removes what the first rounded.
        for _ in range(2):
            part = rows @ vector
            vector = vector - part @ rows
            overlap = overlap + part
        return overlap, vector

    def ritz(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues, ascending, and eigenvectors (columns) of the projected operator."""
        return torch.linalg.eigh(self.projected[: self.size, : self.size])

    def shrink(self, keep: Tensor) -> None:
        """Thick restart: the basis becomes the Ritz vectors `keep`."""
        values, vectors = self.ritz()
        count = len(keep)
        self.basis[:count] = vectors[:, keep].T.to(self.basis) @ self.basis[: self.size]
        self.projected.zero_()
        self.projected[:count, :count] = torch.diag(values[keep])
        self.size = count


def lanczos_eigenvalues(
    product: Product,
    start: Tensor,
    *,
    top: int,
    which: Which,
    tolerance: float,
    max_products: int,
    capacity: int,
) -> HessianSpectrum:
    """The `top` extreme eigenvalues by Lanczos iteration with thick restarts.

    In the space of m products the best approximations are the eigenvalues of the projection (Ritz
    values); power iteration uses only the last of these m vectors. With the residual r of a Ritz
    vector and the gap to its neighbours, the error is at most min(r, r^2 / gap).
    """
    capacity = min(capacity, start.numel())
    space = Krylov(product, start, capacity)
    while True:
        space.extend()
        found = _select(space, top, which, tolerance)
        done = len(found.eigenvalues) == top and bool(found.converged.all())
        if done or space.size == start.numel() or space.products >= max_products:
            return found
        if space.size == capacity:
            values, _ = space.ritz()
            space.shrink(_order(values, which)[: (top + capacity) // 2])


def _order(values: Tensor, which: Which) -> Tensor:
    return (values.abs() if which == "magnitude" else values).argsort(descending=True)


def _select(space: Krylov, top: int, which: Which, tolerance: float) -> HessianSpectrum:
    values, vectors = space.ritz()
    chosen = _order(values, which)[:top]
    residuals = space.coupling * vectors[-1, chosen].abs()
    gaps = (values[chosen, None] - values).abs()
    gaps[torch.arange(len(chosen)), chosen] = torch.inf
    nearest = gaps.amin(1)
    errors = torch.minimum(residuals, residuals.square() / nearest.clamp_min(1e-300))
    if space.size == 1 and space.coupling > 0:  # no neighbour yet to judge by
        errors = residuals
    converged = errors <= tolerance * values[chosen].abs()
    products = torch.tensor(space.products)
    return HessianSpectrum(values[chosen], residuals, errors, converged, products)


def power_eigenvalues(
    product: Product, start: Tensor, *, top: int, tolerance: float, max_products: int
) -> HessianSpectrum:
    """The `top` eigenvalues of largest magnitude by power iteration with deflation.

    Each stops when its value changes by less than `tolerance` from one product to the next (the
    criterion of PyHessian); that change is also its error estimate. `max_products` is for all.
    """
    found: list[Tensor] = []
    rows: list[tuple[float, float, float]] = []
    products = 0
    for number in range(top):
        vector = _unit(start if number == 0 else torch.randn_like(start), found)
        value, residual, change = 0.0, torch.inf, torch.inf
        budget = (max_products - products) // (top - number)
        for _ in range(max(1, budget)):
            image = product(vector)
            products += 1
            before, value = value, float(vector @ image)
            residual = float((image - value * vector).norm())
            change = abs(value - before)
            vector = _unit(image, found)
            if change <= tolerance * abs(value):
                break
        found.append(vector)
        rows.append((value, residual, change))
    values, residuals, errors = torch.tensor(rows, dtype=torch.float64).unbind(1)
    converged = errors <= tolerance * values.abs()
    return HessianSpectrum(values, residuals, errors, converged, torch.tensor(products))


def _unit(vector: Tensor, found: list[Tensor]) -> Tensor:
    for other in found:
        vector = vector - (other @ vector) * other
    return vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
