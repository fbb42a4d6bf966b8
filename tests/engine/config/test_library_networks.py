"""Networks of libraries, and files of weights of any network, as studies name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sfumato.engine import ConfigError, RunConfig, fingerprint, load_network, parse, run
from sfumato.engine.config.build import DataShape, build_network
from sfumato.engine.config.networks import NewHeadWarning
from sfumato.engine.preflight import check_runs
from sfumato.features import Smooth
from sfumato.models import resnet

SHUFFLE = "torchvision:shufflenet_v2_x0_5"
TRANSFORMERS = (
    *("timm:vit_tiny_patch16_224", "timm:convnext_atto"),
    *("torchvision:vit_b_16", "torchvision:swin_t"),
)


def _build(name: str, size: int = 32, **options: Any) -> nn.Module:
    images = {"num_classes": 5, "in_channels": 3, "image_size": (size, size)}
    return build_network({"name": name, **options}, DataShape(**images))


def _smoothed(network: nn.Module) -> list[str]:
    return [name for name, part in network.named_modules() if isinstance(part, Smooth)]


def test_stages_to_smooth_are_chosen() -> None:
    every = _smoothed(_build(SHUFFLE, smooth=True))
    assert _smoothed(_build(SHUFFLE, smooth=True, smooth_stages=[2])) == every[1:2]
    network = _build(SHUFFLE, smooth={"kernel": [1, 2, 1]}, smooth_stages=["stage3"])
    assert _smoothed(network) == ["stage3.smooth"]
    assert _smoothed(_build(SHUFFLE, smooth={"stages": [2]})) == every[1:2]
    with pytest.raises(ValueError, match="say the same thing: leave one of them out"):
        _build(SHUFFLE, smooth={"stages": [2]}, smooth_stages=[2])
    with pytest.raises(ValueError, match=r"smooth_stages \[1\] says where smooth acts"):
        _build(SHUFFLE, smooth_stages=[1])
    with pytest.raises(ValueError, match="where must hold numbers of stages"):
        _build(SHUFFLE, smooth=True, smooth_stages=[9])


def test_image_size_resizes_and_keeps_the_names_of_weights() -> None:
    plain, sized = _build(SHUFFLE), _build(SHUFFLE, image_size=64, smooth=True, dropout=0.1)
    assert plain.state_dict().keys() == sized.state_dict().keys()
    seen: list[torch.Size] = []
    sized.get_submodule("conv1").register_forward_pre_hook(lambda _, x: seen.append(x[0].shape))
    sized.eval()(torch.zeros(2, 3, 32, 32))
    assert seen == [(2, 3, 64, 64)]
    with pytest.raises(ValueError, match="image_size must be at least 1"):
        _build(SHUFFLE, image_size=0)
    with pytest.raises(ValueError, match=r"does not take images of 4 x 4 .* set image_size"):
        _build("torchvision:squeezenet1_1", size=4)
    with pytest.raises(ValueError, match="image_size is for classifiers"):
        _build("torchvision:lraspp_mobilenet_v3_large", image_size=64)


def _with_weights(tiny: dict[str, Any], file: Path, **options: Any) -> RunConfig:
    model = {**tiny["model"], "weights": str(file), **options}
    return parse(RunConfig, {**tiny, "model": model, "train": {"epochs": 1}})


def _save(file: Path, seed: int, classes: int = 10, width: int = 4) -> Path:
    torch.manual_seed(seed)
    torch.save(resnet(8, num_classes=classes, width=width).state_dict(), file)
    return file


def test_the_content_of_weights_is_in_the_name_of_a_run(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    file = _save(tmp_path / "w.pt", seed=1)
    first, again = _with_weights(tiny, file), _with_weights(tiny, file)
    assert fingerprint(first) == fingerprint(again)
    digest = first.model["weights_digest"]
    _save(file, seed=2)
    assert fingerprint(_with_weights(tiny, file)) != fingerprint(first)
    with pytest.raises(ConfigError, match=f"digest .* named after {digest}: the file has changed"):
        check_runs([first])
    # A past run is read without its file.
    file.unlink()
    assert parse(RunConfig, first.model_dump(mode="json")) == first
    with pytest.raises(ConfigError, match=r"weights of model 'resnet': no such file: .*w.pt"):
        _with_weights(tiny, file)
    with pytest.raises(ConfigError, match="weights_digest is of the file that weights names"):
        parse(RunConfig, {**tiny, "model": {**tiny["model"], "weights_digest": "ab"}})


def test_a_run_starts_from_weights_and_is_loaded_without_them(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    file = _save(tmp_path / "w.pt", seed=1)
    config = _with_weights(tiny, file)
    rate = {"learning_rate": 1e-12, "weight_decay": 0.0, "epochs": 1}
    done = run(parse(RunConfig, {**config.model_dump(), "train": rate}), tmp_path, show=False)
    file.unlink()
    network = load_network(done).network
    torch.manual_seed(1)
    expected = resnet(8, num_classes=10, width=4)
    torch.testing.assert_close(dict(network.named_parameters()), dict(expected.named_parameters()))


def test_weights_are_tried_before_the_first_epoch(tmp_path: Path, tiny: dict[str, Any]) -> None:
    other = _with_weights(tiny, _save(tmp_path / "other.pt", seed=1, width=8))
    with pytest.raises(ConfigError, match=r"model resnet: weights .* are not of this StagedNetwor"):
        check_runs([other])
    head = _with_weights(tiny, _save(tmp_path / "head.pt", seed=1, classes=3))
    with pytest.warns(NewHeadWarning, match=r"head.linear.bias.* for another number of classes"):
        check_runs([head])
    as_it_comes = {**head.model_dump(), "train": {"epochs": 0}}
    with pytest.raises(ConfigError, match=r"epochs: 0 evaluates .* for the data's 10 classes, or"):
        check_runs([parse(RunConfig, as_it_comes)])


def test_names_of_published_weights_are_no_files(tiny: dict[str, Any]) -> None:
    tiny["model"] = {"name": SHUFFLE, "weights": "IMAGENET1K_V1"}
    with pytest.raises(ConfigError, match="weights that a library publishes say pretrained: NAME"):
        parse(RunConfig, tiny)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_train_on_small_images_with_smoothed_labels(
    name: str, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    tiny["data"] |= {"size": 32}
    tiny["train"] = {"epochs": 2, "batch_size": 32, "optimizer": "adamw", "learning_rate": 1e-3}
    loss = {"name": "cross_entropy", "smoothing": 0.1}
    config = parse(RunConfig, {**tiny, "model": {"name": name, "dropout": 0.1}, "loss": loss})
    check_runs([config])
    done = run(config, tmp_path, show=False)
    assert done.metrics()["test"]["samples"] == 50
