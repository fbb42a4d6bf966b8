"""The analyses of `sfumato analyse`: what each measures on finished runs, and its picture."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sfumato import analysis
from sfumato._core.evaluation_mode import evaluating
from sfumato._core.files import index_entries, unreadable_file, write_atomically, write_json
from sfumato._core.import_path import searching
from sfumato._core.seeds import fold_seed
from sfumato._core.text import progress_bar
from sfumato.data import TensorLoader
from sfumato.engine.config.build import BatchTransform, build_augmentation
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import ConfigError
from sfumato.engine.runs.directory import RunDirectory, title_of_run
from sfumato.engine.training.checkpoint import load_checkpoint, load_network, read_config
from sfumato.engine.training.steps import build_objective, load_splits
from sfumato.features import Smooth
from sfumato.labels import ACLSLoss
from sfumato.labels.acls import acls_penalty
from sfumato.models import OnnxModel
from sfumato.predictions.sampling import average_passes, repeat_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TrainedBatches:
    """Images and targets as the optimiser saw them; every iteration gives the same batches."""

    loader: TensorLoader
    inputs: BatchTransform | None
    # `TrainedLoss` takes the sample's number from a last column of the targets, and averages the
    # images that are there `passes` times in a row.
    with_index: bool
    passes: int = 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, batch in enumerate(self.loader):
            images, target = batch["image"], batch.get("soft_label", batch["label"])
            if self.inputs is not None:
                with torch.random.fork_rng():
                    torch.manual_seed(fold_seed(0, "analysed batch", number))
                    images, target = self.inputs(images, target)
            if self.with_index:
                index = batch["index"].unsqueeze(1)
                columns = target.unsqueeze(1) if target.ndim == 1 else target.double()
                target = torch.cat([columns, index.to(columns.dtype)], 1)
            yield repeat_images(images, self.passes), target


class TrainedLoss:
    """A run's loss as a function of logits and of a target of `TrainedBatches`."""

    def __init__(self, loss: nn.Module, passes: int = 1) -> None:
        # In evaluation mode it reads a history of samples and never adds to it.
        self.loss = loss.eval()
        self.passes = passes
        self.takes_index = "index" in inspect.signature(loss.forward).parameters

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        logits = self.average(logits)
        known, index = self.split(target, logits.dtype)
        value: Tensor = self.loss(logits, known, **({} if index is None else {"index": index}))
        return value

    def average(self, logits: Tensor) -> Tensor:
        """One row for each target: the logarithm of the mean probability of several passes."""
        return logits if self.passes == 1 else average_passes(logits, self.passes)

    def split(self, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Labels, or probabilities of a dtype, and the samples' numbers where they are known."""
        if not self.takes_index:
            return target, None
        index = target[:, -1].long()
        if target.is_floating_point():
            return target[:, :-1].to(dtype), index
        return target[:, 0], index


def describe_objective(config: RunConfig) -> str:
    """Say in a few words what a run was trained for."""
    train = config.train
    specs = {key: getattr(config, key) for key in ("augment", "inputs", "labels")}
    said = [f"loss {config.loss['name']}"]
    said += [f"{key} {spec['name']}" for key, spec in specs.items() if spec is not None]
    said += ["objects"] if config.objects is not None else []
    said += [f"{train.copies.count} copies"] if train.copies is not None else []
    said += [f"{train.passes} passes"] if train.passes > 1 else []
    return ", ".join([*said, f"weight decay {train.weight_decay:g}"])


@dataclass(frozen=True)
class Effort:
    """Amounts of computation; the defaults take about a minute for a small ResNet."""

    # The paper's batch.
    batch_size: int = 128
    # One largest eigenvalue of each.
    spectrum_batches: int = 10
    density_probes: int = 2
    points: int = 11
    landscape_batches: int = 2
    passes: int = 40


FULL_EFFORT = Effort(
    spectrum_batches=100, density_probes=10, points=21, landscape_batches=8, passes=200
)


@dataclass(frozen=True)
class AnalysedRun:
    network: nn.Module
    # Neither mixed nor mollified, with classes; `batches` are as the optimiser saw them.
    loader: TensorLoader
    batches: TrainedBatches
    loss: TrainedLoss
    objective: str
    weight_decay: float
    is_stochastic: bool
    test: TensorLoader

    @property
    def has_maps(self) -> bool:
        """False for texts, where questions about maps do not arise."""
        return self.loader.dataset.vocabulary is None

    def of_training(self, measure: Callable[..., Any], **options: Any) -> Any:
        """An analysis of the regularised loss, on batches as the optimiser saw them."""
        decay = {"weight_decay": self.weight_decay}
        return measure(self.network, self.batches, self.loss, **decay, **options)

    def of_maps(self, measure: Callable[..., Any], **options: Any) -> Any:
        if not self.has_maps:
            return None
        return measure(self.network, self.loader, generator=_generator(), **options)


_RADIUS = 4
_SHOWN = 4


@dataclass(frozen=True)
class ShownMaps:
    """Activation maps with the images that they are of."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    boxes: Tensor | None
    found: analysis.ActivationMaps

    def as_numbers(self) -> dict[str, Any]:
        """Content of `analysis.json`: the maps on their own grid, not the pictures."""
        maps = {name: getattr(self.found, name).tolist() for name in ("raw", "target", "probs")}
        return {"module": self.found.module, **maps, "labels": self.labels.tolist()}


def measure_covariance(analysed: AnalysedRun, effort: Effort) -> analysis.FeatureCovariance | None:
    """At the end of the first stage, as far around the centre as its maps go."""
    if not analysed.has_maps:
        return None
    images = analysed.loader.batch(0)["image"]
    name = analysis.stage_ends(analysed.network, images)[0]
    sides: list[int] = []
    handle = analysed.network.get_submodule(name).register_forward_hook(
        lambda _module, _inputs, output: sides.extend(output.shape[2:])
    )
    try:
        with evaluating(analysed.network):
            analysed.network(images[:1])
    finally:
        handle.remove()
    found: analysis.FeatureCovariance = analysed.of_maps(
        analysis.feature_covariance,
        module=name,
        radius=min(_RADIUS, (min(sides) - 1) // 2),
        batches=effort.spectrum_batches,
    )
    return found


def measure_maps(analysed: AnalysedRun, effort: Effort) -> ShownMaps | None:
    if not analysed.has_maps:
        return None
    standardised, test = analysed.test.batch(0)["image"][:_SHOWN], analysed.test.dataset
    found = analysis.grad_cam_plus_plus(analysed.network, standardised)
    boxes = None if test.boxes is None else test.boxes[:_SHOWN]
    return ShownMaps(test.images[:_SHOWN], test.labels[:_SHOWN], test.classes, boxes, found)


def draw_maps(results: Mapping[str, ShownMaps]) -> Figure:
    """All networks side by side: those that were shown the images of the first."""
    first = next(iter(results.values()))
    same = {
        title: each.found
        for title, each in results.items()
        if torch.equal(each.images, first.images)
    }
    return analysis.plot_activation_maps(
        first.images, same, target=first.labels, classes=first.classes, boxes=first.boxes
    )


def measure_regulariser(analysed: AnalysedRun, effort: Effort) -> analysis.RegulariserValues | None:
    """Measure each sample of some training batches; only ACLS has one that may do nothing."""
    loss = analysed.loss.loss
    if not isinstance(loss, ACLSLoss):
        return None
    names = ("margin", "predicted_weight", "other_weight", "form", "smoothing", "condition")
    options: dict[str, Any] = {name: getattr(loss, name) for name in names}
    values = []
    with evaluating(analysed.network):
        for images, target in islice(analysed.batches, effort.spectrum_batches):
            logits = analysed.loss.average(analysed.network(images))
            known, index = analysed.loss.split(target, logits.dtype)
            if loss.history is not None and index is not None:
                options["correctness"] = loss.history.correctness(index)
            values.append(acls_penalty(logits, known, **options, reduction="none"))
    return analysis.RegulariserValues(torch.cat(values))


@dataclass(frozen=True)
class Analysis:
    """One kind of analysis: what it measures on each network, and how that is drawn."""

    name: str
    caption: str
    # None where the question does not arise.
    measure: Callable[[AnalysedRun, Effort], Any]
    draw: Callable[[Mapping[str, Any]], Figure]
    # About the loss of the training, which the caption then names.
    of_training: bool = False


def _variance(analysed: AnalysedRun, effort: Effort) -> analysis.LossVariance | None:
    if not analysed.is_stochastic:
        return None
    sizes = [size for size in (1, 2, 5, 10, 20) if 2 * size <= effort.passes]
    options: dict[str, Any] = {"sizes": sizes, "passes": effort.passes, "batches": 1}
    return analysis.loss_variance(
        analysed.network, analysed.loader, **options, generator=_generator()
    )


def _response(analysed: AnalysedRun, effort: Effort) -> analysis.FrequencyResponse | None:
    layers = [module for module in analysed.network.modules() if isinstance(module, Smooth)]
    return analysis.frequency_response(layers[0]) if layers else None


ANALYSES = (
    Analysis(
        "hessian_spectrum",
        "Largest Hessian eigenvalue of each mini-batch. Large values make training unstable, "
        "negative ones mean a saddle.",
        lambda run, effort: run.of_training(
            analysis.hessian_max_spectrum,
            batches=effort.spectrum_batches,
            generator=_generator(),
        ),
        analysis.plot_hessian_spectra,
        of_training=True,
    ),
    Analysis(
        "hessian_density",
        "How all eigenvalues are spread. A flat loss keeps them near zero.",
        lambda run, effort: run.of_training(
            analysis.hessian_density, probes=effort.density_probes, generator=_generator()
        ),
        analysis.plot_hessian_densities,
        of_training=True,
    ),
    Analysis(
        "loss_landscape",
        "Loss along two random directions as long as the filters, the same for all networks. Wide "
        "and smooth is better.",
        lambda run, effort: run.of_training(
            analysis.loss_landscape, points=effort.points, batches=effort.landscape_batches
        ),
        analysis.plot_loss_landscapes,
        of_training=True,
    ),
    Analysis(
        "feature_deviation",
        "How much feature maps vary, by depth. A smoothing layer takes the variation down.",
        lambda run, effort: run.of_maps(analysis.feature_deviation, batches=1),
        analysis.plot_feature_deviations,
    ),
    Analysis(
        "feature_spectrum",
        "Fourier amplitude of the feature maps at the ends of the stages. Smoothing removes high "
        "frequencies.",
        lambda run, effort: run.of_maps(analysis.feature_spectrum, batches=2),
        analysis.plot_feature_spectra,
    ),
    Analysis(
        "loss_variance",
        "Variance of the loss of ensembles of stochastic passes, and the 1/N law.",
        _variance,
        analysis.plot_loss_variances,
    ),
    Analysis(
        "frequency_response",
        "What the first smoothing layer lets pass, by frequency.",
        _response,
        analysis.plot_frequency_responses,
    ),
    Analysis(
        "feature_covariance",
        "How alike the points of the first stage's maps are to the one in the middle, over images. "
        "Neighbours say nearly the same, so their mean is an ensemble of similar predictions.",
        measure_covariance,
        analysis.plot_feature_covariances,
    ),
    Analysis(
        "activation_maps",
        "Where the networks look in the first test images (Grad-CAM++ of the predicted class), "
        "with boxes where the data has them, and their three highest probabilities.",
        measure_maps,
        draw_maps,
    ),
    Analysis(
        "regulariser",
        "What the regulariser of ACLS adds to the loss of each training sample, clipped at 0.1, of "
        "networks that were trained with it.",
        measure_regulariser,
        analysis.plot_regularisers,
    ),
)


def key_numbers(analysed: AnalysedRun, found: Mapping[str, Any]) -> dict[str, float]:
    row: dict[str, float] = {}
    if (spectrum := found.get("hessian_spectrum")) is not None:
        top = spectrum.eigenvalues[:, 0]
        row["median top eigenvalue"] = float(top.median())
        row["largest eigenvalue"] = float(top.max())
        row["negative share"] = float((top < 0).double().mean())
    if (density := found.get("hessian_density")) is not None:
        row["mean eigenvalue"] = density.mean
    if (landscape := found.get("loss_landscape")) is not None:
        losses = landscape.mean
        middle = losses.shape[0] // 2
        row["loss"] = float(losses[middle, middle])
        row["loss on the rim"] = float(torch.cat([losses[0], losses[-1]]).mean())
    sharpness = analysis.expected_sharpness(
        analysed.network,
        analysed.batches,
        analysed.loss,
        radius=0.5,
        samples=20,
        batches=1,
        generator=_generator(),
    )
    return {**row, "expected sharpness": sharpness.value}


def _generator() -> torch.Generator:
    """The same random vectors and masks for all networks."""
    return torch.Generator().manual_seed(0)


def analyse(
    runs: Sequence[Path],
    out: Path,
    *,
    effort: Effort | None = None,
    only: Sequence[str] = (),
    modules: Path | None = None,
    show: bool = True,
    say: Callable[[str], None] = warnings.warn,
) -> dict[str, Any]:
    """Analyse the networks of finished runs; writes `analysis.json` and a picture for each kind."""
    names = [each.name for each in ANALYSES]
    for name in only:
        if name not in names:
            raise ConfigError(f"unknown analysis {name!r}; choose from {', '.join(names)}")
    chosen = [each for each in ANALYSES if not only or each.name in only]
    effort = effort or Effort()
    titles, left_out = find_runs(runs)
    for line in left_out:
        say(line)
    results: dict[str, dict[str, Any]] = {each.name: {} for each in chosen}
    summary: dict[str, dict[str, float]] = {}
    objectives: dict[str, str] = {}
    with progress_bar("analysing", len(titles) * (len(chosen) + 1), show=show) as bar:
        for title, path in titles.items():
            analysed = read_analysed_run(path, effort, modules)
            objectives[title] = analysed.objective
            for each in chosen:
                found = each.measure(analysed, effort)
                if found is not None:
                    results[each.name][title] = found
                bar.advance(f"{title}: {each.name}")
            summary[title] = key_numbers(analysed, {n: r.get(title) for n, r in results.items()})
            bar.advance(title)
    shown = [each for each in chosen if results[each.name]]
    sections = [_write_section(each, results[each.name], out, objectives) for each in shown]
    said = {"titles": list(titles), "objectives": objectives, "summary": summary}
    content = {**said, "sections": sections}
    write_json(out / "analysis.json", content)
    return content


def find_runs(paths: Sequence[Path]) -> tuple[dict[str, Path], list[str]]:
    """Runs by title, of a study the first finished seed of each method, and what is left out."""
    found: dict[str, Path] = {}
    lines = []
    for path in paths:
        if (path / "study.json").exists():
            taken, missing = _first_seeds(path)
        else:
            _check_run(path)
            taken, missing = {title_of_run(path): path}, []
        if missing:
            lines.append(
                f"{path}: {len(missing)} of {len(taken) + len(missing)} methods are left out, "
                f"because no run of theirs is finished: {', '.join(missing)}"
            )
        for title, run in taken.items():
            # Two studies may call a method alike, and both are shown.
            while title in found:
                title += "'"
            found[title] = run
    return found, lines


def _first_seeds(study: Path) -> tuple[dict[str, Path], list[str]]:
    """The first finished run of each method of a study, and the methods that have none."""
    entries = index_entries(study)
    found: dict[str, Path] = {}
    for entry in entries:
        run = study / "runs" / entry["run"]
        if entry["method"] not in found and RunDirectory(run).finished:
            found[entry["method"]] = run
    if not found:
        raise ConfigError(f"{study}: no run is finished; train one first (sfumato run)")
    methods = dict.fromkeys(entry["method"] for entry in entries)
    return found, [method for method in methods if method not in found]


def _check_run(path: Path) -> None:
    if not (path / "config.yaml").exists():
        raise FileNotFoundError(f"{path} holds no config.yaml: pass a run's directory or a study's")


def read_analysed_run(path: Path, effort: Effort, modules: Path | None) -> AnalysedRun:
    """The network of a run with the loss and the batches that it was trained on."""
    run = RunDirectory(path)
    _check_run(path)
    config = read_config(run, modules=modules)
    if config.task != "classify":
        raise ConfigError(f"{path}: only classifiers can be analysed, not the task {config.task!r}")
    trained = load_network(run, modules=modules)
    if isinstance(trained.network, OnnxModel):
        raise ConfigError(
            f"{path}: a network in an ONNX file has neither gradients nor feature maps to analyse; "
            "analyse the network that it was exported from"
        )
    facts = trained.facts

    loader = partial(
        TensorLoader,
        shuffle=True,
        drop_last=True,
        channels_last=config.train.channels_last,
        mean=facts.mean,
        std=facts.std,
    )
    with searching(config.modules):
        try:
            data = load_splits(config.data, fetch=False)
            objective = build_objective(config, data.train, facts.mean, facts.std)
        # Of a part inside another, which only building it looks at; of data of any size.
        except (MemoryError, RuntimeError, ValueError) as error:
            raise ConfigError(f"{path}: {str(error) or type(error).__name__}") from error
        checkpoint = load_checkpoint(run.checkpoint)
        if checkpoint is not None:
            # What it knew of each sample, or of confidences, at the end of the training.
            try:
                objective.loss.load_state_dict(checkpoint.loss)
            except (AttributeError, RuntimeError, TypeError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise unreadable_file(run.checkpoint, reason) from None
        loss = TrainedLoss(objective.loss, config.train.passes)
        size = min(effort.batch_size, len(objective.train))
        seen = loader(objective.train, size, augment=objective.augment)
        size = min(effort.batch_size, len(data.train))
        plain = loader(data.train, size, augment=build_augmentation(config.augment))
    rates = [m.p for m in trained.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    return AnalysedRun(
        trained.network,
        plain,
        TrainedBatches(seen, objective.inputs, loss.takes_index, loss.passes),
        loss,
        describe_objective(config),
        config.train.weight_decay,
        any(rates),
        TensorLoader(data.test, effort.batch_size, mean=facts.mean, std=facts.std),
    )


def _write_section(
    kind: Analysis, results: Mapping[str, Any], out: Path, objectives: Mapping[str, str]
) -> dict[str, Any]:
    picture, caption = f"{kind.name}.png", kind.caption
    if kind.of_training:
        said = "; ".join(f"{title}: {what}" for title, what in objectives.items())
        differ = len(set(objectives.values())) > 1
        heights = " Heights of different losses can't be compared."
        caption += (
            " Of the loss that was trained, on training samples as the optimiser saw them. "
            f"{said}.{heights if differ else ''}"
        )
    figure = kind.draw(results)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / picture, lambda path: figure.savefig(path, format="png", dpi=130))
    plain = {title: _plain(result) for title, result in results.items()}
    return {"name": kind.name, "caption": caption, "picture": picture, "results": plain}


def _plain(value: Any) -> Any:
    """Dataclasses and named tuples of tensors as dicts of lists."""
    if isinstance(value, ShownMaps):
        return value.as_numbers()
    if isinstance(value, Tensor):
        return value.tolist()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return _plain(value._asdict()) if hasattr(value, "_asdict") else list(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return value
