"""Hugging Face's `Trainer` with our losses and our numbers.

Trainer(model, ..., compute_loss_func=trainer_loss(ACLSLoss(margin=6.0)),
        compute_metrics=trainer_metrics)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.integrations.losses import check_takes_logits_and_target, end_epoch
from sfumato.metrics import evaluate_predictions

LossFunction = Callable[[Tensor, Tensor], Tensor]


def trainer_loss(loss: LossFunction, *, ignore_index: int = -100) -> Callable[..., Tensor]:
    """A loss of ours, or any of (logits, labels), for `Trainer(compute_loss_func=...)`.

    The mean over a batch is weighed by its share of the labels of all batches that one step
    accumulates, which the Trainer counts: a step with accumulated gradients is that of one large
    batch, for losses that are means of single entries.

    Args:
        loss: takes (logits, labels) and returns the mean over the batch.
        ignore_index: label of entries that count for nothing.

    Raises:
        TypeError: a class instead of a loss, or a loss that also needs the samples' index.

    Example:
        >>> from types import SimpleNamespace
        >>> outputs = SimpleNamespace(logits=torch.zeros(2, 4))
        >>> compute = trainer_loss(nn.CrossEntropyLoss())
        >>> compute(outputs, torch.tensor([0, 1]), num_items_in_batch=4)  # half of log 4
        tensor(0.6931)
    """
    check_takes_logits_and_target(loss)
    if getattr(loss, "reduction", "mean") != "mean":
        raise ValueError(f"loss must have reduction 'mean', got {loss.reduction!r}")  # type: ignore[attr-defined]

    def compute(
        outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        if labels is None:
            raise ValueError(
                "the batch has no 'labels', which the loss needs. The Trainer drops what the "
                "model's forward does not take, unless remove_unused_columns=False and "
                "label_names=['labels'] are in its TrainingArguments"
            )
        value = loss(_logits(outputs), labels)
        if num_items_in_batch is None:
            return value
        count = (labels != ignore_index).sum()
        return value * count / torch.as_tensor(num_items_in_batch, device=value.device)

    return compute


def trainer_metrics(prediction: Any) -> dict[str, float]:
    """Every number of `evaluate_predictions`, for `Trainer(compute_metrics=...)`.

    Args:
        prediction: the Trainer's `EvalPrediction`, logits and labels as arrays.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> made = SimpleNamespace(predictions=np.eye(3) * 9, label_ids=np.arange(3))
        >>> trainer_metrics(made)["accuracy"]
        1.0
    """
    predictions = prediction.predictions
    if isinstance(predictions, tuple):  # logits first, then what else the model returns
        predictions = predictions[0]
    logits = torch.as_tensor(predictions).float()
    labels = torch.as_tensor(prediction.label_ids).long()
    if logits.ndim < 2 or len(logits) != len(labels):
        raise ValueError(
            f"predictions must be logits (N, C, ...) with labels (N, ...), got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}. Drop other outputs with "
            "TrainingArguments or ignore_keys"
        )
    return {
        name: float(value) for name, value in evaluate_predictions(labels, logits=logits).items()
    }


def end_epoch_callback(loss: nn.Module) -> Any:
    """A callback that tells a loss with a history or a schedule (`end_epoch`) where an epoch ends.

    Args:
        loss: the loss that `trainer_loss` was given.

    Returns:
        A `TrainerCallback`, for `Trainer(callbacks=[...])`.
    """
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError(
            "end_epoch_callback needs transformers: python3 -m pip install transformers accelerate"
        ) from error

    class EndEpoch(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            end_epoch(loss)

    return EndEpoch()


def _logits(outputs: Any) -> Tensor:
    """Of a model's output: by name, or the first of a tuple."""
    found = getattr(outputs, "logits", None)
    if found is None:
        try:
            found = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        except (KeyError, IndexError, TypeError):
            found = None
    if not isinstance(found, Tensor):
        raise TypeError(f"the model's output holds no logits: {type(outputs).__name__}")
    return found
