"""Which spatial frequencies feature maps have.

Reference: Park & Kim, "Blurs Behave Like Ensembles", ICML 2022, section 2.2 and Fig. 6b.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sfumato._core.seeds import draw_seed
from sfumato.analysis.batches import Mode, device_of, read_batches, running, seeded
from sfumato.analysis.feature_maps.taps import stage_ends, tapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Channels that are silent after a ReLU have amplitude zero, and no logarithm.
_FLOOR = 1e-6


@dataclass(frozen=True)
class FeatureSpectrum:
    """Mean logarithm of the Fourier amplitude along the diagonal of the plane of frequencies.

    Attributes:
        frequencies: module name to (F,) float64 in units of pi, from 0 to 1.
        log_amplitudes: module name to (F,) float64.
    """

    frequencies: dict[str, Tensor]
    log_amplitudes: dict[str, Tensor]

    def relative(self, module: str) -> Tensor:
        """Log amplitude minus that of frequency 0, as the paper draws it."""
        return self.log_amplitudes[module] - self.log_amplitudes[module][0]


def feature_spectrum(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    modules: Sequence[str] | None = None,
    batches: int | None = None,
    mode: Mode = "sample",
    generator: torch.Generator | None = None,
) -> FeatureSpectrum:
    r"""Fourier amplitude of feature maps by frequency, averaged over images and channels.

    MC dropout adds noise at high frequencies; spatial smoothing is a low-pass filter that takes it
    away (Proposition 2.2). With Z = FFT2(z) of each channel, at frequency f pi in both directions:

        A(f) = mean over (n, c) of log |Z[n, c, f, f]|

    Args:
        model: the network.
        loader: gives dicts with `image` and `label` (as `TensorLoader`) or pairs.
        modules: names of modules that return maps; None for the ends of all stages.
        batches: number of batches; None for all.
        mode: `sample` (dropout on), `train` or `eval`.
        generator: where to draw the dropout masks from.

    Example:
        >>> net = nn.Sequential(nn.AvgPool2d(2, stride=1))
        >>> _ = torch.manual_seed(0)
        >>> data = [(torch.randn(64, 1, 17, 17), torch.zeros(64))]
        >>> spectrum = feature_spectrum(net, data, modules=["0"])
        >>> bool(spectrum.relative("0")[-2] < -2)  # the mean of neighbours has no fast changes
        True

    Reference:
        Park & Kim 2022, Fig. 6b; the released analysis averages logarithms, along the diagonal.
    """
    names = None if modules is None else list(modules)
    totals: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def read(name: str, maps: Tensor) -> None:
        amplitude = torch.fft.fft2(maps.float()).abs()
        rows, columns = _diagonal(*maps.shape[2:])
        logs = (amplitude[:, :, rows, columns] + _FLOOR).log().double()  # (N, C, F)
        totals[name] = totals.get(name, torch.zeros(())) + logs.mean(1).sum(0).cpu()
        counts[name] = counts.get(name, 0) + len(maps)

    with running(model, mode), torch.no_grad(), seeded(draw_seed(generator)):
        for images, _ in read_batches(loader, batches, device_of(model)):
            names = stage_ends(model, images) if names is None else names
            with tapped(model, names, images, read):
                model(images)
    means = {name: total / counts[name] for name, total in totals.items()}
    axes = {
        name: torch.linspace(0, 1, len(mean), dtype=torch.float64) for name, mean in means.items()
    }
    return FeatureSpectrum(axes, means)


def _diagonal(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Indices from frequency 0 to the highest, the same share of it in both directions."""
    steps = torch.linspace(0, 1, min(height, width) // 2 + 1)
    return (steps * (height // 2)).round().long(), (steps * (width // 2)).round().long()


def plot_feature_spectra(spectra: Mapping[str, FeatureSpectrum]) -> Figure:
    """Relative log amplitude by frequency: one panel per module, one line per model.

    Args:
        spectra: title to spectrum; modules with the same number of frequencies share a panel by
            their name.

    Reference: Park & Kim 2022, Fig. 6b.
    """
    from matplotlib.figure import Figure

    if not spectra:
        raise ValueError("spectra must hold at least one spectrum, got none")
    names = list(dict.fromkeys(name for each in spectra.values() for name in each.log_amplitudes))
    figure = Figure(figsize=(3.2 * len(names), 3.2), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axis, name in zip(axes, names, strict=True):
        for number, (title, spectrum) in enumerate(spectra.items()):
            if name in spectrum.log_amplitudes:
                relative = spectrum.relative(name)
                axis.plot(spectrum.frequencies[name], relative, "o-", color=f"C{number}",
                          markersize=3, label=title)  # fmt: skip
        axis.set_title(name, fontsize="medium")
        axis.set_xlabel("frequency / π")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("log amplitude\nminus that of frequency 0")
    axes[0].legend(frameon=False)
    return figure
