"""Deep ensembles of the networks that runs have trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.networks import TrainedNetwork, load_network, read_config
from sfumato.predictions import DeepEnsemble, MCDropout


def load_predictor(
    run: str | Path | RunDirectory, *, modules: str | Path | None = None
) -> TrainedNetwork | MCDropout:
    """A run's network as its `predict` section uses it.

    Args:
        run: the run's directory.
        modules: the folder of the user's own modules, as for `load_network`.

    Returns:
        The network, which gives logits, or with `mc_dropout` an `MCDropout` of it, which gives
        probabilities. Both take images that are not standardised yet.
    """
    directory = run if isinstance(run, RunDirectory) else RunDirectory(Path(run))
    network = load_network(directory, modules=modules)
    samples = read_config(directory, modules=modules).predict.mc_dropout
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


def _network(member: TrainedNetwork | MCDropout) -> TrainedNetwork:
    inner = member.model if isinstance(member, MCDropout) else member
    if not isinstance(inner, TrainedNetwork):
        raise TypeError(f"expected a TrainedNetwork inside, got {type(inner).__name__}")
    return inner
