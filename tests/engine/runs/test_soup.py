"""Soups: the mean of fine-tunings of the same weights, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sfumato.data import load_data
from sfumato.engine import RunConfig, RunDirectory, load_network, load_soup, parse, run
from sfumato.models import resnet


def _tuned(
    tiny: dict[str, Any], root: Path, *, seed: int, weights: Path | None, **model: Any
) -> RunDirectory:
    start = {} if weights is None else {"weights": str(weights)}
    content = {**tiny, "model": {**tiny["model"], **start, **model}, "seed": seed}
    content["train"] = {"epochs": 1, "batch_size": 32, "learning_rate": 0.01}
    return run(parse(RunConfig, content), root, show=False)


def test_a_soup_is_the_mean_with_statistics_of_its_own(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    file = tmp_path / "start.pt"
    torch.save(resnet(8, num_classes=10, width=4).state_dict(), file)
    runs = [_tuned(tiny, tmp_path, seed=seed, weights=file, dropout=0.3) for seed in (0, 1, 2)]
    soup = load_soup(runs)
    assert not soup.training
    members = [dict(load_network(each).network.named_parameters()) for each in runs]
    for name, value in soup.network.named_parameters():
        expected = sum(each[name].double() for each in members) / 3
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7)
    norm = soup.network.get_submodule("stem.1")
    assert isinstance(norm, nn.BatchNorm2d)
    images = load_data(tiny["data"]).train.images
    with torch.no_grad():
        maps = [
            soup.network.get_submodule("stem.0")(soup.standardise(part))
            for part in images.split(32)
        ]
    expected = torch.stack([each.mean((0, 2, 3)) for each in maps]).mean(0)
    torch.testing.assert_close(norm.running_mean, expected, rtol=1e-4, atol=1e-5)


def test_what_makes_no_soup(tmp_path: Path, tiny: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least two run directories"):
        load_soup([tmp_path])
    first = _tuned(tiny, tmp_path, seed=0, weights=None)
    scratch = _tuned(tiny, tmp_path, seed=1, weights=None)
    with pytest.raises(ValueError, match=r"same weights at the start: .* seed 0, .* seed 1\. Fine"):
        load_soup([first, scratch])
    other = _tuned(tiny, tmp_path, seed=0, weights=None, activation="relu6")
    with pytest.raises(ValueError, match=r"same network: .*'relu'.*'relu6'"):
        load_soup([first, other])
