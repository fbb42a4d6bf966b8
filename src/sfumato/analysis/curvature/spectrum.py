"""How sharp a loss is where training sees it: the largest Hessian eigenvalues of mini-batches.

Reference: Park & Kim, "Blurs Behave Like Ensembles", ICML 2022, Appendix A.3 and Fig. 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_choice, check_integer, check_number
from sfumato._core.seeds import draw_seed
from sfumato.analysis.batches import (
    LossFunction,
    Mode,
    device_of,
    read_batches,
    running,
    trainable,
)
from sfumato.analysis.curvature.lanczos import (
    Eigenvalues,
    Which,
    lanczos_eigenvalues,
    power_eigenvalues,
)
from sfumato.analysis.curvature.products import HessianProduct

Method = Literal["lanczos", "power"]


@dataclass(frozen=True)
class HessianSpectrum:
    """The largest Hessian eigenvalues of each mini-batch, all of shape (batches, top).

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


def hessian_max_spectrum(
    model: nn.Module,
    loader: Iterable[Any],
    loss: LossFunction = F.cross_entropy,
    *,
    top: int = 1,
    weight_decay: float = 5e-4,
    batches: int | None = None,
    mode: Mode = "sample",
    which: Which = "magnitude",
    method: Method = "lanczos",
    tolerance: float = 1e-3,
    max_products: int = 200,
    basis: int | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[int], object] | None = None,
) -> HessianSpectrum:
    r"""Top eigenvalues of the Hessian of the regularised loss, mini-batch by mini-batch.

    A step of SGD follows the gradient of one mini-batch, and the largest eigenvalues of its
    Hessian bound the rate that is stable there. Their distribution over mini-batches shows what
    the Hessian of the mean hides: outliers, which smoothing removes (Fig. 8).

        H^(i) = d^2/dw^2 [ loss(model_w(g(B_i))) + weight_decay/2 |w|^2 ]           (Algorithm 1)

    Give the loader that *trains* the model, with its augmentation g, and the weight decay of the
    optimiser: the spectrum of the clean data without them is another one.

    Args:
        model: the network.
        loader: gives dicts with `image` and `label` (as `TensorLoader`) or pairs.
        loss: `loss(logits, target)` with mean reduction and a second derivative.
        top: k, eigenvalues per mini-batch.
        weight_decay: of the optimiser, on all trainable parameters; the paper's 5e-4.
        batches: number of mini-batches; None for all of the loader.
        mode: `sample` (dropout on, one mask per mini-batch; batch norm with running statistics),
            `train` (batch norm with those of the batch), `eval` (no dropout).
        which: `magnitude` (as power iteration finds them) or `largest` (by value).
        method: `lanczos`, or the paper's `power` iteration, which needs several times the products.
        tolerance: relative error at which an eigenvalue has converged.
        max_products: Hessian-vector products per mini-batch at most.
        basis: vectors of the size of the parameters in memory; None for max(20, 2 top + 10).
        generator: where to draw start vectors and dropout masks from.
        progress: called with the number of finished mini-batches.

    Returns:
        The eigenvalues, with residuals, error estimates and convergence. What has not converged
        is returned too, and marked.

    Raises:
        ValueError: nothing to differentiate, an empty loader, a loss that is no scalar.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> data = [(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))]
        >>> spectrum = hessian_max_spectrum(model, data, F.mse_loss, top=2, weight_decay=0.5)
        >>> spectrum.eigenvalues  # x^T x = diag(4, 1), plus the decay
        tensor([[4.5000, 1.5000]], dtype=torch.float64)

    Reference:
        Park & Kim 2022, **Algorithm 1**.

    Differs:
        The paper finds the eigenvalues by power iteration (PyHessian); Lanczos iteration finds the
        same. Equal eigenvalues may be counted once.
    """
    _check(model, top, weight_decay, tolerance, max_products)
    check_choice("which", which, get_args(Which))
    check_choice("method", method, get_args(Method))
    if method == "power" and which != "magnitude":
        raise ValueError(f"method 'power' finds which='magnitude' only, got which={which!r}")
    capacity = max(20, 2 * top + 10) if basis is None else basis
    check_integer("basis", capacity, low=top + 2)
    rows: list[Eigenvalues] = []
    with running(model, mode):
        for batch in read_batches(loader, batches, device_of(model)):
            product = HessianProduct(model, batch, loss, weight_decay, draw_seed(generator))
            start = product.start(generator)
            if method == "power":
                row = power_eigenvalues(
                    product, start, top=top, tolerance=tolerance, max_products=max_products
                )
            else:
                row = lanczos_eigenvalues(
                    product,
                    start,
                    top=top,
                    which=which,
                    tolerance=tolerance,
                    max_products=max_products,
                    capacity=capacity,
                )
            rows.append(row)
            if progress is not None:
                progress(len(rows))
    return _stack(rows)


def _check(
    model: nn.Module, top: int, weight_decay: float, tolerance: float, max_products: int
) -> None:
    size = sum(parameter.numel() for parameter in trainable(model).values())
    check_integer("top", top, low=1, high=size)
    check_number("weight_decay", weight_decay, low=0.0)
    check_number("tolerance", tolerance, low=0.0, open_low=True)
    check_integer("max_products", max_products, low=top)


def _stack(rows: list[Eigenvalues]) -> HessianSpectrum:
    return HessianSpectrum(
        eigenvalues=torch.stack([row.values for row in rows]),
        residuals=torch.stack([row.residuals for row in rows]),
        errors=torch.stack([row.errors for row in rows]),
        converged=torch.stack([row.converged for row in rows]),
        products=torch.tensor([row.products for row in rows]),
    )
