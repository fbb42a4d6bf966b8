"""Scores relative to a baseline model: CE, CNLL and CECE.

Reference: Park and Kim, Blurs Behave Like Ensembles, ICML 2022, appendix E.1, Eq. (35)-(37); the
baseline is AlexNet, as in Hendrycks and Dietterich, ICLR 2019.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

import torch
from torch import Tensor

from sfumato._core.checks import check_choice

BaselineData = Literal["cifar10", "cifar100", "imagenet", "imagenet-hendrycks"]
BaselineMetric = Literal["error", "nll", "ece"]

_TYPES = 15  # of the benchmark, the first in the table; four extra ones follow
_SEVERITIES = ("1", "2", "3", "4", "5")
_ROWS: dict[BaselineData, str] = {
    "cifar10": "CIFAR-10-C",
    "cifar100": "CIFAR-100-C",
    "imagenet": "ImageNet-C",
    "imagenet-hendrycks": "ImageNet-C (Hendrycks)",
}


def corruption_ratio(scores: Any, baseline: Any) -> Tensor:
    """Sum over severities of a score, relative to the same sum of a baseline model.

    CE_c = sum_i E_{i,c} / sum_i E_{i,c}^baseline. Of errors it is the corruption error CE, of NLLs
    the corruption NLL (CNLL), of ECEs the corruption ECE (CECE); their means over the types c are
    mCE, mCNLL and mCECE.

    Args:
        scores: error, NLL or ECE of the model, any array.
        baseline: the same of the baseline, `alexnet_scores` or a run of one's own.

    Shape:
        scores and baseline (types, severities); the result (types,), float64.

    Example:
        >>> corruption_ratio([[0.1, 0.2], [0.3, 0.3]], [[0.2, 0.4], [0.2, 0.2]])
        tensor([0.5000, 1.5000], dtype=torch.float64)

    Reference: Eq. (35), (36), (37).
    """
    own = torch.as_tensor(scores, dtype=torch.float64)
    base = torch.as_tensor(baseline, dtype=torch.float64)
    if own.ndim != 2 or own.shape != base.shape:
        raise ValueError(
            "scores and baseline must both be (types, severities), got "
            f"{tuple(own.shape)} and {tuple(base.shape)}"
        )
    if bool((base.sum(dim=1) <= 0.0).any()):
        raise ValueError("baseline must be positive for every type, got a sum of 0 or less")
    return own.sum(dim=1) / base.sum(dim=1)  # Eq. (35)-(37)


def alexnet_scores(
    data: BaselineData, metric: BaselineMetric, *, names: Sequence[str] | None = None
) -> Tensor:
    """AlexNet's published score for each type and severity.

    Args:
        data: "cifar10", "cifar100", "imagenet", or "imagenet-hendrycks" for the usual ImageNet-C
            errors, which are known as means over the severities only and are given five times.
        metric: "error", "nll" or "ece".
        names: the types wanted, by default the benchmark's 15; the four extra ones are known for
            "cifar100" only.

    Shape:
        the result (types, 5), float64.

    Example:
        >>> alexnet_scores("cifar10", "error", names=["gaussian_noise"])
        tensor([[0.1938, 0.2590, 0.3388, 0.3781, 0.4211]], dtype=torch.float64)

    Differs: the ECE was measured with 10 bins in which a confidence of exactly 1 counts as 0.
    """
    check_choice("data", data, _ROWS)
    check_choice("metric", metric, ("error", "nll", "ece"))
    table = _table()
    if names is None:
        names = list(dict.fromkeys(name for _, name, _ in table))[:_TYPES]
    rows = []
    for name in names:
        cells = [table.get((_ROWS[data], name, severity)) for severity in _SEVERITIES]
        cells = [cell or table.get((_ROWS[data], name, "mean")) for cell in cells]
        values = [cell[metric] if cell else "" for cell in cells]
        if "" in values:
            raise ValueError(f"no AlexNet {metric} of {name!r} is known for {data!r}")
        rows.append([float(value) for value in values])
    return torch.tensor(rows, dtype=torch.float64)


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, str, str], dict[str, str]]:
    with files("sfumato.metrics").joinpath("alexnet.csv").open(encoding="utf-8") as lines:
        return {
            (row["dataset"], row["corruption"], row["severity"]): row
            for row in csv.DictReader(lines)
        }
