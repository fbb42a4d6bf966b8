"""Worker processes that decode: how they start, and what is said when one dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.augment import ResizedCrop
from sfumato.data import ArrayDataset, TensorLoader
from sfumato.data.loader import loading_workers, start_context
from tests.data.test_holding import SIZE, boxed, pictures


@pytest.fixture
def square(tmp_path: Path) -> ArrayDataset:
    """Files that have the very size of the set's images."""
    return boxed(pictures(tmp_path, [(SIZE, SIZE)] * 10))


class _Dies:
    """An augmentation that kills its process."""

    draws = 0

    def apply(self, sample: Any, uniforms: Tensor, *, void: int | None = None) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_an_error(square: ArrayDataset) -> None:
    with pytest.raises(RuntimeError, match=r"process that decodes images died: .*[Kk]illed") as e:
        list(TensorLoader(square, 4, augment=_Dies(), workers=1))
    assert "SFUMATO_LOADING_WORKERS=0" in str(e.value)


def test_a_worker_that_dies_between_epochs_is_an_error(square: ArrayDataset) -> None:
    loader = TensorLoader(square, 4, shuffle=True, workers=1)  # whose processes stay
    list(loader)
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    with pytest.raises(RuntimeError, match=r"process that decodes images died: .*exited") as e:
        list(loader)
    assert "SFUMATO_LOADING_WORKERS=0" in str(e.value)
    assert len(list(loader)) == 3  # with processes anew


def _read_as_a_study_does(place: Path, connection: Any) -> None:
    """In a process that was spawned: batches of two epochs, and what is said of a dead worker."""
    context = start_context()
    data = boxed(sorted(place.glob("*.png")))
    loader = TensorLoader(data, 4, shuffle=True, augment=ResizedCrop(), workers=1)
    batches = [each["image"].numpy() for _ in range(2) for each in loader]
    try:
        list(TensorLoader(data, 4, augment=_Dies(), workers=1))
    except RuntimeError as error:
        connection.send((getattr(context, "_name", None), batches, str(error)))


@pytest.mark.slow
def test_workers_of_a_spawned_process_are_forks_of_one(tmp_path: Path) -> None:
    data = boxed(pictures(tmp_path, [(SIZE, SIZE)] * 10))
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_read_as_a_study_does, args=(tmp_path, theirs))
    process.start()
    theirs.close()
    name, batches, message = ours.recv()
    process.join()
    assert name == ("forkserver" if sys.platform == "linux" else None)
    alone = TensorLoader(data, 4, shuffle=True, augment=ResizedCrop(), workers=0)
    expected = [each["image"].numpy() for _ in range(2) for each in alone]
    assert all(np.array_equal(a, b) for a, b in zip(batches, expected, strict=True))
    assert "process that decodes images died" in message


class _Tells:
    """An augmentation that writes down which process it works in."""

    draws = 0

    def __init__(self, file: Path) -> None:
        self.file = file

    def apply(self, sample: Any, uniforms: Tensor, *, void: int | None = None) -> Any:
        self.file.write_text(str(os.getpid()))
        return sample


def _read_for_ever(place: Path, connection: Any) -> None:
    data = boxed(sorted(place.glob("*.png")))
    loader = TensorLoader(data, 4, shuffle=True, augment=_Tells(place / "pid"), workers=1)
    list(loader)
    connection.send(None)
    time.sleep(600)


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_workers_end_with_a_process_that_is_killed(way: Any, tmp_path: Path) -> None:
    pictures(tmp_path, [(SIZE, SIZE)] * 4)
    context: Any = multiprocessing.get_context(way)
    ours, theirs = context.Pipe()
    process = context.Process(target=_read_for_ever, args=(tmp_path, theirs))
    process.start()
    ours.recv()
    worker = int((tmp_path / "pid").read_text())
    assert _is_running(worker)
    process.kill()
    process.join()
    limit = time.monotonic() + 30
    while _is_running(worker) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not _is_running(worker)


def test_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SFUMATO_LOADING_WORKERS", raising=False)
    assert loading_workers() == torch.get_num_threads()
    monkeypatch.setenv("SFUMATO_LOADING_WORKERS", "3")
    assert loading_workers() == 3
    monkeypatch.setenv("SFUMATO_LOADING_WORKERS", "-1")
    with pytest.raises(ValueError, match="SFUMATO_LOADING_WORKERS must be a whole number"):
        loading_workers()
