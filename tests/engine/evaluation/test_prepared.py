"""Test-time augmentation and feature clipping as parts of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.data import load_data
from sfumato.engine import ConfigError, RunConfig, load_network, parse, run
from sfumato.engine.evaluation.context import passes_per_image
from sfumato.features import ClippedFeatures
from sfumato.inputs import AveragedCopies


def _parts(directory: Any, name: str) -> Any:
    (path,) = (directory.training / "parts").glob(f"{name}-*.json")
    return json.loads(path.read_text())["values"]


def test_both_are_fitted_on_the_validation_set_and_share_a_training(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    content = {**tiny, "train": {"epochs": 2, "batch_size": 32}, "evaluate": {"resamples": 20}}
    tta = {"flip": True, "crop": 1, "blur": [0.8], "weights": "likelihood"}
    predict = {"tta": tta, "feature_clipping": True}
    plain = run(parse(RunConfig, content), tmp_path, show=False)
    ranked = {"predict": predict, "evaluate": {"resamples": 20, "normalised": True}}
    done = run(parse(RunConfig, {**content, **ranked}), tmp_path, show=False)
    assert len(done.metrics()["normalised"]["aurc_interval"]) == 2
    assert done.training == plain.training
    clipped = ClippedFeatures(load_network(plain))
    data = load_data(tiny["data"])
    validation, test = (part.images.float() / 255 for part in (data.validation, data.test))
    threshold = _parts(done, "feature-clipping")["threshold"]
    with torch.no_grad():
        clipped.fit(clipped.features(validation), data.validation.labels)
        assert clipped.threshold == pytest.approx(threshold or math.inf, rel=1e-4)
        copies = AveragedCopies(clipped, flip=True, crop=1, blur=[0.8], weights="likelihood")
        copies.fit(copies.each(validation), data.validation.labels)
        np.testing.assert_allclose(copies.shares, _parts(done, "tta")["shares"], atol=1e-3)
        expected = copies(test).log()
    found = torch.from_numpy(done.predictions("test")["logits"]).log_softmax(1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_passes_are_counted() -> None:
    config = parse(
        RunConfig, {"data": "scenes", "model": "resnet", "predict": {"tta": {"crop": 1}}}
    )
    assert passes_per_image(config.predict) == 6
    assert passes_per_image(parse(RunConfig, {"data": "scenes", "model": "resnet"}).predict) == 1


def test_names_of_older_runs_stay(tiny: dict[str, Any]) -> None:
    content = parse(RunConfig, tiny).model_dump()
    assert set(content["predict"]) == {"mc_dropout"}
    assert "normalised" not in content["evaluate"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predict": {"tta": {"flip": False}}}, "nothing to average"),
        ({"predict": {"tta": {"blur": [-1.0]}}}, "blur must hold widths"),
        ({"predict": {"tta": {}, "mc_dropout": 3}}, r"predict\.tta goes without predict\.mc"),
        (
            {"predict": {"feature_clipping": True}, "evaluate": {"ensemble_sizes": [2]}},
            r"predict\.feature_clipping goes without",
        ),
        (
            {"task": "segment", "data": "scene_streams", "model": "unet", "predict": {"tta": {}}},
            r"predict\.tta is for task: classify",
        ),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {"data": "scenes", "model": "resnet", **changes})
