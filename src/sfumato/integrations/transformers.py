"""Hugging Face's `Trainer` with our losses and our numbers.

Trainer(model, ..., compute_loss_func=trainer_loss(ACLSLoss(margin=6.0)),
        compute_metrics=trainer_metrics)

and for tokens, whose logits (B, T, V) are never kept for the whole set:

Trainer(model, ..., compute_loss_func=trainer_loss(ACLSLoss(), causal=True),
        preprocess_logits_for_metrics=trainer_scores(causal=True), compute_metrics=trainer_metrics)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import classes_second
from sfumato.metrics import evaluate_predictions
from sfumato.metrics.evaluate import metrics_of_groups
from sfumato.metrics.groups import Samples, group_by_value, score

LossFunction = Callable[[Tensor, Tensor], Tensor]

_NOTHING = -100  # with which the Trainer fills up shorter arrays
_SCORES = Samples._fields[:3]  # of one entry; nothing is weighted here


def trainer_loss(
    loss: LossFunction,
    *,
    class_dim: int | None = None,
    causal: bool = False,
    ignore_index: int = -100,
) -> Callable[..., Tensor]:
    """A loss of ours, or any of (logits, labels), for `Trainer(compute_loss_func=...)`.

    The mean over a batch is weighed by its share of the labels of all batches that one step
    accumulates, so that for losses of single entries a step is that of one large batch.

    Args:
        loss: takes (logits, labels) and returns the mean over the batch.
        class_dim: dimension of the classes in the model's logits: -1 for token classification, 1
            for images. None is -1 where `causal`, else 1.
        causal: the logits of a token predict the next one, as in language models: labels are the
            tokens themselves, and are shifted here.
        ignore_index: label of entries that count for nothing.

    Example:
        >>> from types import SimpleNamespace
        >>> outputs = SimpleNamespace(logits=torch.zeros(2, 4))
        >>> compute = trainer_loss(nn.CrossEntropyLoss())
        >>> compute(outputs, torch.tensor([0, 1]), num_items_in_batch=4)  # half of log 4
        tensor(0.6931)
    """
    _check_takes_logits_and_target(loss)
    if getattr(loss, "reduction", "mean") != "mean":
        raise ValueError(f"loss must have reduction 'mean', got {loss.reduction!r}")  # type: ignore[attr-defined]
    if getattr(loss, "class_dim", 1) != 1:
        raise ValueError("loss must have class_dim=1; give class_dim to trainer_loss instead")

    def compute(
        outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        if labels is None:
            raise ValueError(
                "the batch has no 'labels', which the loss needs. The Trainer drops what the "
                "model's forward does not take, unless remove_unused_columns=False and "
                "label_names=['labels'] are in its TrainingArguments"
            )
        logits, labels = _aligned(_logits(outputs), labels, class_dim, causal, ignore_index)
        value = loss(logits, labels)
        if num_items_in_batch is None:
            return value
        count = (labels != ignore_index).sum()
        return value * count / torch.as_tensor(num_items_in_batch, device=value.device)

    return compute


def _check_takes_logits_and_target(loss: Callable[..., Any]) -> None:
    """Raise where a loss needs more than logits and labels."""
    if isinstance(loss, type) or not callable(loss):
        raise TypeError(
            f"loss must be a loss made, such as ACLSLoss(margin=6.0), or a function, got {loss!r}"
        )
    # `__call__` of a module takes anything; its `forward` says what.
    called = loss.forward if isinstance(loss, nn.Module) else loss
    required = [
        name
        for name, each in inspect.signature(called).parameters.items()
        if each.default is inspect.Parameter.empty
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    if len(required) > 2:
        raise TypeError(
            f"{type(loss).__name__} needs {required[2:]} beside logits and labels, which the "
            "Trainer has not: override Trainer.compute_loss for it, or train it in a study"
        )


def _aligned(
    logits: Tensor, labels: Tensor, class_dim: int | None, causal: bool, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Logits with their classes in dimension 1, and the labels that they predict."""
    if causal:
        # The labels move, not the logits, which would be copied.
        labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    if class_dim is None:
        class_dim = -1 if causal else 1
    return classes_second(logits, class_dim), labels


def trainer_scores(
    *, class_dim: int | None = None, causal: bool = False, ignore_index: int = -100
) -> Callable[[Any, Tensor], dict[str, Tensor]]:
    """Reduce logits to three numbers an entry, for `Trainer(preprocess_logits_for_metrics=...)`.

    Each batch becomes confidence, correctness and log likelihood, which `trainer_metrics` measures.

    Args:
        class_dim, causal, ignore_index: as in `trainer_loss`.

    Example:
        >>> scores = trainer_scores(class_dim=-1)(torch.zeros(1, 2, 4), torch.tensor([[0, -100]]))
        >>> scores["confidence"]
        tensor([[   0.2500, -100.0000]], dtype=torch.float64)
    """

    def reduce(outputs: Any, labels: Tensor) -> dict[str, Tensor]:
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        logits, labels = _aligned(logits, labels, class_dim, causal, ignore_index)
        found = score(logits, labels, from_logits=True, ignore_index=ignore_index)
        valid = (labels != ignore_index).to(found.confidence.device)
        empty = torch.full_like(valid, _NOTHING, dtype=torch.float64)
        return {
            name: empty.masked_scatter(valid, values.double())
            for name, values in zip(_SCORES, found[:3], strict=True)
        }

    return reduce


def trainer_metrics(prediction: Any) -> dict[str, float]:
    """Every number of `evaluate_predictions`, for `Trainer(compute_metrics=...)`.

    After `trainer_scores` those that need confidence, correctness and likelihood only: all but the
    Brier score, the classwise errors and the two parts of NLL.

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
    if isinstance(predictions, Mapping):
        return _metrics_of_scores(predictions)
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
    return _floats(evaluate_predictions(logits=logits, target=labels))


def _floats(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items()}


def _metrics_of_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    missing = [name for name in _SCORES if name not in scores]
    if missing:
        raise ValueError(
            f"predictions must be logits or what trainer_scores makes, got {list(scores)}. Pass "
            "preprocess_logits_for_metrics=trainer_scores(...) to the Trainer"
        )
    confidence, correct, likelihood = (torch.as_tensor(scores[name]) for name in _SCORES)
    counts = confidence != _NOTHING
    samples = Samples(confidence[counts], correct[counts] == 1, likelihood[counts])
    numbers = metrics_of_groups(group_by_value(samples), num_bins=15)
    numbers["nll"] = -samples.log_likelihood.mean()
    return _floats(numbers)


def end_epoch(module: nn.Module) -> None:
    """Tell every loss in a module that keeps a history or a schedule that an epoch has ended."""
    for each in module.modules():
        end: Any = getattr(each, "end_epoch", None)
        if callable(end):
            end()


def end_epoch_callback(loss: nn.Module) -> Any:
    """A callback that tells a loss with a history or a schedule (`end_epoch`) where an epoch ends.

    Args:
        loss: the loss that `trainer_loss` was given.
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
    """Find the logits in a model's output: by name, or the first of a tuple."""
    found = getattr(outputs, "logits", None)
    if found is None:
        with suppress(KeyError, IndexError, TypeError):
            found = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    if not isinstance(found, Tensor):
        raise TypeError(f"the model's output holds no logits: {type(outputs).__name__}")
    return found
