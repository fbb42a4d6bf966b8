"""Deep ensembles of the networks that runs have trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from sfumato.engine.config.run_config import RunConfig, training_content
from sfumato.engine.config.sections import content_hash
from sfumato.engine.runs.directory import TRAININGS, RunDirectory
from sfumato.engine.runs.epoch_records import EpochRecords
from sfumato.engine.runs.networks import TrainedNetwork, load_network, read_config
from sfumato.engine.training.checkpoint import load_checkpoint
from sfumato.predictions import DeepEnsemble, MCDropout


def load_predictor(
    run: str | Path | RunDirectory, *, modules: str | Path | None = None
) -> nn.Module:
    """A run's network as its `predict` section uses it.

    Args:
        run: the run's directory.
        modules: the folder of the user's own modules, as for `load_network`.

    Returns:
        The network, which gives logits; with `mc_dropout` an `MCDropout` of it, with `ensemble` the
        `DeepEnsemble`, which give probabilities. All take images that are not standardised yet.
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
    """Where the networks of a run's ensemble are: directories of trainings, or the given runs.

    Args:
        config: of the ensemble.
        root: the folder of runs.
    """
    members = config.predict.ensemble or []
    return [
        Path(each).expanduser()
        if isinstance(each, str)
        else root / TRAININGS / content_hash(training_content(member_config(config, each)))
        for each in members
    ]


def load_members(
    config: RunConfig, root: Path, *, modules: str | Path | None = None
) -> list[TrainedNetwork]:
    """The networks of a run's ensemble.

    Args:
        config: of the ensemble.
        root: the folder of runs.
        modules: the folder of the user's own modules, as for `load_network`.

    Raises:
        FileNotFoundError: a network that is not trained, or not to its end.
    """
    found = []
    for place, path in zip(
        config.predict.ensemble or [], member_trainings(config, root), strict=True
    ):
        what = f"run {place}" if isinstance(place, str) else f"seed {place}"
        if isinstance(place, int) and not _is_trained(path, config.train.epochs):
            raise FileNotFoundError(
                f"predict.ensemble: {what} has no trained network: its training failed or was "
                "interrupted. Mend that (its error.txt says what it was), then give the same "
                "command again"
            )
        try:
            found.append(load_network(path, modules=modules))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"predict.ensemble: {what}: {error}") from None
    return found


def training_seconds(config: RunConfig, root: Path) -> float:
    """What all networks of a run's ensemble took to train."""
    logs = [EpochRecords(path).read() for path in member_trainings(config, root)]
    return sum(record.get("seconds", 0.0) for log in logs for record in log)


def _is_trained(path: Path, epochs: int) -> bool:
    checkpoint = load_checkpoint(path / "checkpoint")
    return checkpoint is not None and checkpoint.epoch == epochs


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

    Raises:
        ValueError: no runs, or runs whose classes differ.
        FileNotFoundError: a run that does not exist or is not trained.

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
        raise TypeError(f"expected a TrainedNetwork inside, got {type(inner).__name__}")
    return inner
