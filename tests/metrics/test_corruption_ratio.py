"""Scores relative to AlexNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from sfumato.metrics import alexnet_scores, corruption_ratio


def test_ratio_by_hand() -> None:
    ratio = corruption_ratio([[0.1, 0.2], [0.3, 0.3]], np.array([[0.2, 0.4], [0.2, 0.2]]))
    assert ratio.tolist() == pytest.approx([0.5, 1.5])
    assert ratio.mean().item() == pytest.approx(1.0)


def test_alexnet_is_one_relative_to_itself() -> None:
    for data in ("cifar10", "cifar100", "imagenet"):
        for metric in ("error", "nll", "ece"):
            scores = alexnet_scores(data, metric)  # type: ignore[arg-type]
            assert scores.shape == (15, 5)
            assert corruption_ratio(scores, scores).tolist() == [1.0] * 15


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "imagenet"])
def test_tables_equal_the_released_ones(golden: Callable[[str], dict[str, Any]], data: str) -> None:
    content = golden("alexnet_corruption")
    names = [str(name) for name in content[f"{data}c.corruption"]]
    for metric in ("error", "nll", "ece"):
        scores = alexnet_scores(data, metric, names=names)  # type: ignore[arg-type]
        np.testing.assert_allclose(scores.numpy(), content[f"{data}c.{metric}"], rtol=1e-6)
        np.testing.assert_allclose(
            scores.sum(dim=1).numpy(), content[f"{data}c.{metric}_sum"], rtol=1e-6
        )


def test_the_usual_imagenet_errors_are_means() -> None:
    scores = alexnet_scores("imagenet-hendrycks", "error")
    assert scores.shape == (15, 5)
    assert scores[0].tolist() == [0.886428] * 5
    assert torch.equal(scores[:, :1].expand(-1, 5), scores)


def test_extra_types_where_they_are_known() -> None:
    assert alexnet_scores("cifar100", "nll", names=EXTRA_CORRUPTIONS).shape == (4, 5)
    with pytest.raises(ValueError, match="no AlexNet error of 'spatter' is known for 'cifar10'"):
        alexnet_scores("cifar10", "error", names=["spatter"])
    with pytest.raises(ValueError, match="no AlexNet nll of 'fog' is known for 'imagenet-hend"):
        alexnet_scores("imagenet-hendrycks", "nll", names=["fog"])


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"both be \(types, severities\), got \(2,\) and \(2,\)"):
        corruption_ratio([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="baseline must be positive for every type"):
        corruption_ratio([[1.0]], [[0.0]])
    with pytest.raises(ValueError, match=r"data must be one of .*'mnist'"):
        alexnet_scores("mnist", "error")  # type: ignore[arg-type]
    assert CORRUPTIONS[0] == "gaussian_noise"
