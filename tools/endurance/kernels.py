"""The compiled kernels under the sanitizers of addresses and undefined behaviour.

The package is copied, its kernels compiled with the sanitizers in place of optimisation, and the
trials of losses, metrics and smoothing go through them in a process of their own, which the
sanitizers end at the first fault.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tools.endurance.trials import ViolationError

ROOT = Path(__file__).resolve().parents[2]
CASES = 200  # of each kind in one trial, so that starting a process does not count
FLAGS = "-O1 -g -std=c11 -fPIC -fopenmp -fno-omit-frame-pointer -fsanitize=address,undefined"
LEVELS = {"avx512": "-march=x86-64-v4", "avx2": "-march=x86-64-v3", "base": ""}
PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
from dataclasses import replace
from sfumato.ops.library import kernel_level
from tools.endurance import losses, metrics, smoothing
if kernel_level() is None:
    sys.exit("no kernels under the sanitizers")
first = int(sys.argv[1])
for surface in (losses, metrics, smoothing):
    for number in range(first, first + int(sys.argv[2])):
        surface.check(replace(surface.draw(number), kernels=True))
"""


@cache
def _package() -> tempfile.TemporaryDirectory[str]:
    """A copy of the package whose kernels are watched; compiled once, removed at the end."""
    kept = tempfile.TemporaryDirectory()
    source = Path(kept.name) / "sfumato"
    shutil.copytree(ROOT / "src/sfumato", source, ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    folder = source / "ops"
    identity = runpy.run_path(str(folder / "sources.py"))["sources_id"](folder)
    for level, more in LEVELS.items():
        command = ["gcc", *FLAGS.split(), *more.split(), f'-DSOURCES="{identity}"']
        target = folder / f"kernels-{level}.so"
        made = target.with_suffix(".o")
        subprocess.run([*command, "-c", folder / "kernels.c", "-o", made], check=True)
        subprocess.run(["gcc", "-shared", made, "-o", target], check=True)
    return kept


def _watched(level: str) -> dict[str, str]:
    """The environment in which the sanitizers' libraries come first and end at a fault."""
    libraries = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        # Python keeps memory to its end, which is no leak of a kernel.
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "ATEN_CPU_CAPABILITY": "default" if level == "base" else level,
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": os.pathsep.join([_package().name, str(ROOT)]),
    }


class Kernels:
    """Kernels under sanitizers; trial N takes the vector level N mod 3."""

    name = "kernels"

    def trial(self, number: int) -> dict[str, int]:
        level = list(LEVELS)[number % len(LEVELS)]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(number * CASES), str(CASES)],
            env=_watched(level),
            capture_output=True,
            text=True,
        )
        if done.returncode or "ERROR: " in done.stderr or "runtime error" in done.stderr:
            raise ViolationError(f"{level}: {done.stderr[-3000:]}")
        return {level: 3 * CASES}


KERNELS = Kernels()
