"""Selective classification of a stream; predictions of one cell count as equally confident."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sfumato._core.checks import check_number
from sfumato.metrics.histogram import Groups
from sfumato.metrics.selective import (
    accuracy_at_coverage_of_groups,
    augrc_of_groups,
    aurc_of_groups,
    auroc_of_groups,
    excess_aurc_of_groups,
)
from sfumato.metrics.streaming.state import ConfidenceMetric


class AURC(ConfidenceMetric):
    """`aurc` of a stream; predictions of one cell count as equally confident."""

    higher_is_better = False

    def measure(self, groups: Groups) -> Tensor:
        return aurc_of_groups(groups)


class AUGRC(ConfidenceMetric):
    """`augrc` of a stream; predictions of one cell count as equally confident."""

    higher_is_better = False

    def measure(self, groups: Groups) -> Tensor:
        return augrc_of_groups(groups)


class ExcessAURC(ConfidenceMetric):
    """`excess_aurc` of a stream; predictions of one cell count as equally confident."""

    higher_is_better = False

    def measure(self, groups: Groups) -> Tensor:
        return excess_aurc_of_groups(groups)


class AccuracyAtCoverage(ConfidenceMetric):
    """`accuracy_at_coverage` of a stream; predictions of one cell count as equally confident."""

    higher_is_better = True

    def __init__(self, *, coverage: float = 0.8, **kwargs: Any) -> None:
        check_number("coverage", coverage, low=0.0, high=1.0, open_low=True)
        super().__init__(**kwargs)
        self.coverage = coverage

    def measure(self, groups: Groups) -> Tensor:
        return accuracy_at_coverage_of_groups(groups, self.coverage)


class ConfidenceAUROC(ConfidenceMetric):
    """`confidence_auroc` of a stream; predictions of one cell count as equally confident."""

    higher_is_better = True

    def measure(self, groups: Groups) -> Tensor:
        return auroc_of_groups(groups)
