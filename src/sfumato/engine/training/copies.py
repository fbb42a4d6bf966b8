"""The loss of a batch in which each sample is there several times, augmented in different ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from sfumato.augment import split_copies
from sfumato.labels import (
    bias_corrected_log_likelihood,
    jensen_log_likelihood,
    monte_carlo_log_likelihood,
)

ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "jensen": jensen_log_likelihood,
    "monte_carlo": monte_carlo_log_likelihood,
    "bias_corrected": bias_corrected_log_likelihood,
}


class CopiesLoss(nn.Module):
    """Minus the mean log-likelihood of samples, each averaged over its copies.

    Args:
        loss: minus the log-likelihood of each row, without a reduction.
        copies: K; row k N + n of a batch is copy k of sample n.
        estimator: a name of `ESTIMATORS`.

    Reference:
        Mollification paper, appendix D, Eq. (19), (22) and (25).
    """

    def __init__(self, loss: nn.Module, copies: int, estimator: str) -> None:
        super().__init__()
        self.loss = loss
        self.copies = copies
        self.estimator = ESTIMATORS[estimator]

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        log_likelihood = split_copies(-self.loss(logits, target), self.copies)  # (K, N)
        return -self.estimator(log_likelihood).mean()
