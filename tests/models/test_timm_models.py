"""timm's classifiers by name; nothing is downloaded."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from sfumato.engine.config.networks import check_pretrained
from sfumato.models import timm_model

timm = pytest.importorskip("timm")


def test_builds_for_classes_channels_and_small_images() -> None:
    model = timm_model("vit_tiny_patch16_224", num_classes=7, in_channels=1, image_size=(32, 48))
    assert model.eval()(torch.zeros(2, 1, 32, 48)).shape == (2, 7)
    assert timm_model("convnext_atto", num_classes=3, image_size=(32, 32)) is not None


def test_unknown_names_and_tags() -> None:
    with pytest.raises(ValueError, match=r"no model 'resnt18' \(did you mean resnet18"):
        timm_model("resnt18", num_classes=7)
    with pytest.raises(ValueError, match=r"no weights 'mine' of resnet18; it has .*a1_in1k"):
        timm_model("resnet18.mine", num_classes=7)
    with pytest.raises(ValueError, match="image_size: 256 in a study enlarges the images"):
        timm_model("maxvit_rmlp_pico_rw_256", num_classes=7, image_size=(8, 8))


def test_pretrained_weights_are_fetched_by_timm_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    create = timm.create_model

    def stub(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        asked.append((name, pretrained, options["num_classes"]))
        model: nn.Module = create(name, pretrained=False, **options)
        return model

    monkeypatch.setattr(timm, "create_model", stub)
    timm_model("resnet18", num_classes=4)
    assert asked == [("resnet18", False, 4)]
    timm_model("resnet18.a1_in1k", num_classes=4, pretrained=True)
    assert asked[-1] == ("resnet18.a1_in1k", True, 4)


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def stub(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        if pretrained:
            raise OSError("no route to host")
        model: nn.Module = create(name, pretrained=False, **options)
        return model

    monkeypatch.setattr(timm, "create_model", stub)
    with pytest.raises(ConnectionError, match=r"no route to host.*weights: FILE"):
        timm_model("resnet18.a1_in1k", num_classes=4, pretrained=True)


def test_several_sets_of_weights_need_a_tag() -> None:
    with pytest.raises(ValueError, match=r"timm has \d+ sets .*as timm:resnet18\.a1_in1k"):
        timm_model("resnet18", num_classes=4, pretrained=True)
    with pytest.raises(ValueError, match=r"it has .*16_224\.augreg_in21k_ft_in1k"):
        check_pretrained("timm:vit_base_patch16_224", True)
    check_pretrained("timm:vit_base_patch16_224.augreg_in21k_ft_in1k", True)


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"pip install 'sfumato\[timm\]'"):
        timm_model("resnet18", num_classes=4)
