"""Losses that learn from the validation set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from sfumato.engine import RunConfig, RunDirectory, parse, run
from sfumato.engine.training.checkpoint import load_checkpoint
from sfumato.engine.training.steps import validation_notes
from sfumato.labels import AdaFocalLoss, CombinedLoss, CrossEntropyLoss


def test_only_who_listens_is_told() -> None:
    assert validation_notes(CrossEntropyLoss()) is None
    listener = AdaFocalLoss(num_bins=2)
    note = validation_notes(CombinedLoss(listener, {}))
    assert note is not None
    note(torch.randn(6, 3), torch.randint(0, 3, (6,)))
    listener.end_epoch()
    assert not torch.equal(listener.gammas, torch.ones(2))


@pytest.mark.parametrize(
    "loss",
    [
        {"name": "adafocal", "num_bins": 3},
        pytest.param({"name": "cals", "margin": 0.5, "rho_every": 1}, marks=pytest.mark.slow),
        pytest.param({"name": "online_label_smoothing"}, marks=pytest.mark.slow),
        pytest.param({"name": "maxsup"}, marks=pytest.mark.slow),
    ],
    ids=lambda loss: loss["name"],
)
def test_what_a_loss_has_learnt_is_resumed(
    loss: dict[str, Any], tmp_path: Path, tiny: dict[str, Any]
) -> None:
    """Interrupted in the third epoch, the training ends with the same weights."""
    train = {"epochs": 4, "batch_size": 32, "clip_norm": 2.0}
    config = parse(RunConfig, {**tiny, "loss": loss, "train": train})
    whole = run(config, tmp_path / "whole", show=False)
    steps = 0

    def interrupt(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 2 * 3 + 2:  # 96 images in batches of 32
            raise KeyboardInterrupt

    hook = register_optimizer_step_post_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "broken", show=False)
    hook.remove()
    broken = RunDirectory(tmp_path / "broken" / whole.path.name)
    halfway = load_checkpoint(broken.checkpoint)
    assert halfway is not None
    assert halfway.epoch == 2
    run(config, tmp_path / "broken", show=False)
    ends = [load_checkpoint(directory.checkpoint) for directory in (whole, broken)]
    assert all(each is not None for each in ends)
    first, second = (each for each in ends if each is not None)
    for kind in ("model", "loss"):
        ours, theirs = getattr(first, kind), getattr(second, kind)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), kind
    assert any(not torch.equal(first.loss[key], halfway.loss[key]) for key in first.loss)
