"""Model soups: one network whose weights are the mean of several fine-tunings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sfumato._core.import_path import searching
from sfumato.engine.config.components import without_weights
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.runs.networks import TrainedNetwork, load_network, read_config
from sfumato.engine.runs.splits import load_splits
from sfumato.engine.training.beside import has_statistics, renewing_statistics


def load_soup(
    runs: Sequence[str | Path | RunDirectory], *, modules: str | Path | None = None
) -> TrainedNetwork:
    """The uniform soup of several runs: one network, as cheap as one, with their mean weights.

    Fine-tunings of the same weights lie in one basin of the loss, and the middle of them is often
    better than each; networks that were trained from scratch with several seeds don't, and their
    mean knows nothing (use `load_ensemble` for those). Statistics of batch normalisation are made
    anew from the training images of the first run, in its batches and without augmentation.

    Args:
        runs: directories of at least two runs of one network that started from the same weights.
        modules: as `load_network`.

    Returns:
        A module from uint8 images, or floating-point ones in [0, 1], to logits. Its
        `network.state_dict()`, saved, is a file of weights for a study.

    Raises:
        ValueError: fewer than two runs, or runs that differ in their network, their classes, their
            standardisation or the weights that they started from.
        FileNotFoundError: a run that does not exist or is not trained.

    Example:
        >>> soup = load_soup(["runs/a", "runs/b", "runs/c"])  # doctest: +SKIP
        >>> torch.save(soup.network.state_dict(), "soup.pt")  # doctest: +SKIP

    Reference:
        Wortsman et al., Model soups: averaging weights of multiple fine-tuned models improves
        accuracy without increasing inference time, ICML 2022, Table 2 (uniform).
    """
    if isinstance(runs, str | Path) or len(runs) < 2:
        raise ValueError(f"runs must be a list of at least two run directories, got {runs!r}")
    directories = [
        each if isinstance(each, RunDirectory) else RunDirectory(Path(each)) for each in runs
    ]
    configs = [read_config(each, modules=modules) for each in directories]
    members = [load_network(each, modules=modules) for each in directories]
    for directory, config, member in zip(directories, configs, members, strict=True):
        _check_alike(_facts(configs[0], members[0]), _facts(config, member), directory)
    soup = members[0]
    soup.network.load_state_dict(_mean([each.network.state_dict() for each in members]))
    if has_statistics(soup.network):
        _renew(soup, configs[0])
    return soup


def _facts(config: RunConfig, member: TrainedNetwork) -> dict[str, Any]:
    """What members must have in common, by what it is called."""
    model = config.model
    start = model.get("weights_digest") or model.get("pretrained") or f"seed {config.seed}"
    return {
        "network": without_weights(model),
        "classes": member.facts.classes,
        "standardisation": (member.facts.mean, member.facts.std),
        "weights at the start": start,
    }


def _check_alike(first: dict[str, Any], other: dict[str, Any], directory: RunDirectory) -> None:
    for what, value in first.items():
        if other[what] != value:
            raise ValueError(
                f"runs of a soup must have the same {what}: the first has {value}, "
                f"{directory.path} has {other[what]}. Fine-tune one network from one file "
                "(weights: FILE, or pretrained: true), or use load_ensemble"
            )


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
        images = load_splits(config.data).train.images
    layers = [part for part in soup.network.modules() if isinstance(part, _BatchNorm)]
    for layer in layers:
        layer.train()
    with renewing_statistics(soup.network):
        for batch in images.split(config.train.batch_size):
            soup(batch)
    soup.eval()
