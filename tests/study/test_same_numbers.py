"""The numbers of a run depend on its configuration and its threads, and on nothing else."""

from __future__ import annotations

import locale
import os
import pty
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.endurance.runners import CLASSIFY, Runner, jobs_of, results_of

METHODS: dict[str, Any] = {
    "plain": {},
    "mixed": {"augment": "fcr+mixup", "inputs": "mollify"},
    "sampled": {"predict": {"mc_dropout": 3}},
}


def _study(folder: Path, methods: dict[str, Any], seeds: list[int]) -> Path:
    path = folder / "study.yaml"
    recipe = {**CLASSIFY, "train": {"epochs": 2, "batch_size": 16}}
    content = {"name": "same", "seeds": seeds, "recipe": recipe, "methods": methods}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def _numbers(study: Path, out: Path) -> dict[str, Any]:
    """What each run measured, by the run's name."""
    jobs = jobs_of(study, out)
    names = [f"{run.method}, seed {run.seed}" for job in jobs for run in job.runs]
    return dict(zip(names, results_of(jobs), strict=True))


def _run(folder: Path, *more: object, methods: Any = None, seeds: Any = None, **how: Any) -> Any:
    folder.mkdir()
    study = _study(folder, methods or METHODS, seeds or [0, 1])
    Runner(study, folder / "out", *more, **how).finish()
    return _numbers(study, folder / "out")


def _comma() -> None:
    """A comma as decimal point in everything that asks the C library."""
    locale.setlocale(locale.LC_ALL, "")
    assert locale.localeconv()["decimal_point"] == ","


def _terminal() -> None:
    """Standard output and error are a terminal, which somebody reads."""
    ours, theirs = pty.openpty()
    threading.Thread(target=_drain, args=(ours,), daemon=True).start()
    for number in (1, 2):
        os.dup2(theirs, number)


def _drain(handle: int) -> None:
    with suppress(OSError):  # the terminal is closed
        while os.read(handle, 4096):
            pass


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _run(tmp_path_factory.mktemp("expected") / "run", "--workers", 2)


SETTINGS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "one worker": lambda folder: _run(folder, "--workers", 1),
    "four workers": lambda folder: _run(folder, "--workers", 4),
    "order": lambda folder: _run(folder, methods=dict(reversed(METHODS.items())), seeds=[1, 0]),
    "terminal": lambda folder: _run(
        folder, prepare=_terminal, variables={"TERM": "xterm-256color", "COLUMNS": "40"}
    ),
    "time zone": lambda folder: _run(folder, variables={"TZ": "Pacific/Kiritimati"}),
    "variables": lambda folder: _run(
        folder,
        variables={
            "PYTHONHASHSEED": "7",
            "HOME": str(folder),
            "NO_COLOR": "1",
            "LANG": "tr_TR",
            "MPLBACKEND": "svg",
            "PL_GLOBAL_SEED": "5",
            "CUDA_VISIBLE_DEVICES": "",
            "SFUMATO_DATA": str(folder),
        },
        is_cold=True,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_numbers_do_not_depend_on(setting: str, tmp_path: Path, expected: dict[str, Any]) -> None:
    assert SETTINGS[setting](tmp_path / "run") == expected


@pytest.mark.slow
def test_numbers_do_not_depend_on_runs_that_wait(tmp_path: Path, expected: dict[str, Any]) -> None:
    """One method alone first, then a seed, then all."""
    study, out = _study(tmp_path, METHODS, [0, 1]), tmp_path / "out"
    Runner(study, out, "--only", "sampled", "--workers", 1).finish()
    Runner(study, out, "--seeds", "1", "--workers", 3).finish()
    Runner(study, out, "--workers", 2).finish()
    assert _numbers(study, out) == expected


@pytest.mark.slow
def test_numbers_do_not_depend_on_the_locale(tmp_path: Path, expected: dict[str, Any]) -> None:
    """A comma as decimal point; made here, since few machines have such a locale."""
    made = tmp_path / "de_DE.UTF-8"
    command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(made)]
    try:
        done = subprocess.run(command, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no localedef here")
    if not made.is_dir():
        pytest.skip(f"no German locale can be made here: {done.stderr.decode()[:200]}")
    variables = {"LOCPATH": str(tmp_path), "LC_ALL": "de_DE.UTF-8"}
    found = _run(tmp_path / "run", prepare=_comma, variables=variables)
    assert found == expected
