"""The kernels of a GPU: in Triton's interpreter, and compiled ahead of time for three of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed: PyTorch for GPUs brings it along")

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
# Classes, whether they are neighbours in memory, and how often the first pass reads a logit where
# it has a margin: again where the top isn't known before the last block.
SHAPES = [(10, True, 1), (1000, True, 1), (128_000, True, 2), (21, False, 1), (150, False, 2)]


@pytest.mark.slow
def test_in_the_interpreter() -> None:
    """In a process of its own: Triton reads the variable when it is imported."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/ops/interpreted_triton.py"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout


def test_importing_a_loss_does_not_import_triton() -> None:
    code = "import sys, sfumato.labels; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


def _compile(kernel: Any, target: str, classes: int, is_rows: bool, **flags: bool) -> Any:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sfumato.ops import softmax_triton

    sizes = softmax_triton.tile_sizes(classes, is_rows)
    options = {"num_warps": sizes.pop("num_warps"), "enable_fp_fusion": True}
    constants = {**sizes, **flags, "IS_ROWS": is_rows, "REAL": tl.float32}
    is_first = kernel is softmax_triton.numbers_kernel
    if is_first:
        constants["IS_ONE"] = classes <= sizes["WIDTH"]
    types = {"label": "*i64", "margin": "fp32", "ignored": "i64"}
    types |= dict.fromkeys(("logits", "soft"), "*bf16")
    types |= dict.fromkeys(("C", "P", "entries"), "i32")
    types["out"] = "*fp32" if is_first else "*bf16"
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*fp32")
        for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)


def _spilled(compiled: Any, target: str, folder: Path) -> list[int]:
    """How many bytes, or registers, went to memory."""
    if target.startswith("gfx"):
        found = re.findall(r"gpr_spill_count:\s+(\d+)", compiled.asm["amdgcn"])
    else:
        from triton.backends.nvidia.compiler import get_ptxas

        (folder / "kernel.ptx").write_text(compiled.asm["ptx"])
        architecture = re.findall(r"\.target (\w+)", compiled.asm["ptx"])[0]
        assembler = get_ptxas(TARGETS[target][1]).path
        command = [assembler, "-v", f"-arch={architecture}", "kernel.ptx", "-o", "kernel"]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        found = re.findall(r"(\d+) bytes spill", said.stderr)
    assert found
    return [int(number) for number in found]


def _tiles(compiled: Any, operation: str) -> int:
    """How many operations load or store a whole tile of logits, soft targets or gradients."""
    return len(re.findall(rf"tt\.{operation} .*tensor<\d+x\d+x", compiled.asm["ttir"]))


@pytest.mark.slow
@pytest.mark.parametrize("is_soft", [False, True])
@pytest.mark.parametrize(("classes", "is_rows", "reads"), SHAPES)
@pytest.mark.parametrize("target", TARGETS)
def test_compiled_ahead_of_time(
    target: str, classes: int, is_rows: bool, reads: int, is_soft: bool, tmp_path: Path
) -> None:
    """Nothing spills; each logit is read once, and its gradient written once."""
    from sfumato.ops.softmax_triton import gradient_kernel, numbers_kernel

    flags = {"HARD": not is_soft, "SOFT": is_soft, "EACH": is_soft}
    for has_margin in (False, True):
        first = _compile(numbers_kernel, target, classes, is_rows, MARGIN=has_margin, **flags)
        second = _compile(gradient_kernel, target, classes, is_rows, MARGIN=has_margin, **flags)
        assert not any(_spilled(first, target, tmp_path) + _spilled(second, target, tmp_path))
        assert _tiles(first, "load") == (reads if has_margin else 1) + is_soft
        assert _tiles(first, "store") == 0
        assert (_tiles(second, "load"), _tiles(second, "store")) == (1 + is_soft, 1)
