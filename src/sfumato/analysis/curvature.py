"""Curvature and fluctuation of the loss: Hessian eigenvalues, sharpness, variance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import (
    check_choice,
    check_class_indices,
    check_integer,
    check_number,
    to_float64,
)
from sfumato._core.plots import new_figure, open_axes
from sfumato._core.seeds import draw_seed
from sfumato.analysis.batches import (
    Batch,
    HeldBatches,
    LossFunction,
    Mode,
    mean_loss,
    read_batches,
    running,
    seeded,
    trainable,
)
from sfumato.analysis.lanczos import (
    HessianSpectrum,
    Krylov,
    Which,
    hessian_product,
    lanczos_eigenvalues,
    mean_hessian_product,
    power_eigenvalues,
    random_vector,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Method = Literal["lanczos", "power"]


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
        model, loader: the network, which is left as it was; dicts with `image` and `label` (as
            `TensorLoader`) or pairs.
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
        The eigenvalues with error estimates. What has not converged is returned too, and marked.

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
    check_integer("top", top, low=1, high=_size(model))
    check_number("weight_decay", weight_decay, low=0.0)
    check_number("tolerance", tolerance, low=0.0, open_low=True)
    check_integer("max_products", max_products, low=top)
    check_choice("which", which, get_args(Which))
    check_choice("method", method, get_args(Method))
    if method == "power" and which != "magnitude":
        raise ValueError(f"method 'power' finds which='magnitude' only, got which={which!r}")
    capacity = max(20, 2 * top + 10) if basis is None else basis
    check_integer("basis", capacity, low=top + 2)
    lanczos = partial(lanczos_eigenvalues, which=which, capacity=capacity)
    find: Callable[..., HessianSpectrum] = lanczos if method == "lanczos" else power_eigenvalues
    rows: list[HessianSpectrum] = []
    with running(model, mode):
        for batch in read_batches(model, loader, batches):
            product = hessian_product(model, batch, loss, weight_decay, draw_seed(generator))
            start = random_vector(model, generator)
            found = find(product, start, top=top, tolerance=tolerance, max_products=max_products)
            rows.append(found)
            if progress is not None:
                progress(len(rows))
    return HessianSpectrum(*map(torch.stack, zip(*rows, strict=True)))


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in trainable(model).values())


@dataclass(frozen=True)
class HessianDensity:
    """Point masses that have the moments of the Hessian's spectrum.

    Attributes:
        nodes: (probes, steps) float64, eigenvalues.
        weights: (probes, steps), their shares of the spectrum; each row sums to one.
    """

    nodes: Tensor
    weights: Tensor

    def density(self, grid: Tensor, *, width: float) -> Tensor:
        """The masses as Gaussians of standard deviation `width`, at the points of `grid`."""
        check_number("width", width, low=0.0, open_low=True)
        distance = (grid.double()[:, None, None] - self.nodes) / width
        bumps = torch.exp(-0.5 * distance.square()) / (width * math.sqrt(2 * math.pi))
        return (bumps * self.weights).sum(2).mean(1)

    @property
    def mean(self) -> float:
        """Mean eigenvalue: the trace of the Hessian over the number of weights."""
        return float((self.nodes * self.weights).sum(1).mean())


def hessian_density(
    model: nn.Module,
    loader: Iterable[Any],
    loss: LossFunction = F.cross_entropy,
    *,
    weight_decay: float = 5e-4,
    batches: int | None = 1,
    probes: int = 4,
    steps: int = 40,
    mode: Mode = "sample",
    generator: torch.Generator | None = None,
) -> HessianDensity:
    r"""Spectral density of the Hessian of the mean regularised loss over some mini-batches.

    For a random vector v, the projection of H on the space of v, Hv, H^2 v, ... has few eigenvalues
    theta_i; with the squared first components w_i of its eigenvectors they integrate every
    polynomial of degree 2 m - 1 against the spectrum as v sees it:

        v^T f(H) v = sum_i w_i f(theta_i),    E[v^T f(H) v] = tr f(H) / P

    Args:
        model, loader, loss, weight_decay, mode, generator: as in `hessian_max_spectrum`.
        batches: mini-batches of the mean loss; None for all. One keeps its graph, more build
            theirs anew for each product.
        probes: number of random vectors.
        steps: m, products per vector; that many vectors are in memory.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(2, 1, bias=False)
        >>> data = [(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))]
        >>> density = hessian_density(model, data, F.mse_loss, weight_decay=0.0, probes=1)
        >>> density.nodes
        tensor([[1.0000, 4.0000]], dtype=torch.float64)

    Reference:
        Ghorbani et al. 2019, Algorithm 1; Park & Kim 2022, Fig. C.3 and D.2.
    """
    check_number("weight_decay", weight_decay, low=0.0)
    check_integer("probes", probes, low=1)
    check_integer("steps", steps, low=1)
    size = min(steps, _size(model))  # there are no more orthogonal vectors than weights
    held = list(read_batches(model, loader, batches))
    nodes, weights = [], []
    with running(model, mode):
        product = mean_hessian_product(model, held, loss, weight_decay, draw_seed(generator))
        for _ in range(probes):
            space = Krylov(product, random_vector(model, generator), size)
            while space.size < size:
                space.extend()
            values, vectors = space.ritz()
            nodes.append(values)
            weights.append(vectors[0].square())
    return HessianDensity(torch.stack(nodes), torch.stack(weights))


@dataclass(frozen=True)
class ExpectedSharpness:
    """Losses in the neighbourhood, and at the weights.

    Attributes:
        losses: (samples,) float64, L(w + eps).
        centre: L(w), without perturbation and without dropout.
    """

    losses: Tensor
    centre: float

    @property
    def value(self) -> float:
        """E[max(L(w + eps), L(w)) - L(w)], Eq. (17)."""
        return float((self.losses - self.centre).clamp_min(0).mean())

    @property
    def about_mean(self) -> float:
        """The same with the expected loss in the place of L(w), Eq. (18)."""
        return float((self.losses - self.losses.mean()).clamp_min(0).mean())

    @property
    def gaussian(self) -> float:
        """c V[L]^(1/2) of Eq. (22); if the losses are Gaussian about L(w), c = 1 / sqrt(2 pi)."""
        return float(self.losses.std()) / math.sqrt(2 * math.pi)


def expected_sharpness(
    model: nn.Module,
    loader: Iterable[Any],
    loss: LossFunction = F.cross_entropy,
    *,
    radius: float,
    samples: int = 50,
    batches: int | None = None,
    generator: torch.Generator | None = None,
) -> ExpectedSharpness:
    r"""Expected sharpness of the loss under random perturbations of the weights and dropout.

    The sharpness of Foret et al., max over |eps| <= radius of L(w + eps) - L(w), is of no use if
    the loss is random, because the maximum may be infinite. Its expected version is

        E[ max(L(w + eps), L(w)) - L(w)  |  |eps| <= radius ]                           (Eq. 17)

    and is proportional to the standard deviation of the loss (Eq. 22). Here eps is uniform in the
    ball; a dropout mask is drawn for each eps as well. With radius 0 dropout is all there is.

    Args:
        model, loader, loss, generator: as in `hessian_max_spectrum`.
        radius: rho, over all trainable weights together.
        samples: number of perturbations.
        batches: a sub-sample, held in memory; None for the full loader.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 2.0)
        >>> data = [(torch.ones(4, 1), torch.full((4, 1), 2.0))]
        >>> found = expected_sharpness(model, data, F.mse_loss, radius=0.3, samples=2000)
        >>> round(found.value, 2)  # E[eps^2] = 0.3^2 / 3
        0.03

    Reference:
        Park & Kim 2022, **Eq. (15)-(22)**.
    """
    check_number("radius", radius, low=0.0)
    check_integer("samples", samples, low=2)
    weights = {name: weight.detach() for name, weight in trainable(model).items()}
    data = HeldBatches(model, loader, batches)
    with running(model, "eval"):
        centre = mean_loss(model, weights, data, loss)
    losses = []
    with running(model, "sample"):
        for _ in range(samples):
            step = _in_ball(model, radius, generator)
            pieces = step.split([weight.numel() for weight in weights.values()])
            moved = {
                name: weight + piece.view_as(weight)
                for (name, weight), piece in zip(weights.items(), pieces, strict=True)
            }
            with seeded(draw_seed(generator)):
                losses.append(mean_loss(model, moved, data, loss))
    return ExpectedSharpness(torch.tensor(losses, dtype=torch.float64), centre)


def _in_ball(model: nn.Module, radius: float, generator: torch.Generator | None) -> Tensor:
    """A point that is uniform in the ball: the distance is radius u^(1 / dimension)."""
    direction = random_vector(model, generator)
    share = float(torch.rand((), generator=generator)) ** (1 / direction.numel())
    return direction * (radius * share / float(direction.norm()))


def eigenvalue_outliers(values: Tensor) -> Tensor:
    """Mark eigenvalues beyond 1.5 interquartile ranges from the quartiles (Tukey's fences)."""
    low, high = torch.quantile(values, values.new_tensor([0.25, 0.75]))
    reach = 1.5 * (high - low)
    return (values < low - reach) | (values > high + reach)


def _range(values: Iterable[Tensor]) -> tuple[float, float]:
    low, high = torch.cat([each.flatten() for each in values]).aminmax()
    return float(low), float(high)


def plot_hessian_spectra(spectra: Mapping[str, HessianSpectrum], *, bins: int = 30) -> Figure:
    """Histograms of the largest eigenvalues over mini-batches, on shared bins; outliers marked.

    Reference: Park & Kim 2022, Fig. 8.
    """
    figure = new_figure(6.4, 0.6 + 1.5 * len(spectra), spectra=spectra)
    low, high = _range(spectrum.eigenvalues for spectrum in spectra.values())
    margin = 0.02 * max(high - low, 1e-12)
    edges = torch.linspace(low - margin, high + margin, bins + 1).numpy()
    axes = figure.subplots(len(spectra), 1, squeeze=False, sharex=True)[:, 0]
    for number, (axis, (title, spectrum)) in enumerate(zip(axes, spectra.items(), strict=True)):
        values = spectrum.eigenvalues.flatten()
        far = eigenvalue_outliers(values)
        median, loose = float(values.median()), int((~spectrum.converged).sum())
        axis.hist(values.numpy(), bins=edges, color=f"C{number}", alpha=0.75)
        axis.axvline(median, color="black", linewidth=1, linestyle="--")
        if count := int(far.sum()):
            marks = {"color": "black", "markersize": 5, "clip_on": False}
            label = f"{count} outlier{'s' if count > 1 else ''}"
            axis.plot(values[far].numpy(), [0] * count, "v", **marks, label=label)
            axis.legend(fontsize="small", loc="upper right", frameon=False)
        note = f"  ({loose} not converged)" if loose else ""
        axis.set_title(f"{title}: median {median:.3g}{note}", fontsize="medium", loc="left")
        axis.locator_params(axis="y", integer=True, nbins=4)
        open_axes(axis, ylabel="count")
    axes[-1].set_xlabel("largest Hessian eigenvalues of mini-batches")
    return figure


def plot_hessian_densities(
    densities: Mapping[str, HessianDensity], *, width: float | None = None
) -> Figure:
    """Spectral densities, on a logarithmic axis, where few large eigenvalues show beside the bulk.

    `width` is the standard deviation of the smoothing, 1/100 of the range by default.

    Reference: Park & Kim 2022, Fig. C.3.
    """
    figure = new_figure(6.4, 3.6, densities=densities)
    low, high = _range(density.nodes for density in densities.values())
    width = max(high - low, 1e-6) / 100 if width is None else width
    grid = torch.linspace(low - 5 * width, high + 5 * width, 800, dtype=torch.float64)
    axis = figure.subplots()
    curves = {title: each.density(grid, width=width) for title, each in densities.items()}
    for title, curve in curves.items():
        axis.plot(grid.numpy(), curve.numpy(), label=title)
    # Scaling by itself, the axis would leave room for the far tails below the bottom.
    limits = (1e-6 / width, 3 * max(float(curve.max()) for curve in curves.values()))
    axis.legend(frameon=False)
    open_axes(axis, xlabel="Hessian eigenvalue", ylabel="density", yscale="log", ylim=limits)
    return figure


_SHUFFLES = 10


@dataclass(frozen=True)
class LossVariance:
    """Variance of the negative log-likelihood of ensembles over their randomness.

    Attributes:
        sizes: (S,) ensemble sizes N.
        variances: (S,) float64, measured.
        expected: (S,), the 1/N law of Eq. (28) from the variance of single predictions.
        losses: (S,), mean loss of the ensembles.
    """

    sizes: Tensor
    variances: Tensor
    expected: Tensor
    losses: Tensor

    @property
    def slope(self) -> float:
        """Slope of log variance over log size, by least squares; the law says -1."""
        x, y = self.sizes.double().log(), self.variances.log()
        x, y = x - x.mean(), y - y.mean()
        return float((x * y).sum() / x.square().sum())


def loss_variance(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    sizes: Sequence[int] = (1, 2, 5, 10, 20),
    passes: int = 200,
    batches: int | None = None,
    ignore_index: int = -100,
    generator: torch.Generator | None = None,
) -> LossVariance:
    r"""Variance of the loss against ensemble size, and the law that it should follow.

    The loss of an ensemble of N stochastic passes fluctuates less than that of one, and its
    variance is the square of the expected sharpness up to a constant (Eq. 22):

        V[L] = V[ 1/|D| sum_D -log p^(N) ] ~ 1/N * mean(sigma_pred^2 / mu^2) / |D|      (Eq. 28)

    with mean mu and variance sigma_pred^2 of the probability of the true class over the passes.
    The measured variance is that between disjoint groups of N of the passes, averaged over several
    ways to group them: its relative error is about sqrt(2 / passes) at all sizes.

    Args:
        model: a network with dropout, giving logits (B, C) or (B, C, ...).
        loader, batches, generator: as in `hessian_max_spectrum`; targets are class indices.
        sizes: ensemble sizes N.
        passes: number of passes over the data, at least twice the largest size.
        ignore_index: class index of entries that don't count.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 2))
        >>> data = [(torch.ones(16, 8), torch.zeros(16, dtype=torch.int64))]
        >>> found = loss_variance(net, data, sizes=(1, 10), passes=400)
        >>> bool((found.variances[0] / found.variances[1] - 10).abs() < 3)
        True

    Reference:
        Park & Kim 2022, **Eq. (23)-(28)**, Fig. D.3a.

    Differs:
        Eq. (28) is written with one mu and sigma for all samples; here their ratio is averaged.
    """
    for size in sizes:
        check_integer("sizes", size, low=1)
    if len(sizes) == 0:
        raise ValueError("sizes must hold at least one ensemble size, got none")
    check_integer("passes", passes, low=2 * max(sizes))
    probs = []
    with running(model, "sample"), torch.no_grad(), seeded(draw_seed(generator)):
        for batch in read_batches(model, loader, batches):
            probs.append(_true_class_probs(model, batch, passes, ignore_index))
    table = torch.cat(probs, 1)  # (passes, D)
    if table.shape[1] == 0:
        raise ValueError("loader must give at least one entry that is not ignored, got none")
    if bool((table == table[0]).all()):
        raise ValueError(
            "the model has no active dropout, so all passes are the same: insert it with "
            "sfumato.features.add_dropout(model, rate)"
        )
    # Every grouping of the same passes is as good as another: their mean is less noisy.
    shuffles = [torch.randperm(passes, generator=generator) for _ in range(_SHUFFLES)]
    moments = [_mean_and_variance(table, size, shuffles) for size in sizes]
    losses, variances = torch.tensor(moments, dtype=torch.float64).unbind(1)
    single = (table.var(0) / table.mean(0).square()).mean() / table.shape[1]
    numbers = torch.tensor(list(sizes))
    return LossVariance(numbers, variances, expected=single / numbers, losses=losses)  # Eq. (28)


def _mean_and_variance(table: Tensor, size: int, shuffles: list[Tensor]) -> tuple[float, float]:
    """Measure the losses of ensembles of `size` passes."""
    moments = []
    for order in shuffles:
        whole = order[: len(order) // size * size]
        groups = table[whole].unflatten(0, (-1, size)).mean(1)  # (groups, D)
        losses = -groups.clamp_min(torch.finfo(groups.dtype).tiny).log().mean(1)  # Eq. (23)
        moments.append((float(losses.mean()), float(losses.var())))
    means, variances = zip(*moments, strict=True)
    return sum(means) / len(means), sum(variances) / len(variances)


def _true_class_probs(model: nn.Module, batch: Batch, passes: int, ignore_index: int) -> Tensor:
    """Probability of the true class of every valid entry in each pass, (passes, entries)."""
    images, target = batch
    valid = target != ignore_index
    rows = []
    for _ in range(passes):
        logits = model(images)
        check_class_indices("target", target, logits.shape[1], ignore_index=ignore_index)
        chosen = target.where(valid, 0).unsqueeze(1)
        probs = to_float64(logits).softmax(1).to("cpu")
        rows.append(probs.gather(1, chosen.cpu()).squeeze(1)[valid.cpu()])
    return torch.stack(rows)


def plot_loss_variances(variances: Mapping[str, LossVariance]) -> Figure:
    """Measured variances as points and the 1/N law as lines, on logarithmic axes.

    Reference: Park & Kim 2022, Fig. D.3a.
    """
    figure = new_figure(5.0, 3.8, variances=variances)
    axis = figure.subplots()
    for number, (title, found) in enumerate(variances.items()):
        slope = f" (slope {found.slope:.2f})" if len(found.sizes) > 1 else ""
        axis.plot(found.sizes, found.variances, "o", color=f"C{number}", label=title + slope)
        axis.plot(found.sizes, found.expected, "--", color=f"C{number}", linewidth=1)
    axis.plot([], [], "--", color="0.4", linewidth=1, label="1/N law, Eq. (28)")
    axis.set(xscale="log", yscale="log")
    ticks = sorted({int(size) for found in variances.values() for size in found.sizes})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize="small")
    open_axes(axis, xlabel="ensemble size N", ylabel="variance of the loss")
    return figure
