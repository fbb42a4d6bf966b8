"""Every file of `studies/papers`: it says what it is, and its networks can be built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sfumato.engine import run
from sfumato.engine.config.components import build_network, without_weights
from sfumato.study import load_study
from sfumato.study.config import plan
from tests.papers.small_studies import FILES, SETS, small

PAPERS = ("ACLS", "MbLS", "Adaptive label smoothing", "Mollification", "Spatial smoothing")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    title, *lines = text.splitlines()
    assert title.startswith(tuple(f"# {paper}," for paper in PAPERS)), title
    assert re.search(r"Table|Fig\.", title), title
    head = "\n".join(line for line in lines if line.startswith("#"))
    assert "Expected (paper)" in head
    assert re.search(r"# Time: .*\(an\s*(# )?estimate\)", head), "how long, on one current GPU"
    assert load_study(path).name == path.stem


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_networks_can_be_built(path: Path) -> None:
    """As large as they are, on the meta device, which holds no numbers."""
    specs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for planned in plan(load_study(path, ["seeds=[0, 1]"])):
        config = planned.config
        if config.task != "detect" and config.data["name"] != "newsgroups":
            specs.setdefault(str(config.model), (config.model, SETS[config.data["name"]]))
    for model, data in specs.values():
        size = data.get("size", 0)
        side = (data.get("height", size), data.get("width", size))
        with torch.device("meta"):
            network = build_network(
                without_weights(model), num_classes=data["classes"], in_channels=3, image_size=side
            )
            logits: Tensor = network(torch.zeros(2, 3, *side))
        assert logits.shape[:2] == (2, data["classes"])


def test_one_of_them_runs(tmp_path: Path) -> None:
    study = small(load_study(FILES[0].with_name("acls-table5-tiny-imagenet.yaml")))
    adaptive_only = plan(study)[2]
    assert run(adaptive_only.config, tmp_path, show=False).metrics()["test"]["nll"] > 0
