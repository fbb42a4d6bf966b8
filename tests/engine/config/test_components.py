"""The one table of parts: what it says is what configuration, list and schema know."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from sfumato.data import SOURCES
from sfumato.engine import RunConfig, RunDirectory, parse, run
from sfumato.engine.config.build import build_component, build_loss
from sfumato.engine.config.components import (
    COMPONENTS,
    SUPPLIED,
    Component,
    components,
    find_component,
    resolve_component,
)
from sfumato.engine.config.kinds import PLURALS, SPEC_KINDS, Kind
from sfumato.engine.config.sections import PredictConfig, TemporalConfig
from sfumato.study.schema import catalogue, study_schema

SOURCE = Path(__file__).resolve().parents[3] / "src" / "sfumato"
listed, schema = cache(catalogue), cache(study_schema)  # once for all parts


def test_names_of_a_kind_are_unique() -> None:
    named = [(part.kind, part.name) for part in COMPONENTS]
    assert len(named) == len(set(named))


@pytest.mark.parametrize("part", COMPONENTS, ids=lambda part: f"{part.kind}-{part.name}")
def test_list_and_schema_know_every_part(part: Component) -> None:
    shown = set(_split(listed()[PLURALS[part.kind]][part.name]))
    digests = {option for option in part.options if option.endswith("_digest")}  # the run's own
    assert set(part.options) - digests <= shown
    assert not digests & shown
    if part.kind not in SPEC_KINDS:
        return
    forms = schema()["$defs"]["Changes"]["properties"][part.kind]["anyOf"]
    said = {"type": "string", "pattern": f"^{part.prefix}"} if part.is_family else None
    wanted = said or {"const": part.name}
    (form,) = [each for each in forms if each.get("properties", {}).get("name") == wanted]
    assert set(form["properties"]) == {"name", *part.options}


def _split(text: str) -> list[str]:
    return [each.partition("=")[0].strip() for each in text.split(",")]


@pytest.mark.parametrize("kind", SUPPLIED)
def test_what_is_supplied_is_taken_by_some_part_and_not_by_users(kind: Kind) -> None:
    for name in SUPPLIED[kind]:
        takers = [part for part in components(kind).values() if part.takes(name)]
        assert takers, name
        assert not any(name in part.options for part in takers if name in part.supplied)
        assert all(part.takes("data_size") for part in takers if name not in part.supplied)
    with pytest.raises(ValueError, match="num_samples of loss 'crl' is set from the data or the"):
        resolve_component("loss", {"name": "crl", "num_samples": 3})


def test_sections_of_predict_are_those_of_the_table() -> None:
    assert set(PredictConfig.model_fields) == set(components("predict"))
    defaults = {key: field.default for key, field in TemporalConfig.model_fields.items()}
    options = find_component("predict", "temporal").options
    assert {key: option.default for key, option in options.items()} == defaults


def test_a_family_is_found_by_its_members() -> None:
    assert find_component("model", "torchvision:resnet18").tasks == ("classify",)
    assert find_component("model", "torchvision:fcn_resnet50").tasks == ("segment",)
    shared = {
        *("weights", "weights_digest", "pretrained", "image_size"),
        *("smooth", "smooth_stages", "dropout", "blur_pool"),
    }
    assert set(find_component("model", "timm:resnet18").options) == shared
    options = set(find_component("model", "torchvision:resnet18").options)
    assert options == {*shared, "weights_backbone"}
    with pytest.raises(ValueError, match=r"unknown model 'resnt' \(did you mean 'resnet'\?\)"):
        resolve_component("model", "resnt")
    with pytest.raises(ValueError, match=r"unknown model 'unet'.*Choose from \['faster_rcnn'\]"):
        resolve_component("model", "unet", "detect")


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("loss", "label_smoothing", "{name: cross_entropy, smoothing: 0.05}"),
        ("loss", "LabelSmoothing", "{name: cross_entropy, smoothing: 0.05}"),
        ("loss", "LabelSmoothingLoss", "{name: cross_entropy, smoothing: 0.05}"),
        ("loss", "LS", "{name: cross_entropy, smoothing: 0.05}"),
        ("loss", "CE", "'cross_entropy'"),
        ("loss", "cross-entropy", "'cross_entropy'"),
        ("loss", "CrossEntropyLoss", "'cross_entropy'"),
        ("loss", "ACLS", "'acls'"),
        ("loss", "focal_loss", "'focal'"),
        ("loss", "FocalLoss", "'focal'"),
        ("loss", "bce", "'cross_entropy'"),
        ("data", "CIFAR-10", "'cifar10'"),
        ("data", "ImageFolder", "'folder'"),
        ("labels", "ALS", "'objectness'"),
        ("model", "vit_b_16", "torchvision:vit_b_16"),
        ("loss", "ols", "'online_label_smoothing'"),
        (
            "model",
            "ResNet-18",
            "{name: resnet, depth: 18} for small images or torch",
        ),
        ("model", "resnet18", "{name: resnet, depth: 18} for small images or torch"),
        ("model", "WRN", "'wide_resnet'"),
    ],
)
def test_common_names_are_answered_with_what_they_mean(kind: Any, name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name!r} (did you mean {meant}")):
        resolve_component(kind, name)


def test_only_histories_are_told_the_number_of_samples() -> None:
    told = {name for name, part in components("loss").items() if part.remembers_samples({})}
    assert told == {"crl", "cape"}
    for name, part in components("loss").items():
        loss = build_loss(name, num_samples=3, num_classes=4, epochs=2)
        takes_index = "index" in inspect.signature(loss.forward).parameters
        assert takes_index == (part.takes("num_samples") and not part.is_composite)
        ends = any(hasattr(module, "end_epoch") for module in loss.modules())
        state = [name for name in loss.state_dict() if not name.endswith("class_weight")]
        assert ends == bool(state), "what is remembered is renewed after an epoch"


def test_no_module_asks_for_a_loss_by_its_name() -> None:
    """What a loss needs is declared on its class: a name in a condition forgets the next loss."""
    names = [f'"{name}"' for name in components("loss") if name not in ("cross_entropy",)]
    for path in SOURCE.rglob("*.py"):
        if path.name != "parts.py":
            text = path.read_text()
            assert not [name for name in names if f"== {name}" in text or f"in ({name}" in text]


def test_parts_are_built_from_what_they_ask_for() -> None:
    network = build_component("model", "resnet", num_classes=3, in_channels=1, image_size=(8, 8))
    assert network is not None
    assert set(components("data", "classify")) | set(components("data", "segment")) == set(SOURCES)


def test_cape_resumes_exactly(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Interrupted in the third epoch, with confidences and accuracies from those before."""
    train = {"epochs": 4, "batch_size": 32}
    config = parse(RunConfig, {**tiny, "loss": {"name": "cape", "num_bins": 4}, "train": train})
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
    assert len(broken.log()) == 2
    run(config, tmp_path / "broken", show=False)
    weights = [(d.checkpoint / "model.safetensors").read_bytes() for d in (whole, broken)]
    assert weights[0] == weights[1]
    ours, theirs = whole.predictions("test"), broken.predictions("test")
    assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
