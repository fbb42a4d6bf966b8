"""Deep ensembles and model soups of the networks that runs have trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sfumato._core.import_path import searching
from sfumato.engine.config.build import without_weights
from sfumato.engine.config.run_config import RunConfig, training_name
from sfumato.engine.runs.directory import TRAININGS, EpochRecords, RunDirectory
from sfumato.engine.training.averages import has_statistics, renewing_statistics
from sfumato.engine.training.checkpoint import (
    TrainedNetwork,
    load_checkpoint,
    load_network,
    read_config,
)
from sfumato.engine.training.steps import load_splits
from sfumato.predictions import DeepEnsemble, MCDropout


def load_predictor(
    run: str | Path | RunDirectory, *, modules: str | Path | None = None
) -> nn.Module:
    """A run's network as its `predict` section uses it, for images that are not standardised yet.

    Args:
        run: the run's directory.
        modules: the folder of the user's own modules, as for `load_network`.

    Returns:
        The network, which gives logits; with `mc_dropout` an `MCDropout` of it, with `ensemble` the
        `DeepEnsemble`, which give probabilities.
    """
    directory = run if isinstance(run, RunDirectory) else RunDirectory(Path(run))
    config = read_config(directory, modules=modules)
    if config.predict.ensemble is not None:
        members = load_members(config, directory.path.parent, modules=modules)
        return DeepEnsemble([sampled(member, config) for member in members]).eval()
    return sampled(load_network(directory, modules=modules), config)


def member_config(config: RunConfig, seed: int) -> RunConfig:
    """The run of one network of an ensemble over seeds."""
    alone = config.predict.model_copy(update={"ensemble": None})
    return config.model_copy(update={"seed": seed, "predict": alone})


def member_trainings(config: RunConfig, root: Path) -> list[Path]:
    """Find the networks of a run's ensemble: directories of trainings, or the given runs."""
    members = config.predict.ensemble or []
    return [
        Path(each).expanduser()
        if isinstance(each, str)
        else root / TRAININGS / training_name(member_config(config, each))
        for each in members
    ]


def load_members(
    config: RunConfig, root: Path, *, modules: str | Path | None = None
) -> list[TrainedNetwork]:
    """The networks of a run's ensemble."""
    found = []
    for place, path in zip(
        config.predict.ensemble or [], member_trainings(config, root), strict=True
    ):
        what = f"run {place}" if isinstance(place, str) else f"seed {place}"
        # A run that is given by its directory has a number of epochs of its own.
        checkpoint = load_checkpoint(path / "checkpoint") if isinstance(place, int) else None
        if isinstance(place, int) and getattr(checkpoint, "epoch", None) != config.train.epochs:
            raise FileNotFoundError(
                f"predict.ensemble: {what} has no trained network: its training failed or was "
                "interrupted. Fix that (its error.txt says what it was), then give the same "
                "command again"
            )
        try:
            found.append(load_network(path, modules=modules))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"predict.ensemble: {what}: {error}") from None
    return found


def training_seconds(config: RunConfig, root: Path) -> float:
    """Add up the seconds that all networks of a run's ensemble took to train."""
    logs = [EpochRecords(path).read() for path in member_trainings(config, root)]
    return sum(record.get("seconds", 0.0) for log in logs for record in log)


def sampled(network: nn.Module, config: RunConfig) -> nn.Module:
    """A network, or the mean over its dropout masks, as the `predict` section says."""
    samples = config.predict.mc_dropout
    return network if samples is None else MCDropout(network, samples)


def load_ensemble(
    runs: Sequence[str | Path | RunDirectory], *, modules: str | Path | None = None
) -> DeepEnsemble:
    """The deep ensemble of several runs, usually one method with several seeds.

    Runs that predict with MC dropout join as `MCDropout` with their number of samples, so that
    the ensemble is one over seeds and masks; each member standardises the images its own way.

    Args:
        runs: the runs' directories, at least one.
        modules: the folder of the user's own modules, as for `load_network`.

    Returns:
        A module from uint8 images, or floating-point ones in [0, 1], to mean probabilities.

    Example:
        >>> ensemble = load_ensemble(["runs/a", "runs/b", "runs/c"])  # doctest: +SKIP
        >>> ensemble(images).argmax(1)  # doctest: +SKIP

    Reference:
        Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep
        Ensembles, NeurIPS 2017; of MC-dropout networks in Park and Kim 2022, Fig. E.1.
    """
    if isinstance(runs, str | Path) or not runs:
        raise ValueError(f"runs must be a list of at least one run directory, got {runs!r}")
    members = [load_predictor(run, modules=modules) for run in runs]
    classes = [_network(member).classes for member in members]
    for run, found in zip(runs, classes, strict=True):
        if found != classes[0]:
            raise ValueError(
                f"runs must have the same classes: {runs[0]} has {classes[0]}, {run} has {found}"
            )
    return DeepEnsemble(members).eval()


def _network(member: nn.Module) -> TrainedNetwork:
    inner = member.model if isinstance(member, MCDropout) else member
    if not isinstance(inner, TrainedNetwork):
        raise ValueError(
            f"runs must be of one network each, got one of a {type(inner).__name__}: name the runs "
            "of its members"
        )
    return inner


def load_soup(
    runs: Sequence[str | Path | RunDirectory], *, modules: str | Path | None = None
) -> TrainedNetwork:
    """The uniform soup of several runs: one network, as cheap as one, with their mean weights.

    Fine-tunings of the same weights lie in one basin of the loss, and the middle of them is often
    better than each; the mean of networks that were trained from scratch knows nothing (use
    `load_ensemble`). Statistics of batch normalisation are made anew from the training images of
    the first run, in its batches and without augmentation.

    Args:
        runs: directories of at least two runs of one network that started from the same weights.
        modules: as `load_network`.

    Returns:
        A module from uint8 images, or floating-point ones in [0, 1], to logits. Its
        `network.state_dict()`, saved, is a file of weights for a study.

    Example:
        >>> soup = load_soup(["runs/a", "runs/b", "runs/c"])  # doctest: +SKIP
        >>> torch.save(soup.network.state_dict(), "soup.pt")  # doctest: +SKIP

    Reference:
        Wortsman et al., Model soups: averaging weights of multiple fine-tuned models improves
        accuracy without increasing inference time, ICML 2022, Table 2 (uniform).
    """
    if isinstance(runs, str | Path) or len(runs) < 2:
        raise ValueError(f"runs must be a list of at least two run directories, got {runs!r}")
    paths = [each if isinstance(each, RunDirectory) else RunDirectory(Path(each)) for each in runs]
    configs = [read_config(each, modules=modules) for each in paths]
    members = [load_network(each, modules=modules) for each in paths]
    facts = [_facts(*each) for each in zip(configs, members, strict=True)]
    for run, found in zip(paths, facts, strict=True):
        for what, value in facts[0].items():
            if found[what] != value:
                raise ValueError(
                    f"runs of a soup must have the same {what}: the first has {value}, {run.path} "
                    f"has {found[what]}. Fine-tune one network from one file (weights: FILE, or "
                    "pretrained: NAME), or use load_ensemble"
                )
    soup = members[0]
    soup.network.load_state_dict(_mean([each.network.state_dict() for each in members]))
    if has_statistics(soup.network):
        _renew(soup, configs[0])
    return soup


def _facts(config: RunConfig, member: TrainedNetwork) -> dict[str, Any]:
    model = config.model
    start = model.get("weights_digest") or model.get("pretrained") or f"seed {config.seed}"
    return {
        "network": without_weights(model),
        "classes": member.facts.classes,
        "standardisation": (member.facts.mean, member.facts.std),
        "weights at the start": start,
    }


def _mean(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Of floating-point entries the mean, taken in double precision; of counters the first."""
    return {
        key: torch.stack([state[key].double() for state in states]).mean(0).to(value.dtype)
        if value.is_floating_point()
        else value
        for key, value in states[0].items()
    }


@torch.no_grad()
def _renew(soup: TrainedNetwork, config: RunConfig) -> None:
    """Only batch normalisation is in training mode: dropout would change what it sees."""
    with searching(config.modules):
        images = load_splits(config.data, fetch=False).train.images
    for part in soup.network.modules():
        if isinstance(part, _BatchNorm):
            part.train()
    with renewing_statistics(soup.network):
        for batch in images.split(config.train.batch_size):
            soup(batch)
    soup.eval()
