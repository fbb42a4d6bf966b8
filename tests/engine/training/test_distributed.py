"""Two processes give what one process gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato.data import load_data
from sfumato.engine import RunConfig, parse, run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_processes_equal_one(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Group norm, because batch norm sees half a batch in each process; sizes split unevenly."""
    tiny["data"] |= {"train": 101, "validation": 41, "test": 51}
    _check_two_equal_one(tiny, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_processes_mix_files_that_each_decodes_its_part_of(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFUMATO_LOADING_WORKERS", "0")
    sets = load_data({"name": "scenes", "train": 101, "validation": 41, "test": 51, "size": 16})
    for part, data in (("train", sets.train), ("val", sets.validation), ("test", sets.test)):
        for place, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
            folder = tmp_path / "set" / part / str(int(label))
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{place}.png")
    tiny |= {"augment": "fcr+cutmix", "inputs": "mollify"}
    tiny["data"] = {"name": "folder", "root": str(tmp_path / "set"), "in_memory": False}
    _check_two_equal_one(tiny, tmp_path)


def _check_two_equal_one(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny["model"] |= {"norm": "group"}
    alone = {"accelerator": "cpu", "epochs": 2, "batch_size": 32}
    together = {**alone, "devices": 2, "strategy": "ddp_spawn"}
    one = run(parse(RunConfig, {**tiny, "train": alone}), tmp_path, show=False)
    two = run(parse(RunConfig, {**tiny, "train": together}), tmp_path, show=False)
    for split, size in (("validation", 41), ("test", 51)):
        ours, theirs = two.predictions(split), one.predictions(split)
        assert len(ours["index"]) == size
        assert np.array_equal(ours["index"], theirs["index"])
        assert np.allclose(ours["logits"], theirs["logits"], atol=2e-4)
    for name in ("accuracy", "nll", "ece"):
        assert two.metrics()["test"][name] == pytest.approx(one.metrics()["test"][name], abs=2e-4)
    for ours, theirs in zip(two.log(), one.log(), strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=2e-4)
        assert ours["train_accuracy"] == pytest.approx(theirs["train_accuracy"], abs=1e-6)
