"""Several augmented copies of each sample: what a step computes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sfumato.augment import Augment
from sfumato.augment.recipes import CopiedSamples
from sfumato.data import TensorLoader, load_data
from sfumato.engine import ConfigError, RunConfig, fingerprint, parse, run
from sfumato.engine.config.build import build_loss
from sfumato.engine.config.sections import TrainCopies

DATA = {"name": "scenes", "train": 10, "validation": 2, "test": 2, "size": 16}


def test_a_batch_holds_each_sample_several_times_in_different_views() -> None:
    train = load_data(DATA).train
    loader = TensorLoader(train, 4, augment=CopiedSamples(Augment(crop=4), 3), seed=1)
    batch = loader.batch(0)
    assert batch["index"].tolist() == [0, 1, 2, 3] * 3
    copies = batch["image"].unflatten(0, (3, 4))
    assert not torch.equal(copies[0], copies[1])
    shown = torch.cat([loader.batch(step)["image"] for step in range(3)])
    assert len(shown) == 30
    alike = TensorLoader(train, 4, augment=CopiedSamples(None, 2)).batch(1)
    assert torch.equal(alike["image"][:4], alike["image"][4:])


@pytest.mark.parametrize("estimator", ["jensen", "monte_carlo", "bias_corrected"])
def test_the_loss_averages_the_likelihoods_of_a_sample(estimator: Any) -> None:
    """Against Eq. (19), (22) and (25), (26) in plain numpy."""
    copies, count = 3, 4
    logits = torch.randn(copies * count, 5, dtype=torch.float64, requires_grad=True)
    target = torch.randint(5, (count,)).repeat(copies)
    loss = build_loss(
        {"name": "cross_entropy"},
        num_samples=count,
        num_classes=5,
        epochs=1,
        copies=TrainCopies(count=copies, estimator=estimator),
    )
    value = loss(logits, target)
    nll = F.cross_entropy(logits, target, reduction="none").detach().numpy().reshape(copies, count)
    likelihood = np.exp(-nll)
    mean = likelihood.mean(0)
    variance = likelihood.var(0, ddof=1) / copies
    expected = {
        "jensen": -nll.mean(0),
        "monte_carlo": np.log(mean),
        "bias_corrected": np.log(mean) + variance / (2 * mean**2),
    }
    assert value.item() == pytest.approx(-expected[estimator].mean(), rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits)


def test_a_run_trains_on_copies(tmp_path: Path, tiny: dict[str, Any]) -> None:
    tiny["train"] |= {"epochs": 1, "copies": {"count": 2, "estimator": "bias_corrected"}}
    config = {**tiny, "inputs": "mollify", "loss": "normalised_cross_entropy"}
    found = run(parse(RunConfig, config), tmp_path, show=False).metrics()
    assert np.isfinite(found["test"]["nll"])


def test_names_of_runs_without_copies_stay(tiny: dict[str, Any]) -> None:
    plain = parse(RunConfig, tiny)
    assert "copies" not in plain.model_dump(mode="json")["train"]
    tiny["train"] |= {"copies": {"count": 2}}
    assert fingerprint(parse(RunConfig, tiny)) != fingerprint(plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "mbls"}, "the loss must be cross_entropy or normalised_cross_entropy, got mbls"),
        ({"augment": None}, "needs copies that differ"),
        ({"train": {"copies": {"count": 1}}}, "must be 2 or more"),
    ],
)
def test_what_can_not_be(tiny: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    tiny["train"] |= {"copies": {"count": 2}}
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {**tiny, **changes})
