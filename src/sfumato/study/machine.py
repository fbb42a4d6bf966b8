"""What a study takes of its machine: runs at a time, threads for each, processor instructions."""

from __future__ import annotations

import os
import signal

import torch

CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGILL, signal.SIGABRT)


def usable_cores() -> int:
    """The cores that this process may run on, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_workers() -> int:
    """One process for each core, up to four."""
    return min(4, usable_cores())


def default_threads() -> int:
    """Threads of each run: the cores shared out among the default number of workers.

    Sums are taken in another order with other threads, so this looks at the machine alone:
    neither `--workers` nor the number of runs that wait changes a number.
    """
    return max(1, usable_cores() // default_workers())


def idle_cores_hint(at_a_time: int, threads: int) -> str | None:
    """One line where a study of few runs leaves half of the cores or more without work."""
    cores = usable_cores()
    if 2 * at_a_time * threads > cores:
        return None
    return (
        f"Runs at a time: {at_a_time}, threads of each: {threads}. "
        f"{cores - at_a_time * threads} of {cores} cores have no work; "
        f"--threads {cores // at_a_time} uses them (other threads change the last digits)."
    )


def conservative_environment() -> dict[str, str]:
    """Variables that keep PyTorch to instructions that have been in use for a decade.

    Kernels for the newest ones are where libraries still crash, and some virtual machines
    announce instructions that they then refuse.
    """
    found = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    # An instruction set that is named is used unchecked: only ever step down to it.
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        found["ATEN_CPU_CAPABILITY"] = "avx2"
    return found
