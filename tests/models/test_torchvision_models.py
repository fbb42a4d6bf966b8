"""torchvision's classifiers by name; nothing is downloaded."""

from __future__ import annotations

from typing import Any
from urllib.error import URLError

import pytest
import torch
from torch import nn
from torchvision import models

from sfumato.engine.config.networks import check_pretrained, torchvision_network
from sfumato.models import torchvision_model, torchvision_segmentation
from sfumato.models.libraries import backbone_of


def test_builds_with_the_wanted_classes() -> None:
    model = torchvision_model("shufflenet_v2_x0_5", num_classes=7).eval()
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_pretrained_weights_keep_all_but_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    build = models.get_model
    fetched = build("mobilenet_v3_small", weights=None)

    def stub(name: str, *, weights: str | None, **options: Any) -> nn.Module:
        return build(name, weights=None, **options) if weights is None else fetched

    monkeypatch.setattr(models, "get_model", stub)
    model = torchvision_model("mobilenet_v3_small", num_classes=4, weights="DEFAULT")
    ours, theirs = model.state_dict(), fetched.state_dict()
    assert ours["classifier.3.weight"].shape == (4, 1024)
    others = [key for key in theirs if not key.startswith("classifier.3.")]
    assert all(torch.equal(ours[key], theirs[key]) for key in others)


def test_positions_of_a_pretrained_transformer_follow_the_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Small(models.VisionTransformer):
        def __init__(self, image_size: int, num_classes: int) -> None:
            super().__init__(image_size, 16, 1, 2, 8, 8, num_classes=num_classes)

    def stub(name: str, *, weights: str | None, **options: Any) -> nn.Module:
        return Small(224, 1000) if weights else Small(options["image_size"], options["num_classes"])

    monkeypatch.setattr(models, "get_model", stub)
    model = torchvision_model("vit_b_16", num_classes=4, weights="DEFAULT", image_size=(32, 32))
    assert model.get_parameter("encoder.pos_embedding").shape == (1, 5, 8)
    assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 4)


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    build = models.get_model

    def stub(name: str, *, weights: str | None, **options: Any) -> nn.Module:
        if weights is not None:
            raise URLError("no route to host")
        return build(name, weights=None, **options)

    monkeypatch.setattr(models, "get_model", stub)
    with pytest.raises(ConnectionError, match=r"no route to host.*weights: FILE"):
        torchvision_model("shufflenet_v2_x0_5", num_classes=4, weights="DEFAULT")


def test_what_torchvision_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"no classifier 'resnt50' \(did you mean resnet50"):
        torchvision_model("resnt50", num_classes=7)
    with pytest.raises(ValueError, match="no weights 'BEST' of resnet18; it has IMAGENET1K_V1"):
        torchvision_model("resnet18", num_classes=7, weights="BEST")
    with pytest.raises(ValueError, match="takes square images, got 32 x 48"):
        torchvision_model("vit_b_16", num_classes=7, image_size=(32, 48))
    with pytest.raises(ValueError, match=r"can't build vit_h_14.*image_size: 224"):
        torchvision_model("vit_h_14", num_classes=7, image_size=(32, 32))


@pytest.mark.parametrize(
    "name",
    ["lraspp_mobilenet_v3_large", pytest.param("deeplabv3_resnet50", marks=pytest.mark.slow)],
)
def test_a_segmentation_network_starts_from_the_weights_of_a_classifier(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    build = models.get_model
    trained = build(backbone_of(name), weights=None)

    def stub(which: str, *, weights: str | None, **options: Any) -> nn.Module:
        return build(which, weights=None, **options) if weights is None else trained

    monkeypatch.setattr(models, "get_model", stub)
    network = torchvision_segmentation(name, num_classes=3, weights_backbone="IMAGENET1K_V1")
    found, given = network.network.backbone.state_dict(), trained.state_dict()
    for key, value in found.items():
        assert torch.equal(value, given.get(key, given.get(f"features.{key}")))
    with pytest.raises(ValueError, match="hold those of the backbone"):
        torchvision_segmentation(
            name, num_classes=3, weights="DEFAULT", weights_backbone="IMAGENET1K_V1"
        )
    with pytest.raises(ValueError, match="torchvision has no weights 'BEST' of"):
        check_pretrained(f"torchvision:{name}", None, "BEST")


def test_true_does_not_choose_among_several_sets_of_weights() -> None:
    with pytest.raises(ValueError, match=r"pretrained: true .*IMAGENET1K_V1, IMAGENET1K_V2: name"):
        check_pretrained("torchvision:resnet50", True)
    with pytest.raises(ValueError, match=r"weights_backbone: true .*as weights_backbone: IMAGENET"):
        check_pretrained("torchvision:deeplabv3_resnet50", None, True)
    check_pretrained("torchvision:resnet18", True)  # the only set there is
    check_pretrained("torchvision:resnet50", "IMAGENET1K_V1")
    options: dict[str, Any] = {"num_classes": 3, "in_channels": 3, "data_size": (32, 32)}
    with pytest.raises(ValueError, match="pretrained: true does not say which weights"):
        torchvision_network("resnet50", pretrained=True, **options)
