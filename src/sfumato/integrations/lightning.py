"""A callback for Lightning's `Trainer`: calibration in its log, and epochs that losses know of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sfumato.integrations.transformers import end_epoch
from sfumato.metrics import StreamingEvaluation

try:
    import lightning.pytorch as pl
except ImportError as error:
    raise ImportError(
        "sfumato.integrations.lightning needs lightning: python3 -m pip install lightning"
    ) from error


class EvaluationCallback(pl.Callback):
    """Logs `validation_ece`, `test_nll`, ... after each validation and test; ends epochs of losses.

    The numbers are those of `sfumato.metrics.StreamingEvaluation`, over all batches and all
    processes. Logits are taken from what the step returns, a mapping with `logits` and `labels`;
    else the module is called once more on the images of the batch. Losses with a history or a
    schedule (`end_epoch`) are told where an epoch of training ends. A further data loader has its
    number behind the names: `validation_ece_1`.

    Args:
        num_bins: bins of the calibration errors.

    Example:
        >>> trainer = pl.Trainer(callbacks=[EvaluationCallback()])  # doctest: +SKIP
    """

    def __init__(self, *, num_bins: int = 15) -> None:
        super().__init__()
        self.num_bins = num_bins
        self._metrics: dict[str, StreamingEvaluation] = {}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        end_epoch(pl_module)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._metrics.clear()

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._update(pl_module, outputs, batch, dataloader_idx)

    # Lightning validates and tests alike; only the names in the log differ.
    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._log(pl_module, "validation")

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._log(pl_module, "test")

    def _update(self, module: pl.LightningModule, outputs: Any, batch: Any, loader: int) -> None:
        suffix = f"_{loader}" if loader else ""
        if suffix not in self._metrics:
            metric = StreamingEvaluation(from_logits=True, num_bins=self.num_bins)
            self._metrics[suffix] = metric.to(module.device)
        self._metrics[suffix].update(*_predictions(module, outputs, batch))

    def _log(self, module: pl.LightningModule, stage: str) -> None:
        for suffix, metric in self._metrics.items():
            values = metric.compute()
            module.log_dict({f"{stage}_{name}{suffix}": each for name, each in values.items()})


def _predictions(module: nn.Module, outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Logits and labels of a batch, from its step or from the module."""
    if isinstance(outputs, Mapping) and {"logits", "labels"} <= outputs.keys():
        return outputs["logits"].detach(), outputs["labels"]
    if isinstance(batch, list | tuple) and len(batch) == 2:
        images, labels = batch
        return module(images).detach(), labels
    raise TypeError(
        "EvaluationCallback needs logits: return {'logits': logits, 'labels': labels} from the "
        f"validation (or test) step, or use batches (images, labels); the batch is a "
        f"{type(batch).__name__}, the step returned {type(outputs).__name__}"
    )
