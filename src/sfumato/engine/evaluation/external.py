"""`ExternalEvaluation`: a network that was trained anywhere, on data from anywhere, as a run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato._core.checks import are_probabilities, check_class_indices, to_tensor
from sfumato._core.evaluation_mode import evaluating, returns_probabilities
from sfumato._core.files import finite, write_json
from sfumato._core.import_path import module_folder, searching
from sfumato._core.spec import Spec
from sfumato._core.text import progress_bar
from sfumato._core.yaml_files import write_yaml
from sfumato.data import ArrayDataset, DataSplits, TensorLoader
from sfumato.data.dataset import UNLABELLED, Normalise, image_shape
from sfumato.engine.config.build import build_component
from sfumato.engine.config.components import resolve_component
from sfumato.engine.config.kinds import check_set_names
from sfumato.engine.evaluation.classifier import Evaluator
from sfumato.engine.evaluation.context import Context, log_probabilities
from sfumato.engine.evaluation.other_sets import Scorer
from sfumato.engine.evaluation.splits import PlainSections, write_mistakes
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import Predictions, RunDirectory, environment_facts
from sfumato.engine.training.checkpoint import EXTERNAL
from sfumato.engine.training.predict import predict_batches
from sfumato.engine.training.steps import load_splits
from sfumato.predictions import DeepEnsemble

Numbers = float | Sequence[float] | npt.NDArray[Any] | Tensor
Statistics = tuple[float, ...] | None


def read_numbers(name: str, numbers: Numbers | None) -> Statistics:
    """Plain numbers of a tensor, an array, a list, or of one number, which is for all channels."""
    if numbers is None:
        return None
    found = to_tensor(name, numbers).double()
    if found.ndim > 1 or not found.numel():
        raise ValueError(
            f"{name} must be one number, or one for each channel, got {tuple(found.shape)}"
        )
    return tuple(found.reshape(-1).tolist())


def for_channels(mean: Statistics, std: Statistics, channels: int) -> tuple[Statistics, Statistics]:
    """Both with as many numbers as images have channels; one number is for all of them."""
    mean, std = (each * channels if each and len(each) == 1 else each for each in (mean, std))
    Normalise(channels, mean, std)  # says which of them does not fit
    return mean, std


# Of (images, labels), or of mappings with these: a `DataLoader` or what behaves like one.
Batches = Iterable[Any]

Split = ArrayDataset | Batches
_KEYS = (("image", "label"), ("images", "labels"), ("pixel_values", "labels"))
_ROUNDING = 0.01  # of [0, 1], what undoing a standardisation in half precision may leave


@dataclass(frozen=True)
class ExternalData:
    """The test set, held-out data where there are any, and the spec for the configuration."""

    test: Split
    validation: Split | None
    spec: dict[str, Any]
    # Strange inputs by name, and the training images that distances of them are fitted on.
    strange: dict[str, Split]
    train: Split | None


def _read_strange(ood: Spec | DataSplits | Split | Mapping[str, Any]) -> dict[str, Split]:
    named = isinstance(ood, Mapping) and "name" not in ood
    given = dict(cast(Mapping[str, Any], ood)) if named else {"strange": ood}
    check_set_names(given)
    sets: dict[str, Split] = {}
    for name, each in given.items():
        split = each
        if isinstance(split, str | Mapping):
            with searching(module_folder() or Path.cwd()):
                split = build_component("data", split)
        sets[name] = split.test if isinstance(split, DataSplits) else split
    return sets


def read_data(
    data: Spec | DataSplits | Split,
    validation: Split | None,
    ood: Spec | DataSplits | Split | Mapping[str, Any] | None,
    train: Split | None,
) -> ExternalData:
    """Sort out what was passed; strange inputs have the training images of `data` by default."""
    spec: dict[str, Any] = {"name": type(data).__name__}
    if isinstance(data, str | Mapping):
        with searching(module_folder() or Path.cwd()):  # the caller's own name, if it is one
            spec = resolve_component("data", data, "classify").config
            data = load_splits(spec)
    if ood is None and train is not None:
        raise ValueError("train is for the distances of strange inputs: pass ood= too")
    if isinstance(data, DataSplits):
        if validation is not None:
            raise ValueError("data has a validation set of its own: leave validation out")
        test: Split = data.test
        validation = data.validation
        if ood is not None and train is None and len(data.train):
            train = data.train
    else:
        test = data
    _check_split("data", test)
    strange = {} if ood is None else _read_strange(ood)
    known = (("validation", validation), ("train", train))
    given = {name: split for name, split in known if split is not None}
    for name, each in {**given, **{f"ood {key}": each for key, each in strange.items()}}.items():
        _check_split(name, each)
    return ExternalData(test, validation, spec, strange, train)


def _check_split(name: str, split: Any) -> None:
    if isinstance(split, ArrayDataset):
        if split.labels.ndim != 1:
            raise ValueError(
                f"{name} has segmentation masks; sfumato.evaluate takes one label an image"
            )
        if not len(split):
            raise ValueError(f"{name} is empty: there is nothing to evaluate")
    elif not isinstance(split, Iterable) or isinstance(split, Tensor):
        raise TypeError(
            f"{name} must be a DataLoader of (images, labels), an ArrayDataset or DataSplits of "
            f"sfumato.data, or a name as in a study, got {type(split).__name__}. Put a data set "
            "into torch.utils.data.DataLoader(dataset, batch_size=128)"
        )


def read_batches(
    name: str, batches: Batches, *, is_strange: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels, batch after batch, of the form that the metrics need."""
    empty = True
    for batch in batches:
        images, labels = _images(name, batch) if is_strange else _pair(name, batch)
        if len(images):
            empty = False
            yield images, labels
    if empty:
        raise ValueError(f"{name} is empty: there is nothing to evaluate")


def _images(name: str, batch: Any) -> tuple[Tensor, Tensor]:
    """Strange inputs, with labels that say nothing: none are read."""
    found = batch
    if isinstance(batch, Mapping):
        found = next((batch[key] for key, _ in _KEYS if key in batch), None)
    elif isinstance(batch, list | tuple) and batch:
        found = batch[0]
    if not isinstance(found, Tensor):
        raise TypeError(
            f"{name} must give batches of images, alone or with what follows them, or mappings "
            f"with 'image', got {type(batch).__name__}"
        )
    return found, torch.full((len(found),), UNLABELLED)


def _pair(name: str, batch: Any) -> tuple[Tensor, Tensor]:
    found: Sequence[Any] = ()
    came = type(batch).__name__
    if isinstance(batch, Mapping):
        keys = next((keys for keys in _KEYS if all(key in batch for key in keys)), ())
        found = [batch[key] for key in keys]
        came = f"a mapping with {sorted(map(str, batch))}"
    elif isinstance(batch, list | tuple):
        found = batch
        came = f"{len(batch)} things in a {came}"
    if len(found) != 2 or not all(isinstance(each, Tensor) for each in found):
        raise TypeError(
            f"{name} must give batches (images, labels) of tensors, or mappings with 'image' and "
            f"'label', got {came}. Metrics need the labels"
        )
    images, labels = found
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.ndim != 1:
        raise TypeError(
            f"{name}: labels must be class indices (N,), got {labels.dtype} {tuple(labels.shape)}. "
            "Of one-hot or soft labels take argmax(1)"
        )
    if len(images) != len(labels):
        raise ValueError(f"{name}: {len(images)} images with {len(labels)} labels in a batch")
    return images, labels.to(torch.int64).cpu()


def to_bytes(images: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """Images of a loader as they were before they were standardised, uint8."""
    if images.ndim != 4:
        raise ValueError(f"corruptions need images (N, C, H, W), got {tuple(images.shape)}")
    if images.dtype == torch.uint8:
        return images.cpu()
    values = images.float().cpu() * torch.tensor(std or 1.0).view(-1, 1, 1)
    values = values + torch.tensor(mean or 0.0).view(-1, 1, 1)
    low, high = (float(end) for end in values.aminmax())
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        raise ValueError(
            f"corruptions are of images in [0, 1] or bytes, and these are in [{low:.2f}, "
            f"{high:.2f}]. Say with what the loader standardises them: mean=(...), std=(...)"
        )
    return (values * 255).round().clamp(0, 255).to(torch.uint8)


ExternalModel = nn.Module | Callable[[Tensor], Tensor]


class ExternalNetwork(nn.Module):
    """A model that gets images in the form in which its own loader gives them."""

    def __init__(self, model: ExternalModel) -> None:
        super().__init__()
        self.model = model
        self.takes_bytes = False
        # Their logarithm serves as logits.
        self.gives_probabilities = returns_probabilities(model)

    def forward(self, images: Tensor) -> Tensor:
        if self.takes_bytes and images.is_floating_point():
            images = (images * 255).round().to(torch.uint8)
        # The evaluation's own batches are channels-last, which `view` in a model may not like.
        output = self.model(images.contiguous())
        return log_probabilities(output) if self.gives_probabilities else output


def as_network(model: ExternalModel, ensemble: int | Sequence[ExternalModel] | None) -> nn.Module:
    """The network to evaluate: the model itself, or the deep ensemble of it and others."""
    network = _as_module("model", model)
    if isinstance(ensemble, int) and network.gives_probabilities:
        raise ValueError(
            f"ensemble={ensemble} samples dropout masks of a network that gives logits, and "
            f"{type(model).__name__} gives probabilities: leave ensemble out, or pass its network"
        )
    if ensemble is None or isinstance(ensemble, int):
        return network
    if not ensemble:
        raise ValueError(
            "ensemble must hold the other models, which are averaged with model; got none"
        )
    if any(each is model for each in ensemble):
        raise ValueError(
            "ensemble must hold the other models only: model is a member anyway and would count "
            "twice"
        )
    return DeepEnsemble([network, *(_as_module("ensemble", each) for each in ensemble)])


def _as_module(name: str, model: Any) -> ExternalNetwork:
    if isinstance(model, type) or not callable(model):
        what = f"the class {model.__name__}" if isinstance(model, type) else repr(model)[:80]
        raise TypeError(
            f"{name} must be an nn.Module or a function from images to logits, got {what}"
        )
    return ExternalNetwork(model)


def members_of(network: nn.Module) -> list[ExternalNetwork]:
    """The user's models behind a network."""
    return [each for each in network.modules() if isinstance(each, ExternalNetwork)]


def try_out(network: nn.Module, images: Tensor, num_classes: int | None) -> None:
    """Give every model one batch and look at what it returns."""
    for member in members_of(network):
        with evaluating(member):
            logits = member(images)
        check_logits(logits, images)
        refuse_probabilities(logits)
        if member.gives_probabilities and not bool(((logits.exp().sum(1) - 1).abs() < 1e-2).all()):
            raise ValueError(
                "the model says returns_probabilities = True, but its rows don't sum to 1: take "
                "their softmax, or leave the attribute out if they are logits"
            )
        num_classes = num_classes or logits.shape[1]
        if logits.shape[1] != num_classes:
            raise ValueError(
                f"the model returned {logits.shape[1]} logits an image, but the data (or the first "
                f"model) has {num_classes} classes"
            )


def refuse_probabilities(logits: Tensor) -> None:
    if are_probabilities(logits):
        raise ValueError(
            "the model returned probabilities (no entry is negative, and every row sums to 1), "
            "where logits are expected: leave its softmax out, or set model.returns_probabilities "
            "= True"
        )


def device_of(network: nn.Module, device: torch.device | str | None) -> torch.device:
    """Choose the device of images: the caller's, else that of the weights, else the CPU."""
    if device is not None:
        named = torch.device(device)
        if named.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device={str(device)!r}: PyTorch finds no CUDA device here. Leave device out, or "
                'say "cpu"'
            )
        return named
    tensors = itertools.chain(network.parameters(), network.buffers())
    return next((each.device for each in tensors), torch.device("cpu"))


def check_logits(logits: Any, images: Tensor) -> None:
    """Raise unless a model's output for a batch is finite logits (N, C)."""
    if not isinstance(logits, Tensor):
        has_logits = isinstance(getattr(logits, "logits", None), Tensor)  # as Hugging Face's models
        picks = ": evaluate lambda images: model(images).logits" if has_logits else ""
        raise TypeError(
            f"the model must return a tensor of logits (N, C), it returned "
            f"{type(logits).__name__}. Wrap it in a function that picks the logits{picks}"
        )
    count, shape = len(images), tuple(logits.shape)
    if logits.ndim != 2 or len(logits) != count or logits.shape[1] < 2:
        raise ValueError(
            f"the model must return logits ({count}, C) with C of 2 or more for {count} images, "
            f"it returned {shape}. Two classes have two logits; features are no logits"
        )
    if not logits.is_floating_point():
        raise TypeError(f"the model's logits must be floating point, got {logits.dtype}")
    rows = logits.isfinite().all(1)
    if not bool(rows.all()):
        first = int((~rows).nonzero()[0])
        raise ValueError(
            f"the model's logits must be finite, got {logits[first].tolist()[:5]} for image "
            f"{first} of a batch. Are the images standardised as in training (mean=, std=)?"
        )


@dataclass
class ExternalEvaluation:
    """Evaluates a user's network on a user's data in memory, with the numbers that a run has."""

    network: nn.Module
    data: ExternalData
    sections: PlainSections
    # Per channel, or one for all; None for images in [0, 1].
    mean: Statistics
    std: Statistics
    batch_size: int
    device: torch.device
    show: bool
    # Before which features are taken; None for the last.
    layer: str | None = None

    def __post_init__(self) -> None:
        devices = [self.device.index or 0] if self.device.type == "cuda" else 1
        fabric = Fabric(accelerator=self.device.type, devices=devices)
        # The number of channels is known after the first batch.
        self.context = Context(
            fabric, self.sections, self.network, None, (), (), self.show, self.batch_size
        )
        self.evaluator = Evaluator(self.context)
        self._seconds: dict[str, float] = {}
        self._shapes: set[tuple[int, ...]] = set()  # of test images

    def measure(self) -> dict[str, Any]:
        """Predict and measure; the metrics as plain data."""
        with torch.random.fork_rng():  # every measurement seeds the random state
            if self.data.validation is not None:
                self._split("validation", self.data.validation)
            if self.data.strange:
                self._score(self.data.train)
            self._test = test = self._split("test", self.data.test)
            for name, split in self.data.strange.items():
                self._split(name, split, is_strange=True)
            count = test.images.shape[1]
            self.context.mean = self.mean or (0.0,) * count
            self.context.std = self.std or (1.0,) * count
            self._metrics: dict[str, Any] = finite(self.evaluator.finish(test))
        return self._metrics

    def _score(self, train: Split | None) -> None:
        """Have strange inputs scored, with distances where there are training images."""
        if train is None or isinstance(train, ArrayDataset):
            self.evaluator.score(None if train is None else self._loader(train), self.layer)
        else:
            self.evaluator.scorer = scorer = Scorer(self.context, True, self.layer)
            found, _ = self._predict(scorer.training_features(), "train", train, False)
            scorer.fit(found.logits, found.labels, int(found.labels.max()) + 1)

    def _loader(self, dataset: ArrayDataset) -> TensorLoader:
        self.mean, self.std = for_channels(self.mean, self.std, image_shape(dataset)[0])
        return TensorLoader(
            dataset, self.batch_size, mean=self.mean, std=self.std, device=self.device
        )

    def _split(self, name: str, split: Split, *, is_strange: bool = False) -> ArrayDataset:
        began = time.perf_counter()
        if isinstance(split, ArrayDataset):
            loader = self._loader(split)
            images = loader.batch(0)["image"]
            self._check_shape(name, images, is_strange)
            try_out(self.network, images, None if is_strange else split.num_classes)
            self.evaluator.add(name, loader)
            self._seconds[name] = time.perf_counter() - began
            return split
        keeps_images = name == "test" and bool(self.sections.evaluate.corruption_names)
        predictor, scorer = self.evaluator.begin(name), self.evaluator.scorer
        if scorer is not None and name != "validation":
            predictor = scorer.around(predictor)
        found, images = self._predict(predictor, name, split, keeps_images, is_strange)
        if scorer is not None and name != "validation":
            found, arrays = scorer.split(found)
            scorer.take(name, arrays)
        # The first batch may have had too few rows to tell.
        refuse_probabilities(found.logits)
        self._seconds[name] = time.perf_counter() - began
        self.context.predictions[name] = found
        classes = _classes(split, found.logits.shape[1])
        if is_strange:
            return ArrayDataset(images, found.labels, classes, void=UNLABELLED)
        check_class_indices(f"labels of {name}", found.labels, len(classes))
        dataset = ArrayDataset(images, found.labels, classes)
        self.evaluator.measure(name, dataset)
        return dataset

    def _predict(
        self,
        predictor: nn.Module,
        name: str,
        batches: Batches,
        keeps_images: bool,
        is_strange: bool = False,
    ) -> tuple[Predictions, Tensor]:
        """Predict in the loader's order; its images come back as bytes where they are needed."""
        logits: list[Tensor] = []
        labels: list[Tensor] = []
        kept: list[Tensor] = []

        def inputs() -> Iterator[tuple[Tensor, Tensor]]:
            said = f"ood {name}" if is_strange else name
            for images, target in read_batches(said, batches, is_strange=is_strange):
                images = images.to(self.device)
                self._check_shape(name, images, is_strange)
                if not labels:
                    self._look_at(images)
                if keeps_images:
                    kept.append(to_bytes(images, self.mean, self.std))
                labels.append(target)
                yield images, images

        def take(output: Tensor, images: Tensor) -> None:
            check_logits(output, images)
            logits.append(output.float().cpu())

        steps = len(batches) if isinstance(batches, Sized) else None
        show = self.show and steps is not None
        with progress_bar(f"predicting {name}", steps or 0, show=show) as bar:
            predict_batches(predictor, inputs(), take, bar)
        target = torch.cat(labels)
        found = Predictions(torch.cat(logits), target, torch.arange(len(target)))
        blank = torch.empty((len(target), 0, 0, 0), dtype=torch.uint8)
        return found, torch.cat(kept) if kept else blank

    def _check_shape(self, name: str, images: Tensor, is_strange: bool) -> None:
        """Strange inputs have a shape of test images: scores would tell sizes apart."""
        if images.ndim != 4:  # texts: the length of a batch is that of its longest
            return
        shape = tuple(images.shape[1:])
        if name == "test":
            self._shapes.add(shape)
        elif is_strange and shape not in self._shapes:
            known = ", ".join(map(str, sorted(self._shapes)))
            raise ValueError(
                f"ood {name} has images of {shape}, and data of {known}: scores would tell "
                "their sizes apart. Resize them in its loader"
            )

    def _look_at(self, images: Tensor) -> None:
        """The first batch of a loader: what form its images have, and what the models say."""
        is_bytes = images.dtype == torch.uint8
        if is_bytes and not (self.mean is None and self.std is None):
            raise ValueError(
                "the loader gives bytes, which are not standardised: leave mean and std out"
            )
        channels = images.shape[1] if images.ndim > 1 else 0
        self.mean, self.std = for_channels(self.mean, self.std, channels)
        for member in members_of(self.network):
            member.takes_bytes = is_bytes
        try_out(self.network, images, None)

    def write(self, run: RunDirectory) -> None:
        """Write what was measured as a run that `sfumato report`, `compare` and `audit` read."""
        context, sections = self.context, self.sections
        (first, *_) = members_of(self.network)
        config = {
            "task": "classify",
            "data": self.data.spec,
            "model": {"name": EXTERNAL, "class": type(first.model).__name__},
            "predict": sections.predict.model_dump(mode="json"),
            "evaluate": sections.evaluate.model_dump(mode="json"),
            "seed": sections.seed,
        }
        for name, found in context.predictions.items():
            run.write_predictions(name, found, seconds=self._seconds[name])
        write_mistakes(run, context.predictions["test"], self._test)
        context.replicates.write(run.path)
        write_yaml(run.path / "config.yaml", config)
        write_json(run.path / "environment.json", environment_facts(context.fabric))
        run.write_metrics(self._metrics)


def _classes(split: Batches, count: int) -> tuple[str, ...]:
    """The names that the loader's data set has, as torchvision's do, or numbers."""
    found = getattr(getattr(split, "dataset", None), "classes", None)
    if isinstance(found, list | tuple) and len(found) == count:
        return tuple(str(each) for each in found)
    return tuple(str(number) for number in range(count))
