"""Every file of `studies/papers`: it says what it is, and its networks can be built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from sfumato.data import load_data
from sfumato.data.sources import voc
from sfumato.engine import run
from sfumato.engine.config.build import DataShape, build_network, without_weights
from sfumato.engine.config.networks import check_pretrained
from sfumato.models import faster_rcnn
from sfumato.study import load_study
from sfumato.study.config import plan
from tests.papers.small_studies import FILES, SETS, small

PAPERS = ("ACLS", "MbLS", "Adaptive label smoothing", "Mollification", "Spatial smoothing")
OF_ACLS = [path for path in FILES if path.stem.startswith("acls")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    title, *lines = text.splitlines()
    assert title.startswith(tuple(f"# {paper}," for paper in PAPERS)), title
    assert re.search(r"Table|Fig\.|appendices", title), title
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
            network = build_network(without_weights(model), DataShape(data["classes"], 3, side))
            logits: Tensor = network(torch.zeros(2, 3, *side))
        assert logits.shape[:2] == (2, data["classes"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_published_weights_are_named(path: Path) -> None:
    """What a library calls its default changes; the networks of the papers are the first ones."""
    for planned in plan(load_study(path)):
        model = planned.config.model
        name, pretrained = model["name"], model.get("pretrained")
        check_pretrained(name, pretrained, model.get("weights_backbone"))
        if name.startswith("torchvision:"):
            assert {pretrained, model.get("weights_backbone")} == {"IMAGENET1K_V1", None}
        else:
            assert pretrained is None or (name.startswith("timm:") and "." in name)


@pytest.mark.parametrize("path", OF_ACLS, ids=lambda path: path.stem)
def test_acls_is_there_as_published_and_as_released(path: Path) -> None:
    """The authors' numbers come from the form that they released."""
    losses = {name: changes.get("loss") for name, changes in load_study(path).methods.items()}
    released = {name: loss for name, loss in losses.items() if name.endswith("as released")}
    assert released
    for name, loss in released.items():
        assert {**losses[name.removesuffix(", as released")], "form": "released"} == loss


@pytest.mark.parametrize(("stem", "trained"), [("acls-table4", 10582), ("mbls-figure3", 1464)])
def test_images_of_voc_are_as_many_as_the_comment_says(
    stem: str, trained: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = FILES[0].with_name(f"{stem}-voc.yaml")
    text = " ".join(path.read_text(encoding="utf-8").replace("#", "").split())
    assert f"{trained:,} images train" in text
    assert "1,449 of val test" in text
    file = tmp_path / "any.png"
    Image.new("L", (40, 40)).save(file)
    counts = {"train": 1464, "val": 1449}
    monkeypatch.setattr(voc, "_files", lambda _, part, __: ([file] * counts[part],) * 2)
    monkeypatch.setattr(voc, "_augmented_files", lambda _: ([file] * 10582,) * 2)
    recipe = load_study(path).recipe
    data = load_data(recipe["data"])
    assert [len(part) for part in (data.train, data.validation, data.test)] == [trained, 1449, 1449]
    assert recipe["augment"]["jitter"] > 0  # brightness and contrast: MbLS, appendix B


@pytest.mark.parametrize(
    ("stem", "said"),
    [
        ("spatial-tableB1-cifar100", ("0.984", "Tables E.1 and B.2", "1.034 and 1.071", "C.3")),
        ("spatial-tableC2-cifar100", ("0.983", "0.886", "Table E.1")),
        ("spatial-tableE1-cifar100", ("0.0220", "0.0194")),
        ("spatial-figureD3-cifar100", ("0.0169 and 0.0179",)),
        ("spatial-tableE3-cifar10", ("`consistency_to_previous`", "`cec_released`")),
        ("spatial-tableE4-camvid", ("no weight decay", "320 x 448 and none are ours")),
        ("als-table2-imagenet", ("0.42", "0.24", "0.0001 and 0.4 are ours")),
        ("als-table6-openimages", ("validation set (`val`)", "0.552 1.519", "0.556 1.667")),
        ("mollification-table1-cifar10", ("0.0005 is that of the released code",)),
    ],
)
def test_numbers_of_the_text_and_choices_of_ours_are_said(stem: str, said: tuple[str, ...]) -> None:
    text = FILES[0].with_name(f"{stem}.yaml").read_text(encoding="utf-8")
    head = " ".join(" ".join(line.strip("# ") for line in text.split("\n")).split())
    assert [each for each in said if each not in head] == []


def test_rows_of_the_text_are_there() -> None:
    methods = {
        stem: load_study(FILES[0].with_name(f"{stem}.yaml"))
        for stem in ("spatial-tableB1-cifar100", "spatial-tableE1-cifar100")
    }
    bounds, table = (study.methods for study in methods.values())
    everywhere = [name for name in bounds if name.endswith(", ReLU6 everywhere")]
    assert len(everywhere) == 4
    assert all(bounds[name]["model"]["activation"] == "relu6" for name in everywhere)
    for name in ("ResNet-18, MC dropout", "ResNet-18, MC dropout, smooth"):
        assert table[name]["evaluate"]["train"] is True
    study = load_study(FILES[0].with_name("als-table6-openimages.yaml"))
    assert study.recipe["evaluate"]["also"]["val"]["test"] == "validation"
    study = load_study(FILES[0].with_name("mollification-appendixCD-cifar10.yaml"))
    estimators = [each.config.train.copies for each in plan(study)[2:5]]
    assert [each.estimator for each in estimators if each is not None] == [
        *("jensen", "monte_carlo", "bias_corrected")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stem", ["als-table4-coco", "als-table7-coco"])
def test_anchors_are_those_of_large_images(stem: str) -> None:
    model = plan(load_study(FILES[0].with_name(f"{stem}.yaml")))[0].config.model
    options = {key: value for key, value in model.items() if key != "name"}
    spec = {"name": "resnet", "depth": 50, "stem": "imagenet"}
    trunk = build_network(spec, DataShape(2, 3, (64, 64)))
    statistics: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    detector: Any = faster_rcnn(trunk, num_classes=2, **statistics, **options)
    assert detector.rpn.anchor_generator.sizes == ((32,), (64,), (128,), (256,), (512,))


def test_one_of_them_runs(tmp_path: Path) -> None:
    study = small(load_study(FILES[0].with_name("acls-table5-tiny-imagenet.yaml")))
    adaptive_only = plan(study)[2]
    assert run(adaptive_only.config, tmp_path, show=False).metrics()["test"]["nll"] > 0
