"""The training log: one JSON line an epoch, and TensorBoard where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from sfumato.engine.runs.directory import RunDirectory


class TrainingLog:
    """Writes each epoch's record; only the first process of a distributed run writes."""

    def __init__(self, run: RunDirectory, start_epoch: int, active: bool) -> None:
        self._run = run
        self._active = active
        self._board: Any = None
        if active:
            run.records.rewind(start_epoch)
            if importlib.util.find_spec("tensorboard") is not None:
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(
                    str(run.training / "tensorboard"), purge_step=start_epoch
                )

    def write(self, record: Mapping[str, float]) -> None:
        """Append the record of one epoch."""
        if not self._active:
            return
        self._run.records.append(record)
        if self._board is not None:
            for name, value in record.items():
                if name != "epoch":
                    self._board.add_scalar(name, value, record["epoch"])

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._board is not None:
            self._board.close()
