"""Worker processes that decode and augment the next batches while a network works on this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.context import BaseContext

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sfumato._core.checks import check_integer
from sfumato.augment.protocol import BatchAugment, Sample
from sfumato.data.dataset import ArrayDataset

VARIABLE = "SFUMATO_LOADING_WORKERS"
BATCHES_AHEAD = 2

Drawn = tuple[Tensor, Tensor]
"""Positions of a batch's samples in their set, and the uniform numbers of their augmentation."""


def loading_workers() -> int:
    """Processes that decode for one loader: the variable `SFUMATO_LOADING_WORKERS`, else threads.

    How many there are changes no number. 0 decodes in the process itself.

    Raises:
        ValueError: the variable is no whole number of 0 or more.
    """
    said = os.environ.get(VARIABLE)
    if said is None:
        return max(1, torch.get_num_threads())
    if not said.isdecimal():
        raise ValueError(f"{VARIABLE} must be a whole number, 0 or more, got {said!r}")
    return int(said)


def make_batch(dataset: ArrayDataset, augment: BatchAugment | None, drawn: Drawn) -> Sample:
    """Samples of a file-backed set after augmentation, on the CPU, images in uint8."""
    positions, uniforms = drawn
    if augment is None:
        return dataset.batch(positions)
    cuts = getattr(augment, "cuts_originals", False)
    sample = dataset.batch_to_cut(positions) if cuts else dataset.batch(positions)
    return augment.apply(sample, uniforms, void=dataset.void)


class BatchWorkers:
    """Batches of a file-backed set, made by worker processes, in the order in which they are asked.

    Args:
        dataset: the samples.
        augment: what is done to each batch.
        workers: processes, at least 1.
        stay: keep the processes for the next round; else they end with each.
    """

    def __init__(
        self, dataset: ArrayDataset, augment: BatchAugment | None, workers: int, *, stay: bool
    ) -> None:
        check_integer("workers", workers, low=1)
        self._maker = _Maker(dataset, augment)
        self._workers = workers
        self._stay = stay
        self._round: list[Drawn] = []
        self._loader: DataLoader[Sample | _Failure] | None = None

    def batches(self, drawn: Sequence[Drawn]) -> Iterator[Sample]:
        """One round.

        Raises:
            RuntimeError: a process died; what is wrong with a file is raised as it is.
        """
        self._round[:] = drawn
        self._loader = self._loader or self._started()
        batches = _round_of(self._loader)
        while True:
            found = _next_or_failure(batches)
            if isinstance(found, _Failure):
                # An error's traceback keeps what its frames know. The processes are to end now.
                del batches
                self._loader = None
                raise found.error from RuntimeError(found.trace)
            if found is None:
                return
            yield found

    def _started(self) -> DataLoader[Sample | _Failure]:
        return DataLoader(
            self._maker,
            batch_size=None,
            sampler=self._round,
            num_workers=self._workers,
            prefetch_factor=BATCHES_AHEAD,
            persistent_workers=self._stay,
            worker_init_fn=_follow_parent,
            multiprocessing_context=start_context(),
            # Else every round would draw from the generator of dropout.
            generator=torch.Generator(),
        )


def start_context() -> BaseContext | None:
    """How worker processes start; None is the default of this process.

    Where that is "spawn", as in the processes of a study, every worker would import PyTorch anew,
    in each epoch of a validation set: they are forks of one fresh process that has imported it.
    """
    if sys.platform != "linux" or multiprocessing.get_start_method(allow_none=True) != "spawn":
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


class _Failure:
    """What went wrong in a worker; raised there, it would come with its traceback as message."""

    def __init__(self, error: Exception, trace: str) -> None:
        self.error = error
        self.trace = trace


def _round_of(loader: DataLoader[Sample | _Failure]) -> Iterator[Sample | _Failure]:
    """Begins with the first batch: processes that stay may have died since the last round."""
    yield from loader


def _next_or_failure(batches: Iterator[Sample | _Failure]) -> Sample | _Failure | None:
    """The next batch, or None after the last one."""
    try:
        return next(batches, None)
    except RuntimeError as error:
        said = str(error).strip().removesuffix(".")
    message = (
        f"a process that decodes images died: {said}. Signal 9 (Killed) mostly means that memory "
        f"was short: use a smaller batch_size, or fewer processes with {VARIABLE}=1; {VARIABLE}=0 "
        "decodes in the run's own process and shows what crashes"
    )
    return _Failure(RuntimeError(message), said)


class _Maker(Dataset[Sample | _Failure]):
    """What a `DataLoader` asks for batches."""

    def __init__(self, dataset: ArrayDataset, augment: BatchAugment | None) -> None:
        self._dataset = dataset
        self._augment = augment

    def __getitem__(self, drawn: Drawn) -> Sample | _Failure:
        try:
            return make_batch(self._dataset, self._augment, drawn)
        except Exception as error:  # raised again where the batch is asked for
            return _Failure(error, "in a process that decodes images:\n" + traceback.format_exc())


def _follow_parent(worker: int) -> None:
    """End with the process that wants the batches, and not before.

    One traceback of an interrupted run is enough. PyTorch looks at the process that forked this
    one, which need not be the one that is killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
