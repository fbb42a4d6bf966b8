"""Runners of studies that a campaign can start by the hundred: forked from a warm process.

A process of the command line imports for seconds and trains these studies in tenths. One server
imports once and forks runners, which fork their workers; all else is the command as it is.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.endurance.campaign import BrokenPromiseError

LONGEST = 300.0  # seconds that a study of these may take
_PRELOADED = ["sfumato.cli", "sfumato.study", "sfumato.engine.tasks.execution", "sfumato.report"]
_PRELOADED += ["sfumato.engine.config.parts", "sfumato.study.preview", __name__]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: waiting for a disk is most of the time of such runs.

    A killed process loses nothing that it has written, in memory as on a disk.
    """
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


class Runner:
    """`sfumato run STUDY --out OUT` in a process of its own.

    Args:
        study: the study file.
        out: where runs and report go; what it says goes beside them.
        more: further arguments.
        is_cold: start it as a user does, with a new interpreter for each process.
        prepare: is called in a warm process before the command.
        variables: of the environment, besides ours.
    """

    def __init__(
        self,
        study: Path,
        out: Path,
        *more: object,
        is_cold: bool = False,
        prepare: Callable[[], None] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        words = ["run", study, "--out", out, "--threads", 1, "--quiet", *(more or ["--workers", 2])]
        self.log = out.with_name(f"{out.name}.log")
        environment = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", **(variables or {})}
        arguments = list(map(str, words))
        self._process: Any
        if is_cold:
            with self.log.open("ab") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "sfumato", *arguments],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                )
        else:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(_PRELOADED)
            self._process = context.Process(
                target=_command, args=(arguments, str(self.log), environment, prepare)
            )
            self._process.start()
        self.pid: int = self._process.pid
        self._is_cold = is_cold

    @property
    def status(self) -> int | None:
        """None while it runs."""
        code: int | None = self._process.poll() if self._is_cold else self._process.exitcode
        return code

    def wait(self) -> None:
        """Wait until it ends, however it ends."""
        if self._is_cold:
            self._process.wait(LONGEST)
        else:
            self._process.join(LONGEST)

    def finish(self) -> None:
        """Wait until it ends well."""
        self.wait()
        if self.status != 0:
            self._process.kill()
            said = self.log.read_text(errors="replace")
            raise BrokenPromiseError(f"the study ended with {self.status}: {said[-3000:]}")


def _command(
    arguments: list[str],
    log: str,
    environment: dict[str, str],
    prepare: Callable[[], None] | None,
) -> None:
    """The command line in a forked process, which forks its workers."""
    os.setsid()
    os.environ.update(environment)
    time.tzset()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    import torch

    from sfumato.cli import main

    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    forked = multiprocessing.get_context("fork")
    sys.argv = ["sfumato", *arguments]
    with mock.patch.object(multiprocessing, "get_context", return_value=forked):
        main()
