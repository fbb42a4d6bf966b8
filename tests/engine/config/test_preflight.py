"""What `check_runs` finds before anything is trained."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato.engine import ConfigError, RunConfig, preflight
from sfumato.engine.config.sections import parse
from sfumato.engine.preflight import check_runs
from sfumato.engine.training.steps import load_splits

Content = dict[str, Any]
OBJECTS = {"name": "scene_objects", "train": 6, "validation": 4, "test": 4, "size": 32}
STREAMS = {
    "name": "scene_streams",
    "train": 2,
    "validation": 1,
    "test": 1,
    "train_frames": 3,
    "size": 16,
}


def _fails(content: Content, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        check_runs([RunConfig(**content)])
    assert "\n" not in str(raised.value)


def _npz(folder: Path, *, side: int = 8, channels: int = 3) -> Content:
    import numpy as np

    images = np.zeros((12, side, side, channels), dtype=np.uint8)
    for name in ("train", "test"):
        np.savez(folder / f"{name}.npz", images=images, labels=np.arange(12) % 3)
    return {"name": "npz", "train": str(folder / "train.npz"), "test": str(folder / "test.npz")}


def test_a_run_that_works_passes(tiny: Content) -> None:
    check_runs([RunConfig(**tiny), RunConfig(**tiny, seed=1)])


def test_a_missing_folder_is_named(
    tiny: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    looked_for = re.escape(str(tmp_path / "phtos"))
    _fails(
        {**tiny, "data": {"name": "folder", "root": "phtos"}},
        f"^data folder: {looked_for}: no such folder",
    )


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"accelerator": "tpus"}, "train: .*invalid accelerator name"),
        ({"accelerator": "cpu", "strategy": "dp2"}, "train: .*invalid strategy name"),
    ],
)
def test_missing_devices(tiny: Content, train: Content, message: str) -> None:
    wrong = RunConfig(**{**tiny, "train": {**tiny["train"], **train}})
    with pytest.raises(ConfigError, match=message):
        check_runs([wrong])
    check_runs([wrong], devices=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the accelerator that should be missing")
def test_a_missing_accelerator(tiny: Content) -> None:
    for name in ("cuda", "gpu") if not torch.backends.mps.is_available() else ("cuda",):
        _fails(
            {**tiny, "train": {"accelerator": name}},
            f"train: accelerator: {name} is not available, .*Say cpu, or auto",
        )


def test_an_unknown_torchvision_model(tiny: Content) -> None:
    _fails({**tiny, "model": "torchvision:resnet19"}, "model torchvision:resnet19: .*no classifier")


def test_unknown_weights_are_found_without_fetching_any(tiny: Content) -> None:
    model = {"name": "torchvision:resnet18", "pretrained": "IMAGENET9"}
    _fails({**tiny, "model": model}, "no weights 'IMAGENET9' of resnet18; it has IMAGENET1K_V1")


def test_images_that_are_too_small_for_the_network(tiny: Content, tmp_path: Path) -> None:
    _fails(
        {**tiny, "data": _npz(tmp_path), "model": "torchvision:alexnet"},
        "model torchvision:alexnet: .*size",
    )


def test_images_that_are_too_small_for_a_network_of_ours(tiny: Content) -> None:
    small = {"name": "scenes", "size": 16, "train": 8, "validation": 4, "test": 4}
    _fails(
        {**tiny, "data": small, "model": {"name": "vgg", "width": 2}},
        "model vgg: it does not take images of 16 x 16 pixels .*choose another network",
    )


def test_one_image_has_no_interval(tiny: Content) -> None:
    few = {"name": "scenes", "size": 16, "train": 8, "validation": 4, "test": 1}
    _fails(
        {**tiny, "data": few, "evaluate": {"resamples": 5}},
        "evaluate.resamples needs a test set of two images or more, this has 1: .*resamples: 0",
    )
    check_runs([parse(RunConfig, {**tiny, "data": few, "evaluate": {"resamples": 0}})])
    one = {"corruptions": ["fog"], "severities": [3], "corrupted_images": 1, "resamples": 5}
    _fails({**tiny, "evaluate": one}, "evaluate.corrupted_images must be 2 or more for resamples")


def test_images_with_too_few_channels(tiny: Content, tmp_path: Path) -> None:
    _fails(
        {**tiny, "data": _npz(tmp_path, channels=1), "model": "torchvision:resnet18"},
        "torchvision models take 3 channels, the data has 1",
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_network_that_returns_more_than_logits_in_training(tiny: Content) -> None:
    data = {**tiny["data"], "size": 80}
    _fails(
        {**tiny, "data": data, "model": "torchvision:googlenet"},
        "in training it must return logits .*GoogLeNetOutputs",
    )


@pytest.mark.parametrize(
    "section",
    [
        {"predict": {"mc_dropout": 5}},
        {"evaluate": {"ensemble_sizes": [1, 5]}},
        {"train": {"passes": 2}},
    ],
)
def test_sampling_needs_dropout(tiny: Content, section: Content) -> None:
    _fails({**tiny, **section}, "needs a network with dropout, and this has none")
    model = {**tiny["model"], "dropout": 0.1}
    check_runs([RunConfig(**{**tiny, **section, "model": model})])


def test_clipping_features_needs_a_linear_layer(tiny: Content) -> None:
    clipped = {**tiny, "predict": {"feature_clipping": True}}
    check_runs([RunConfig(**clipped)])
    model = {"name": "torchvision:squeezenet1_1", "image_size": 64}
    plain, wrong = {**tiny, "model": model}, {**clipped, "model": model}
    message = "predict.feature_clipping: model must end in a linear layer"
    with pytest.raises(ConfigError, match=message):
        check_runs([RunConfig(**plain), RunConfig(**wrong)])


def test_sampling_a_segmenter_needs_dropout() -> None:
    content = {"task": "segment", "data": STREAMS, "model": {"name": "unet", "width": 4}}
    check_runs([RunConfig(**content)])
    _fails({**content, "predict": {"mc_dropout": 5}}, "model unet: predict.mc_dropout needs")


def test_a_loss_that_leaves_out_other_pixels_than_the_void_ones() -> None:
    """Found by drawn studies: such a run failed after `check` had accepted it."""
    content = {"task": "segment", "data": STREAMS, "model": {"name": "unet", "width": 4}}
    loss = {"name": "mmce", "ignore_index": 0}
    _fails({**content, "loss": loss}, "ignore_index is 0, but void pixels have the label -100")


def test_soft_labels_have_no_class_to_ignore(tiny: Content) -> None:
    """Found by drawn studies, too."""
    content = {**tiny, "inputs": "mollify", "loss": {"name": "cross_entropy", "ignore_index": 1}}
    with pytest.raises(ConfigError, match=r"ignore_index 1 marks .* but inputs makes soft labels"):
        parse(RunConfig, content, "study")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"labels": "objectness"}, "needs data with boxes"),
        ({"objects": {"single": True}}, "no boxes"),
        ({"evaluate": {"context": True}}, "evaluate.context needs test images with boxes"),
    ],
)
def test_annotations_that_the_data_lacks(
    tiny: Content, tmp_path: Path, section: Content, message: str
) -> None:
    _fails({**tiny, "data": _npz(tmp_path), **section}, f"data npz: .*{message}")


def test_a_detector_and_its_classifier(tiny: Content, tmp_path: Path) -> None:
    content = {"task": "detect", "data": OBJECTS, "model": "faster_rcnn", "classifier": tiny}
    check_runs([RunConfig(**content)])
    wrong = {**tiny, "predict": {"mc_dropout": 5}}
    _fails({**content, "classifier": wrong}, "predict.mc_dropout needs")
    _fails({**content, "classifier": str(tmp_path / "none")}, "none.*no such file")
    model = {"name": "faster_rcnn", "finest": 64}
    _fails({**content, "model": model}, "model faster_rcnn: finest must be at most")


def test_each_source_and_network_is_looked_at_once(
    tiny: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(name: str, inner: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return inner(*args, **kwargs)

        return call

    monkeypatch.setattr(preflight, "load_splits", counted("data", preflight.load_splits))
    monkeypatch.setattr(preflight, "build_network", counted("model", preflight.build_network))
    losses = ("cross_entropy", "focal", "mbls")
    check_runs([RunConfig(**tiny, loss=loss, seed=seed) for loss in losses for seed in range(2)])
    assert calls == ["data", "model"]


def test_a_part_without_images_is_named(tmp_path: Path) -> None:
    from PIL import Image

    for name in "abc":
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "only.png")
    spec = {"name": "folder", "root": str(tmp_path)}
    with pytest.raises(ValueError, match=r"no images for validation \(2 train, 0 validation, 1"):
        load_splits(spec)


@pytest.mark.parametrize(("beta", "is_told"), [(1.0, True), (0.95, True), (0.9, False)])
def test_labels_that_fall_below_the_others_are_told(
    tiny: dict[str, Any], beta: float, is_told: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """Of ten classes the true one keeps the largest share for beta up to 0.9."""
    warnings.simplefilter("always")
    check_runs([parse(RunConfig, {**tiny, "labels": {"name": "objectness", "beta": beta}})])
    told = [each for each in recwarn if "(C - 1) / C" in str(each.message)]
    assert bool(told) == is_told
