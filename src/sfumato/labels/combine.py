"""Any fidelity term plus any weighted penalties, with the summands at hand for logging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor, nn

from sfumato._core.checks import check_number

LossFunction = Callable[..., Tensor]


class LossParts(NamedTuple):
    """A loss and what it is the sum of."""

    total: Tensor
    parts: dict[str, Tensor]


def combined_loss(
    logits: Tensor,
    target: Tensor,
    *,
    fidelity: LossFunction,
    penalties: Mapping[str, tuple[float, LossFunction]],
    inputs: Mapping[str, tuple[Tensor, ...]] | None = None,
) -> LossParts:
    """Sum a fidelity term and weighted penalties.

        L = L_fidelity + sum_i weight_i penalty_i                          (ACLS Eq. 6, extended)

    Args:
        logits: (N, C) or (N, C, d1, ...).
        target: what all the functions are given.
        fidelity: `fidelity(logits, target)`, such as `cross_entropy_loss` or `FocalLoss()`. Fix
            other parameters with `functools.partial`.
        penalties: name to (weight, function), the function called like the fidelity.
        inputs: name to further tensors of this batch that a penalty takes after the target, such
            as {"ranking": (correctness,)} for `ranking_penalty`.

    Example:
        >>> import torch
        >>> from sfumato.labels.focal import focal_loss
        >>> from sfumato.labels.mdca import mdca_penalty
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
        >>> loss, parts = combined_loss(
        ...     logits,
        ...     torch.tensor([0, 1]),
        ...     fidelity=focal_loss,
        ...     penalties={"mdca": (0.5, mdca_penalty)},
        ... )
        >>> {name: round(part.item(), 4) for name, part in parts.items()}
        {'fidelity': 0.0434, 'mdca': 0.0952}

    Reference:
        ACLS, Eq. (6).
    """
    _check_penalties(penalties)
    inputs = inputs or {}
    for name in inputs:
        if name not in penalties:
            raise ValueError(f"inputs must name penalties {list(penalties)}, got {name!r}")
    summands = {"fidelity": fidelity(logits, target)}
    for name, (weight, penalty) in penalties.items():
        summands[name] = weight * penalty(logits, target, *inputs.get(name, ()))
    total = summands["fidelity"]
    for name in penalties:
        total = total + summands[name]  # Eq. (6)
    return LossParts(total, {name: summand.detach() for name, summand in summands.items()})


class CombinedLoss(nn.Module):
    """`combined_loss` as a module: `forward` gives the loss, `with_parts` its summands too.

    A fidelity or penalty that is a module becomes a submodule, so that its state is checkpointed.

    Args:
        fidelity, penalties: as in `combined_loss`.

    Example:
        >>> import torch
        >>> from sfumato.labels.cross_entropy import CrossEntropyLoss
        >>> from sfumato.labels.mbls import margin_penalty
        >>> loss = CombinedLoss(CrossEntropyLoss(), {"margin": (0.1, margin_penalty)})
        >>> loss(torch.tensor([[12.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.1667)
    """

    def __init__(
        self, fidelity: LossFunction, penalties: Mapping[str, tuple[float, LossFunction]]
    ) -> None:
        super().__init__()
        _check_penalties(penalties)
        self.fidelity = fidelity
        self.penalties = dict(penalties)
        functions = {name: function for name, (_, function) in penalties.items()}
        modules = {name: each for name, each in functions.items() if isinstance(each, nn.Module)}
        # A dict of pairs hides modules from PyTorch; here they are found by `.to` and `state_dict`.
        self.penalty_modules = nn.ModuleDict(modules)

    def forward(
        self, logits: Tensor, target: Tensor, inputs: Mapping[str, tuple[Tensor, ...]] | None = None
    ) -> Tensor:
        return self.with_parts(logits, target, inputs).total

    def with_parts(
        self, logits: Tensor, target: Tensor, inputs: Mapping[str, tuple[Tensor, ...]] | None = None
    ) -> LossParts:
        """The loss and its detached summands, from one evaluation."""
        return combined_loss(
            logits, target, fidelity=self.fidelity, penalties=self.penalties, inputs=inputs
        )


def _check_penalties(penalties: Mapping[str, tuple[float, LossFunction]]) -> None:
    for name, entry in penalties.items():
        if not name.isidentifier() or name == "fidelity":
            raise ValueError(
                f'penalties must have names like "margin", other than "fidelity", got {name!r}'
            )
        if not isinstance(entry, tuple) or len(entry) != 2 or not callable(entry[1]):
            raise TypeError(f"penalties[{name!r}] must be (weight, function), got {entry!r}")
        check_number(f"weight of penalty {name!r}", entry[0], low=0.0)
