"""Extreme eigenvalues of a symmetric operator that is known by its products only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
Which = Literal["magnitude", "largest"]


@dataclass(frozen=True)
class Eigenvalues:
    """Eigenvalues, the first the largest, and how far they can be trusted.

    Attributes:
        values: (k,) float64, signed.
        residuals: (k,), |A v - value v| of the unit vectors v: some eigenvalue is that near.
        errors: (k,), estimate of the error of each value.
        converged: (k,) bool, whether the error is below the tolerance.
        products: number of products with the operator.
    """

    values: Tensor
    residuals: Tensor
    errors: Tensor
    converged: Tensor
    products: int


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
        image = self.product(self.next)
        rows = self.basis[: self.size + 1]
        overlap = rows.new_zeros(self.size + 1)
        for _ in range(2):
            part = rows @ image
            image = image - part @ rows
            overlap = overlap + part
        column = overlap.double().cpu()
        self.projected[: self.size + 1, self.size] = column
        self.projected[self.size, : self.size + 1] = column
        self.size += 1
        self.products += 1
        self._continue_from(image)

    def _continue_from(self, rest: Tensor) -> None:
        length = float(rest.norm())
        scale = float(self.projected.abs().max())
        if length > 10 * torch.finfo(rest.dtype).eps * max(scale, torch.finfo(rest.dtype).tiny):
            self.next, self.coupling = rest / length, length
            return
        # The basis is invariant: go on elsewhere, for eigenvalues that it does not hold.
        fresh = torch.randn(rest.shape, dtype=rest.dtype).to(rest.device)
        rows = self.basis[: self.size]
        for _ in range(2):
            fresh = fresh - (rows @ fresh) @ rows
        self.next, self.coupling = fresh / fresh.norm(), 0.0

    def ritz(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues, ascending, and eigenvectors (columns) of the projected operator."""
        values, vectors = torch.linalg.eigh(self.projected[: self.size, : self.size])
        return values, vectors

    def shrink(self, keep: Tensor) -> None:
        """Thick restart: the basis becomes the Ritz vectors `keep`."""
        values, vectors = self.ritz()
        count = len(keep)
        mix = vectors[:, keep].T.to(self.basis)
        self.basis[:count] = mix @ self.basis[: self.size]
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
) -> Eigenvalues:
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
        done = len(found.values) == top and bool(found.converged.all())
        if done or space.size == start.numel() or space.products >= max_products:
            return found
        if space.size == capacity:
            values, _ = space.ritz()
            space.shrink(_order(values, which)[: (top + capacity) // 2])


def _order(values: Tensor, which: Which) -> Tensor:
    return (values.abs() if which == "magnitude" else values).argsort(descending=True)


def _select(space: Krylov, top: int, which: Which, tolerance: float) -> Eigenvalues:
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
    return Eigenvalues(values[chosen], residuals, errors, converged, space.products)


def power_eigenvalues(
    product: Product, start: Tensor, *, top: int, tolerance: float, max_products: int
) -> Eigenvalues:
    """The `top` eigenvalues of largest magnitude by power iteration with deflation.

    Each stops when its value changes by less than `tolerance` from one product to the next (the
    criterion of PyHessian); that change is also its error estimate. `max_products` is for all.
    """
    found: list[Tensor] = []
    rows: list[tuple[float, float, float]] = []
    products = 0
    for number in range(top):
        vector = start if number == 0 else torch.randn_like(start)
        vector = _unit(vector, found)
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
    return Eigenvalues(values, residuals, errors, errors <= tolerance * values.abs(), products)


def _unit(vector: Tensor, found: list[Tensor]) -> Tensor:
    for other in found:
        vector = vector - (other @ vector) * other
    return vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
