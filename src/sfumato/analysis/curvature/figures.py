"""Hessian spectra of several models in one picture (Fig. 8, C.3 and D.2 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sfumato.analysis.curvature.density import HessianDensity
from sfumato.analysis.curvature.spectrum import HessianSpectrum

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def eigenvalue_outliers(values: Tensor) -> Tensor:
    """Which eigenvalues lie beyond 1.5 interquartile ranges from the quartiles (Tukey's fences)."""
    low, high = torch.quantile(values, values.new_tensor([0.25, 0.75]))
    reach = 1.5 * (high - low)
    return (values < low - reach) | (values > high + reach)


def plot_hessian_spectra(spectra: Mapping[str, HessianSpectrum], *, bins: int = 30) -> Figure:
    """Histograms of the largest eigenvalues over mini-batches, on shared bins; outliers marked.

    Args:
        spectra: title to spectrum; one row each.
        bins: number of bins.

    Reference: Park & Kim 2022, Fig. 8.
    """
    from matplotlib.figure import Figure

    if not spectra:
        raise ValueError("spectra must hold at least one spectrum, got none")
    pooled = torch.cat([spectrum.eigenvalues.flatten() for spectrum in spectra.values()])
    low, high = float(pooled.min()), float(pooled.max())
    margin = 0.02 * max(high - low, 1e-12)
    edges = torch.linspace(low - margin, high + margin, bins + 1).numpy()
    figure = Figure(figsize=(6.4, 0.6 + 1.5 * len(spectra)), layout="constrained")
    axes = figure.subplots(len(spectra), 1, squeeze=False, sharex=True)[:, 0]
    for number, (axis, (title, spectrum)) in enumerate(zip(axes, spectra.items(), strict=True)):
        values = spectrum.eigenvalues.flatten()
        far = eigenvalue_outliers(values)
        color = f"C{number}"
        axis.hist(values.numpy(), bins=edges, color=color, alpha=0.75)
        axis.axvline(float(values.median()), color="black", linewidth=1, linestyle="--")
        if bool(far.any()):
            count = int(far.sum())
            axis.plot(
                values[far].numpy(), [0] * count, "v", color="black", markersize=5,
                clip_on=False, label=f"{count} outlier{'s' if count > 1 else ''}",
            )  # fmt: skip
            axis.legend(fontsize="small", loc="upper right", frameon=False)
        median, loose = float(values.median()), int((~spectrum.converged).sum())
        note = f"  ({loose} not converged)" if loose else ""
        axis.set_title(f"{title}: median {median:.3g}{note}", fontsize="medium", loc="left")
        axis.set_ylabel("count")
        axis.locator_params(axis="y", integer=True, nbins=4)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("largest Hessian eigenvalues of mini-batches")
    return figure


def plot_hessian_densities(
    densities: Mapping[str, HessianDensity], *, width: float | None = None
) -> Figure:
    """Spectral densities, on a logarithmic axis, where few large eigenvalues show beside the bulk.

    Args:
        densities: title to density.
        width: standard deviation of the smoothing; None for 1/100 of the range.

    Reference: Park & Kim 2022, Fig. C.3.
    """
    from matplotlib.figure import Figure

    if not densities:
        raise ValueError("densities must hold at least one density, got none")
    pooled = torch.cat([density.nodes.flatten() for density in densities.values()])
    low, high = float(pooled.min()), float(pooled.max())
    width = max(high - low, 1e-6) / 100 if width is None else width
    grid = torch.linspace(low - 5 * width, high + 5 * width, 800, dtype=torch.float64)
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axis = figure.subplots()
    highest = 0.0
    for title, density in densities.items():
        curve = density.density(grid, width=width)
        highest = max(highest, float(curve.max()))
        axis.plot(grid.numpy(), curve.numpy(), label=title)
    axis.set_yscale("log")
    # Scaling by itself, the axis would leave room for the far tails below the bottom.
    axis.set_ylim(1e-6 / width, 3 * highest)
    axis.set_xlabel("Hessian eigenvalue")
    axis.set_ylabel("density")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure
