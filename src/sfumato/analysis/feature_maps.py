"""Feature maps: variance, covariance, spectra, and the response to frequencies."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_integer, check_number, to_float64
from sfumato._core.plots import new_figure, open_axes
from sfumato._core.seeds import draw_seed
from sfumato.analysis.batches import Mode, read_batches, running, seeded
from sfumato.features.stages import find_stages, map_size, record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Reader = Callable[[str, Tensor], None]


def stage_ends(model: nn.Module, images: Tensor) -> list[str]:
    """Names of the modules that return the last map of each stage, found by one run.

    Example:
        >>> from torchvision.models import resnet18
        >>> stage_ends(resnet18(), torch.zeros(1, 3, 64, 64))
        ['layer1', 'layer2', 'layer3', 'layer4']
    """
    names = [stage.module for stage in find_stages(record(model, images[:1]))]
    if not names:
        raise ValueError(
            f"modules: {type(model).__name__} has no stages that end in feature maps; name the "
            "modules whose outputs are to be examined"
        )
    return names


def stage_blocks(model: nn.Module, images: Tensor) -> list[str]:
    """Names of the blocks and smoothing layers inside the stages, in the order of the network.

    A stage that is a sequence gives its parts, any other stage itself.

    Example:
        >>> from torchvision.models import resnet18
        >>> stage_blocks(resnet18(), torch.zeros(1, 3, 64, 64))[:3]
        ['layer1.0', 'layer1.1', 'layer2.0']
    """
    names: list[str] = []
    for stage in stage_ends(model, images):
        module = model.get_submodule(stage)
        parts = module._modules if isinstance(module, nn.Sequential) else ()
        names += [f"{stage}.{part}" for part in parts] or [stage]
    return names


@contextmanager
def tapped(
    model: nn.Module, names: Sequence[str], images: Tensor, reader: Reader
) -> Iterator[None]:
    """Calls `reader(name, map)` with each named module's output (N, C, H, W) as it is made.

    The map is read inside the forward pass, before a later layer may overwrite it in place.
    """
    modules = dict(model.named_modules())
    unknown = [name for name in names if name not in modules]
    if unknown or not names:
        near = [name for name in modules if name][:20]
        raise ValueError(f"modules must name modules of the model, such as {near}; got {unknown}")

    def read(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        size = map_size(output.shape, images.shape) if isinstance(output, Tensor) else None
        if size is None:
            shape = tuple(getattr(output, "shape", ()))
            raise ValueError(
                f"modules names {name!r}, which does not return a feature map (N, C, H, W) but "
                f"{type(output).__name__} {shape}"
            )
        reader(name, output.movedim(-1, 1) if size.channels_last else output)

    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(modules[name].register_forward_hook(partial(read, name)))
        yield


@dataclass(frozen=True)
class FeatureDeviation:
    """Standard deviations of the feature maps, by depth.

    Attributes:
        modules: names of the modules, in the order of the network.
        between_passes, between_points: (L,) float64, model uncertainty, which is zero for a
            network without randomness, and data uncertainty.
    """

    modules: tuple[str, ...]
    between_passes: Tensor
    between_points: Tensor


def feature_deviation(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    modules: Sequence[str] | None = None,
    samples: int = 10,
    batches: int | None = None,
    generator: torch.Generator | None = None,
) -> FeatureDeviation:
    r"""Standard deviation of the feature maps between dropout masks and between positions.

    In a network with MC dropout the uncertainty of the maps piles up from block to block; a
    smoothing layer at the end of a stage takes it down, for it averages an ensemble (Fig. 5).

        model: mean over (n, c, p) of std over passes s of z_s[n, c, p]
        data:  mean over (s, n, c) of std over positions p of z_s[n, c, p]

    Args:
        model, loader, batches, generator: as in `hessian_max_spectrum`; dropout is on.
        modules: names of modules that return maps; None for the blocks and smoothing layers of all
            stages.
        samples: passes per batch; at least 2.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Dropout(0.5))
        >>> data = [(torch.randn(2, 3, 8, 8), torch.zeros(2))]
        >>> found = feature_deviation(net, data, modules=["0", "1"])
        >>> bool(found.between_passes[0] == 0), bool(found.between_passes[1] > 0)
        (True, True)

    Reference:
        Park & Kim 2022, Fig. 5; Proposition 2.1.
    """
    check_integer("samples", samples, low=2)
    names = None if modules is None else list(modules)
    moments: defaultdict[str, _Moments] = defaultdict(_Moments)
    passes: defaultdict[str, float] = defaultdict(float)
    points: defaultdict[str, float] = defaultdict(float)
    count = 0
    with running(model, "sample"), torch.no_grad(), seeded(draw_seed(generator)):
        for images, _ in read_batches(model, loader, batches):
            names = stage_blocks(model, images) if names is None else names
            moments.clear()
            with tapped(model, names, images, lambda name, maps: moments[name].read(maps)):
                for _ in range(samples):
                    model(images)
            for name, found in moments.items():
                passes[name] += len(images) * found.between_passes()
                points[name] += len(images) * found.spread / found.seen
            count += len(images)
    named = tuple(names or ())
    means = ([sums[name] / count for name in named] for sums in (passes, points))
    return FeatureDeviation(named, *(torch.tensor(each, dtype=torch.float64) for each in means))


class _Moments:
    """Running mean and squared deviation of a map over the passes (Welford), one batch long."""

    def __init__(self) -> None:
        self.seen, self.spread = 0, 0.0
        self.mean = self.square = torch.zeros(())

    def read(self, maps: Tensor) -> None:
        maps = maps.float()
        self.seen += 1
        # Welford: squares of large means would cancel in single precision.
        rest = maps - self.mean
        self.mean = self.mean + rest / self.seen
        self.square = self.square + rest * (maps - self.mean)
        self.spread += float(to_float64(maps.std((2, 3), correction=0)).mean())

    def between_passes(self) -> float:
        return float(to_float64((self.square / (self.seen - 1)).sqrt()).mean())


_UNCERTAINTIES = {"between_passes": "model", "between_points": "data"}


def plot_feature_deviations(deviations: Mapping[str, FeatureDeviation]) -> Figure:
    """Model and data uncertainty by depth, one line per model; smoothing layers are marked.

    Models may have different modules: each line is drawn over its own depth from 0 to 1, and the
    names shown are those of the longest.

    Reference: Park & Kim 2022, Fig. 5.
    """
    figure = new_figure(10.0, 4.0, deviations=deviations)
    longest = max(deviations.values(), key=lambda deviation: len(deviation.modules))
    names = list(longest.modules)
    axes = figure.subplots(1, 2)
    for axis, (field, kind) in zip(axes, _UNCERTAINTIES.items(), strict=True):
        axis.set_title(f"{field.replace('_', ' ')} ({kind} uncertainty)", fontsize="medium")
        for number, (title, deviation) in enumerate(deviations.items()):
            depth = _positions(deviation.modules, names)
            values = getattr(deviation, field)
            axis.plot(depth, values, "o-", color=f"C{number}", markersize=4, label=title)
            marked = [i for i, name in enumerate(deviation.modules) if "smooth" in name.lower()]
            axis.plot(
                [depth[i] for i in marked], values[marked], "s", color=f"C{number}", markersize=8,
                markerfacecolor="white",
            )  # fmt: skip
        axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize="small")
        open_axes(axis, ylim=(0, None))
    axes[0].set_ylabel("standard deviation of feature maps")
    handles, labels = axes[0].get_legend_handles_labels()
    columns = min(5, len(labels))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _positions(modules: Sequence[str], names: Sequence[str]) -> list[float]:
    """Place modules among the names of the longest model; by share of the depth if unknown."""
    if set(modules) <= set(names):
        return [float(names.index(module)) for module in modules]
    last = max(1, len(modules) - 1)
    return [(len(names) - 1) * number / last for number in range(len(modules))]


@dataclass(frozen=True)
class FeatureCovariance:
    """Covariance of the points around the centre of a map with the centre.

    Attributes:
        covariance: (2 radius + 1, 2 radius + 1) float64, mean over the channels.
        correlation: the same, divided by the standard deviations of both points; channels that
            don't vary are left out.
    """

    covariance: Tensor
    correlation: Tensor


def feature_covariance(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    module: str,
    radius: int = 4,
    batches: int | None = None,
    mode: Mode = "sample",
    generator: torch.Generator | None = None,
) -> FeatureCovariance:
    r"""Covariance over images between the centre of a feature map and its neighbours.

    A convolution makes neighbours alike even if its input is white noise, so that their mean is an
    ensemble of nearly the same prediction. For a kernel w,

        Cov(y_1, y_2) = w_1 w_2 sigma^2 + w_2 w_3 sigma^2                               (Eq. 14)

    Args:
        model, loader, batches, mode, generator: as in `hessian_max_spectrum`.
        module: name of the module that returns the map.
        radius: how far to look.

    Example:
        >>> net = nn.Sequential(nn.AvgPool2d((1, 2), stride=1))
        >>> _ = torch.manual_seed(0)
        >>> data = [(torch.randn(20000, 1, 4, 5), torch.zeros(20000))]
        >>> found = feature_covariance(net, data, module="0", radius=1)
        >>> [round(float(value), 1) for value in found.correlation[1]]  # they share one of two
        [0.5, 1.0, 0.5]

    Reference:
        Park & Kim 2022, **Eq. (10)-(14)**, Fig. D.1.
    """
    check_integer("radius", radius, low=0)
    moments = _CovarianceMoments(radius)
    with running(model, mode), torch.no_grad(), seeded(draw_seed(generator)):
        for images, _ in read_batches(model, loader, batches):
            with tapped(model, [module], images, moments.read):
                model(images)
    return moments.result()


class _CovarianceMoments:
    """Sums over images, less the first image's values: sums of squares then lose no digits."""

    def __init__(self, radius: int) -> None:
        self.radius = radius
        self.origin: Tensor | None = None
        self.count = 0
        self.sums = self.squares = self.products = torch.zeros(())

    def read(self, name: str, maps: Tensor) -> None:
        height, width = maps.shape[2:]
        top, left = height // 2 - self.radius, width // 2 - self.radius
        side = 2 * self.radius + 1
        if min(top, left) < 0 or top + side > height or left + side > width:
            raise ValueError(
                f"radius {self.radius} needs maps of {side} x {side} points around the centre, "
                f"{name!r} returns {height} x {width}"
            )
        window = to_float64(maps[:, :, top : top + side, left : left + side]).cpu()
        self.origin = window[0] if self.origin is None else self.origin
        window = window - self.origin
        centre = window[:, :, self.radius, self.radius, None, None]
        self.count += len(window)
        self.sums = self.sums + window.sum(0)
        self.squares = self.squares + window.square().sum(0)
        self.products = self.products + (window * centre).sum(0)

    def result(self) -> FeatureCovariance:
        if self.count < 2:
            raise ValueError(f"loader must give at least two images, got {self.count}")
        mean = self.sums / self.count
        centre = mean[:, self.radius, self.radius, None, None]
        covariance = (self.products / self.count - mean * centre) * self.count / (self.count - 1)
        variance = (self.squares / self.count - mean.square()) * self.count / (self.count - 1)
        scale = (variance * variance[:, self.radius, self.radius, None, None]).sqrt()
        correlation = (covariance / scale).where(scale > 0, torch.nan)
        return FeatureCovariance(covariance.mean(0), correlation.nanmean(0))


def plot_feature_covariances(covariances: Mapping[str, FeatureCovariance]) -> Figure:
    """Correlation with the centre point, one panel each, on one scale from -1 to 1.

    Reference: Park & Kim 2022, Fig. D.1.
    """
    figure = new_figure(3.0 * len(covariances) + 0.8, 3.2, covariances=covariances)
    from matplotlib.patches import Rectangle

    axes = figure.subplots(1, len(covariances), squeeze=False)[0]
    for axis, (title, found) in zip(axes, covariances.items(), strict=True):
        edge = len(found.correlation) / 2
        extent = (-edge, edge, edge, -edge)
        values = found.correlation.numpy()
        shown = axis.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1, extent=extent)
        axis.add_patch(Rectangle((-0.5, -0.5), 1, 1, fill=False, edgecolor="red", linewidth=2))
        axis.set_title(title, fontsize="medium")
    figure.colorbar(shown, ax=list(axes), label="correlation with the centre", shrink=0.85)
    return figure


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
        model, loader, batches, mode, generator: as in `hessian_max_spectrum`.
        modules: names of modules that return maps; None for the ends of all stages.

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
    totals: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
    counts: Counter[str] = Counter()

    def read(name: str, maps: Tensor) -> None:
        amplitude = torch.fft.fft2(maps.float()).abs()
        rows, columns = _diagonal(*maps.shape[2:])
        logs = to_float64((amplitude[:, :, rows, columns] + _FLOOR).log())  # (N, C, F)
        totals[name] = totals[name] + logs.mean(1).sum(0).cpu()
        counts[name] += len(maps)

    with running(model, mode), torch.no_grad(), seeded(draw_seed(generator)):
        for images, _ in read_batches(model, loader, batches):
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

    Reference: Park & Kim 2022, Fig. 6b.
    """
    names = list(dict.fromkeys(name for each in spectra.values() for name in each.log_amplitudes))
    figure = new_figure(3.2 * len(names), 3.2, spectra=spectra)
    axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axis, name in zip(axes, names, strict=True):
        for number, (title, spectrum) in enumerate(spectra.items()):
            if name in spectrum.log_amplitudes:
                line = {"color": f"C{number}", "markersize": 3, "label": title}
                axis.plot(spectrum.frequencies[name], spectrum.relative(name), "o-", **line)
        axis.set_title(name, fontsize="medium")
        open_axes(axis, xlabel="frequency / π")
    axes[0].set_ylabel("log amplitude\nminus that of frequency 0")
    axes[0].legend(frameon=False)
    return figure


_IMPULSE = 1e-4


@dataclass(frozen=True)
class FrequencyResponse:
    """Amplification of each frequency.

    Attributes:
        frequencies: (F,) float64 in units of pi, from 0 to 1.
        amplitude: (F, F), by vertical and horizontal frequency.
        impulse: (size, size), the answer to an impulse at (size // 2, size // 2).
    """

    frequencies: Tensor
    amplitude: Tensor
    impulse: Tensor

    @property
    def along_axis(self) -> Tensor:
        """(F,), amplification of horizontal waves."""
        return self.amplitude[0]

    @property
    def along_diagonal(self) -> Tensor:
        """(F,), amplification of waves of the same frequency in both directions."""
        return self.amplitude.diagonal()


def frequency_response(
    module: nn.Module, *, size: int = 32, channels: int = 1, level: float = 1.0
) -> FrequencyResponse:
    r"""Measure how strongly a layer, or a stack of layers, passes each frequency of a map on.

    A layer that averages neighbours h has the response |H| = |FFT2(h)|: 1 for a flat map and less
    for all else, as its weights are positive and sum to one. Layers that are not linear, such as
    Prob, are taken for small waves on a flat map z of the given level:

        h = d module(z + e delta) / de at e = 0,    |H(f_1, f_2)| = |FFT2(h)|

    Args:
        module: acts on maps (N, C, H, W) of its own channels and does not shrink them, such as
            `Blur`, `Smooth`, or an `nn.Sequential` of them. It is evaluated in float64.
        size: of the map; an even number that is larger than the reach of the module.
        channels: C that the module needs; the impulse and its answer are those of the first.
        level: of the flat map; a ReLU lets nothing negative through.

    Raises:
        ValueError: the module shrinks maps, or its answer reaches the border.

    Example:
        >>> from sfumato.features import Blur
        >>> response = frequency_response(Blur((1, 1)), size=8)
        >>> response.along_axis  # |cos(f pi / 2)|
        tensor([1.0000, 0.9239, 0.7071, 0.3827, 0.0000], dtype=torch.float64)

    Reference:
        Park & Kim 2022, Proposition 2.2, Appendix D.2.
    """
    check_integer("size", size, low=2)
    check_integer("channels", channels, low=1)
    check_number("level", level)
    if size % 2:
        raise ValueError(f"size must be even, so that it has the highest frequency, got {size}")
    impulse = _impulse_response(module, size, channels, level)
    bins = size // 2 + 1
    amplitude = torch.fft.fft2(impulse).abs()[:bins, :bins]
    return FrequencyResponse(torch.linspace(0, 1, bins, dtype=torch.float64), amplitude, impulse)


def _impulse_response(module: nn.Module, size: int, channels: int, level: float) -> Tensor:
    module = copy.deepcopy(module).cpu().double().eval()
    flat = torch.full((1, channels, size, size), level, dtype=torch.float64)
    delta = torch.zeros_like(flat)
    delta[0, 0, size // 2, size // 2] = _IMPULSE
    with torch.no_grad():
        # clones: a layer that works in place must not change the other's input
        up, down = module(flat + delta).clone(), module(flat - delta).clone()
    if up.ndim != 4 or min(up.shape[2:]) < size:
        raise ValueError(
            f"module must return maps at least as large as its input (1, {channels}, {size}, "
            f"{size}), got {tuple(up.shape)}; leave out what shrinks or pools"
        )
    whole = (up - down)[0, 0] / (2 * _IMPULSE)
    rim = whole.clone()
    rim[1 : size - 1, 1 : size - 1] = 0
    if bool(rim.abs().max() > 1e-6):
        raise ValueError(f"size {size} is too small: the answer to an impulse reaches the border")
    return whole[:size, :size]


def plot_frequency_responses(responses: Mapping[str, FrequencyResponse]) -> Figure:
    """Responses along the axis and the diagonal, and over the plane of frequencies.

    Reference: Park & Kim 2022, Proposition 2.2.
    """
    count = len(responses)
    figure = new_figure(5.0 + 2.6 * count, 3.2, responses=responses)
    axes = figure.subplots(1, 1 + count, width_ratios=[1.6, *[1.0] * count], squeeze=False)[0]
    for number, (title, response) in enumerate(responses.items()):
        color = f"C{number}"
        axes[0].plot(response.frequencies, response.along_axis, color=color, label=title)
        axes[0].plot(response.frequencies, response.along_diagonal, "--", color=color)
        plane = axes[1 + number]
        shown = plane.imshow(
            response.amplitude.numpy(), origin="lower", extent=(0, 1, 0, 1), vmin=0, cmap="magma",
            vmax=max(1.0, float(max(each.amplitude.max() for each in responses.values()))),
        )  # fmt: skip
        plane.set_title(title, fontsize="medium")
        plane.set_xlabel("frequency / π")
    axes[0].plot([], [], "--", color="0.4", label="diagonal")
    axes[0].legend(frameon=False, fontsize="small")
    open_axes(axes[0], xlabel="frequency / π", ylabel="amplification", ylim=(0, None))
    figure.colorbar(shown, ax=list(axes[1:]), shrink=0.85)
    return figure
