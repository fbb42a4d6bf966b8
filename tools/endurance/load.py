"""Much of everything: memory stays flat, no file handle is left behind, and time is linear.

Time is that of the processor, so that a busy machine changes nothing.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from sfumato.engine.config.build import build_loss
from sfumato.engine.config.components import components
from tools.endurance.runners import (
    Runner,
    descendants,
    handles,
    processor_seconds,
    resident,
    scratch,
)
from tools.endurance.trials import ViolationError

STEPS = 100_000
ROWS = 40_000_000  # a quarter of which are too many to be kept
RUNS = 200
MEGABYTE = 1 << 20
SLOWER = 1.6  # by which a later part may be slower than an equal earlier one
_LATER = "take more and more time"
AUDIT = """
import json, os, resource, sys, time
from sfumato.cli import main
try:
    main()
except SystemExit as end:
    if end.code:
        raise
used = resource.getrusage(resource.RUSAGE_SELF)
held = len(os.listdir("/proc/self/fd"))
print(json.dumps([used.ru_maxrss * 1024, held, time.process_time()]), file=sys.stderr)
"""


def steps_of_a_loss(name: str, steps: int) -> None:
    """Value and gradient of one loss again and again, and the end of an epoch now and then."""
    loss = build_loss(name, num_samples=32, num_classes=5, epochs=10)
    takes_index = "index" in inspect.signature(loss.forward).parameters
    dice = torch.Generator().manual_seed(0)
    index = torch.arange(8)
    logits = torch.randn(8, 5, generator=dice).requires_grad_()
    target = torch.randint(0, 5, (8,), generator=dice)
    at = {}
    for number in range(steps + 1):
        if number in (steps // 4, steps // 2, 3 * steps // 4, steps):
            at[4 * number // steps] = (processor_seconds(), resident(), handles())
        value = loss(logits, target, index=index) if takes_index else loss(logits, target)
        logits.grad = None
        value.backward()
        if number % 1000 == 0:
            _end_epoch(loss, logits.detach(), target)
    before, after = at[2][0] - at[1][0], at[4][0] - at[3][0]
    _require(after < SLOWER * before + 1, f"{name}: steps {_LATER}: {before} s, then {after} s")
    _compare(name, at[1][1:], at[4][1:], steps)


def _end_epoch(loss: nn.Module, logits: Tensor, target: Tensor) -> None:
    module: Any
    for module in loss.modules():
        if hasattr(module, "note_validation"):
            module.note_validation(logits, target)
        if hasattr(module, "end_epoch"):
            module.end_epoch()


def audit_of_many_rows(rows: int) -> None:
    """A quarter of the rows, then all of them: in files of a million, summed up and not kept."""
    with tempfile.TemporaryDirectory() as folder:
        quarter, whole = (_audited(Path(folder), count) for count in (rows // 4, rows))
    _require(whole[2] < 4 * SLOWER * quarter[2], f"rows {_LATER}: {quarter}, {whole}")
    _compare("audit", quarter[:2], whole[:2], rows, memory=200 * MEGABYTE)


def _audited(folder: Path, rows: int) -> tuple[int, int, float]:
    """Peak memory, open files and seconds of the command on so many rows."""
    import pyarrow
    from pyarrow import parquet

    each = min(rows, 1_000_000)
    shards = folder / str(rows)
    shards.mkdir()
    probs = np.random.default_rng(0).dirichlet(np.ones(4), each).astype(np.float32)
    label = (probs.cumsum(1) > np.random.default_rng(1).random((each, 1))).argmax(1)
    columns = {f"prob_{k}": probs[:, k] for k in range(4)}
    first = shards / "0.parquet"
    parquet.write_table(pyarrow.table({**columns, "label": label}), first)
    for number in range(1, rows // each):  # as long as many files, and no larger than one
        os.link(first, shards / f"{number}.parquet")
    words = ["audit", shards, "--out", folder / "page", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, *map(str, words)], capture_output=True, text=True
    )
    if done.returncode:
        raise ViolationError(f"audit of {rows} rows: {done.stderr[-2000:]}")
    peak, held, seconds = json.loads(done.stderr.splitlines()[-1])
    return peak, held, seconds


def study_of_many_runs(runs: int) -> None:
    """A study over four workers, watched from the first half to the second."""
    with scratch() as folder:
        study, out = folder / "many.yaml", folder / "out"
        study.write_text(yaml.safe_dump(_many(runs)))
        runner = Runner(study, out, "--workers", 4)
        seen: dict[int, tuple[float, int, int]] = {}
        while runner.status is None:
            done = len(list((out / "runs").glob("*/metrics.json")))
            quarter = 4 * done // runs
            family = [runner.pid, *descendants(runner.pid)]
            if quarter not in seen or quarter == 3:  # the last look of the last quarter
                seen[quarter] = _watched(family) or seen.get(quarter, (0.0, 0, 0))
            time.sleep(0.02)
        runner.finish()
        left = [path.name for path in out.rglob("*") if path.name.endswith((".tmp", ".new"))]
        _require(not left, f"the study left {left[:5]} behind")
        found = len(list((out / "runs").glob("*/metrics.json")))
        _require(found == runs, f"{found} of {runs} runs have results")
    _require({1, 2, 3} <= set(seen), f"only the quarters {sorted(seen)} were seen")
    before, after = seen[2][0] - seen[1][0], seen[3][0] - seen[2][0]
    _require(after < 2 * SLOWER * before + 2, f"runs {_LATER}: {before} s, then {after} s")
    _compare("study", seen[1][1:], seen[3][1:], runs, memory=5 * 60 * MEGABYTE, files=8)


def _many(runs: int) -> dict[str, object]:
    return {
        "name": "many",
        "seeds": list(range(runs // 2)),
        "recipe": {
            "data": {"name": "scenes", "size": 16, "train": 8, "validation": 4, "test": 4},
            "model": {"name": "resnet", "depth": 8, "width": 2},
            "train": {"epochs": 1, "batch_size": 8, "milestones": []},
            "evaluate": {"resamples": 0},
        },
        "methods": {"plain": {}, "smooth": {"loss": {"name": "mbls", "margin": 2.0}}},
    }


def _watched(family: list[int]) -> tuple[float, int, int] | None:
    """Seconds, memory and open files of a runner and its workers; None while one of them ends."""
    try:
        return (
            sum(map(processor_seconds, family)),
            sum(map(resident, family)),
            sum(map(handles, family)),
        )
    except OSError:
        return None


def _compare(
    name: str,
    before: tuple[int, int],
    after: tuple[int, int],
    amount: int,
    *,
    memory: int = 16 * MEGABYTE,
    files: int = 0,
) -> None:
    grown = (after[0] - before[0]) // MEGABYTE
    _require(after[0] - before[0] < memory, f"{name}, {amount:,}: memory grew by {grown} MB")
    more = after[1] - before[1]
    _require(more <= files, f"{name}, {amount:,}: {more} more files are open")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ViolationError(otherwise)


class Load:
    """Studies, audits and losses under load; trial N takes the kind N modulo the number of kinds.

    Args:
        rows: of the audit.
    """

    name = "load"

    def __init__(self, rows: int = ROWS) -> None:
        self.rows = rows

    def trial(self, number: int) -> dict[str, int]:
        kinds: dict[str, Callable[[], None]] = {
            f"study of {RUNS} runs": lambda: study_of_many_runs(RUNS),
            f"audit of {self.rows:,} rows": lambda: audit_of_many_rows(self.rows),
        }
        for loss in components("loss"):
            kinds[f"{STEPS:,} steps of {loss}"] = lambda loss=loss: steps_of_a_loss(loss, STEPS)
        kind = list(kinds)[number % len(kinds)]
        kinds[kind]()
        return {kind: 1}


LOAD = Load()
