"""What can be known to fail before the first epoch: data, devices and networks, looked at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from sfumato._core.import_path import searching
from sfumato.engine.config.devices import build_fabric
from sfumato.engine.config.first_batch import one_line, push_batch
from sfumato.engine.config.preflight_data import SeenData, look_at_data
from sfumato.engine.config.preflight_networks import (
    checked_network,
    classifier_recipe,
    network_content,
)
from sfumato.engine.config.run_config import RunConfig
from sfumato.engine.config.sections import content_hash

_DEVICE_KEYS = {"accelerator", "devices", "strategy", "precision", "num_nodes"}


def check_runs(configs: Sequence[RunConfig], *, devices: bool = True) -> None:
    """Raise, in one line, what would make a run fail, from data, devices, networks and one batch.

    Every distinct data source is loaded once, every distinct network is built once and given two
    blank images, and each method takes a small batch as far as the gradient of its loss. Nothing
    is trained, and no pretrained weights are fetched. Pass the runs that wait: what has finished
    needs neither data nor devices.

    Args:
        configs: the configurations of the runs.
        devices: whether this machine is the one that will run them; not so on a cluster.

    Raises:
        ConfigError: the data can't be loaded or lacks what a run needs of it, the devices don't
            exist, a network can't be built, doesn't take the images, or has no dropout for
            `predict.mc_dropout`, `evaluate.ensemble_sizes` or `train.passes`, or a part does not
            do with a batch what its kind must.

    Example:
        >>> data = {"name": "scenes", "train": 20, "validation": 5, "test": 5}
        >>> run = RunConfig(data=data, model="resnet", predict={"mc_dropout": 5})
        >>> check_runs([run])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        sfumato.engine.config.sections.ConfigError: model resnet: predict.mc_dropout ...
    """
    with searching(configs[0].modules if configs else None):
        every = [each for config in configs for each in (*classifier_recipe(config), config)]
        if devices:
            _check_devices(every)
        _check_data_and_networks(every)


def _check_devices(every: Sequence[RunConfig]) -> None:
    for config in _distinct(every, lambda each: each.train.model_dump(include=_DEVICE_KEYS)):
        with one_line("train"):
            build_fabric(config.train)


def _check_data_and_networks(every: Sequence[RunConfig]) -> None:
    seen: dict[str, SeenData] = {}
    for source in _distinct(every, lambda each: each.data):
        name = content_hash(source.data)
        users = [each for each in every if content_hash(each.data) == name]
        with one_line(f"data {source.data['name']}"):
            seen[name] = look_at_data(users)
    networks: dict[str, nn.Module] = {}
    for config in _distinct(every, network_content):
        with one_line(f"model {config.model['name']}"):
            networks[content_hash(network_content(config))] = checked_network(config, seen)
    for config in _distinct(every, _method_content):
        few = seen[content_hash(config.data)]
        if few.train is not None and few.test is not None:
            network = networks[content_hash(network_content(config))]
            push_batch(config, network, few.train, few.test)


def _method_content(config: RunConfig) -> dict[str, Any]:
    """All that decides what happens to a batch, whatever the seed and the number of epochs."""
    parts = {"task", "data", "model", "loss", "augment", "inputs", "labels", "classifier"}
    content = config.model_dump(mode="json", include=parts)
    return {**content, "own": config.evaluate.own, **network_content(config)}


def _distinct(
    configs: Sequence[RunConfig], content: Callable[[RunConfig], dict[str, Any]]
) -> list[RunConfig]:
    """The first configuration of each content."""
    first: dict[str, RunConfig] = {}
    for config in configs:
        first.setdefault(content_hash(content(config)), config)
    return list(first.values())
