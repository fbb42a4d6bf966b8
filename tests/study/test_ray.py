"""The same study on a Ray cluster of two workers, one of which is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sfumato.engine import ConfigError, RunDirectory
from sfumato.study import load_study, run_study
from sfumato.study.claims import newest_claim
from sfumato.study.jobs import Job

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'sfumato[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.mark.slow
def test_two_workers_one_killed(
    cluster: None,
    killed_study: Path,
    tmp_path: Path,
    jobs_of: Callable[[Path, Path], list[Job]],
    metrics_of: Callable[[list[Job]], list[dict[str, Any]]],
    wait_until: Callable[..., Any],
    uninterrupted: list[dict[str, Any]],
) -> None:
    folder = tmp_path / "out"
    jobs = jobs_of(killed_study, folder)
    killed: list[int] = []

    def kill() -> None:
        wait_until(lambda: len(RunDirectory(jobs[0].training).log()) >= 2, "two epochs")
        killed.append(int(newest_claim(jobs[0].training).owner["pid"]))
        fields = Path(f"/proc/{killed[0]}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(fields[1]), signal.SIGKILL)  # the Ray worker, whose process ends with it

    killer = threading.Thread(target=kill)
    killer.start()
    lines: list[str] = []
    outcome = run_study(
        load_study(killed_study), folder, ray="auto", show=False, announce=lines.append
    )
    killer.join()
    assert not outcome.failed
    assert metrics_of(jobs) == uninterrupted
    assert any("Ray worker is gone" in line for line in lines), lines
    owners = [newest_claim(job.training).owner["pid"] for job in jobs]
    assert os.getpid() not in owners
    assert killed[0] not in owners
    assert newest_claim(jobs[0].training).number == 2


def test_no_cluster_is_one_message(killed_study: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--ray auto: no cluster answers.*ray start --head"):
        run_study(load_study(killed_study), tmp_path / "out", ray="auto", announce=lambda _: None)
