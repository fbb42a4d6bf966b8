"""Deep ensembles: several networks, one averaged prediction.

Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, Lakshminarayanan et
al., NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sfumato.predictions.mc_dropout import MCDropout


class DeepEnsemble(nn.Module):
    """Mean of the members' probabilities, Eq. (2) with independently trained weights.

    Args:
        models: networks that give logits (B, C, ...), or `MCDropout` of such networks, which give
            probabilities; both kinds may be mixed.

    Example:
        >>> members = [nn.Linear(2, 3), nn.Linear(2, 3)]
        >>> DeepEnsemble(members)(torch.zeros(4, 2)).shape
        torch.Size([4, 3])
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise ValueError("models must hold at least one network")
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        """Mean probabilities over the members, in the members' own modes."""
        total: Tensor | None = None
        for model in self.models:
            output = model(x)
            probs = output if isinstance(model, MCDropout) else output.softmax(1)
            total = probs if total is None else total + probs
        if total is None:
            raise ValueError("models must hold at least one network")
        return total / len(self.models)

    @torch.no_grad()
    def curve(self, x: Tensor) -> dict[int, Tensor]:
        """Mean probabilities of the first 1, 2, ... members, from one pass of each."""
        means, total = {}, torch.zeros(())
        for count, model in enumerate(self.models, start=1):
            total = total + DeepEnsemble([model])(x)
            means[count] = total / count
        return means
