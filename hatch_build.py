"""Compile the C kernels at installation, where there is a compiler; without one all still works."""

from __future__ import annotations

import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/sfumato/ops")
# The package itself can't be imported yet.
sources_id = runpy.run_path(str(Path(__file__).parent / FOLDER / "sources.py"))["sources_id"]
# Sums may be reordered and comparisons need not mind NaN, so that loops vectorise.
FLAGS = (
    "-O3 -std=c11 -fPIC -fno-math-errno -fno-trapping-math -fassociative-math "
    "-fno-signed-zeros -ffinite-math-only"
)
LEVELS = {
    "avx512": "-march=x86-64-v4 -mprefer-vector-width=512",
    "avx2": "-march=x86-64-v3",
    "base": "",
}
# Threads are PyTorch's own, by the interface of gcc's OpenMP, which other compilers don't speak.
GCC_FLAGS = {"": "-fopenmp", "avx512": "--param=vect-partial-vector-usage=1"}


class KernelHook(BuildHookInterface):
    """Adds the compiled kernels to the wheel, which is then one for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or not sys.platform.startswith("linux"):
            return
        is_x86 = platform.machine() in ("x86_64", "AMD64")
        made = [self._compile(level) for level in (LEVELS if is_x86 else ("base",))]
        if any(made):
            build_data["pure_python"] = False
            # The kernels are called through ctypes: one wheel serves every version of Python.
            system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{system}"
            build_data["artifacts"].append(f"{FOLDER}/*.so")

    def _compile(self, level: str) -> bool:
        """Whether `kernels-LEVEL.so` could be made."""
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]  # may be "ccache gcc"
        if shutil.which(compiler[0]) is None:
            self.app.display_warning("no C compiler: installed without the faster kernels")
            return False
        try:
            return self._make(compiler, level, self._flags(compiler, level))
        except OSError as error:  # a source tree that is read only
            self.app.display_warning(f"installed without the faster kernels: {error}")
            return False

    def _flags(self, compiler: list[str], level: str) -> list[str]:
        flags = f"{FLAGS} {LEVELS[level]}"
        command = [*compiler, "--version"]
        version = subprocess.run(command, capture_output=True, text=True, check=False)
        if "clang" in version.stdout:
            self.app.display_warning("not compiled by gcc: the kernels will use one thread")
        else:
            flags += f" {GCC_FLAGS['']} {GCC_FLAGS.get(level, '')}"
        return flags.split()

    def _make(self, compiler: list[str], level: str, flags: list[str]) -> bool:
        folder = Path(self.root) / FOLDER
        target = folder / f"kernels-{level}.so"
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            parts, made = Path(scratch) / "kernels.o", Path(scratch) / target.name
            flags = [*flags, f'-DSOURCES="{sources_id(folder)}"']
            # Linked without -fopenmp: PyTorch brings the OpenMP that the kernels use.
            steps = [
                [*compiler, *flags, "-c", str(folder / "kernels.c"), "-o", str(parts)],
                [*compiler, "-shared", str(parts), "-o", str(made)],
            ]
            for step in steps:
                result = subprocess.run(step, capture_output=True, text=True, check=False)
                if result.returncode:
                    self.app.display_warning(f"{' '.join(step)} failed: {result.stderr.strip()}")
                    return False
            made.replace(target)
        return True
