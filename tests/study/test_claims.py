"""One owner at a time: claims of the living hold, those of the dead do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sfumato.study import claims
from sfumato.study.claims import LostClaimError, Observer, claimed, newest_claim


def _never() -> None:
    raise AssertionError("nobody took over")


def _write(training: Path, number: int, **owner: Any) -> None:
    (training / "claims").mkdir(parents=True, exist_ok=True)
    (training / "claims" / f"{number:06d}.json").write_text(json.dumps(owner))


def test_held_while_its_process_lives(tmp_path: Path) -> None:
    observer = Observer()
    assert not observer.held(tmp_path, newest_claim(tmp_path))
    with claimed(tmp_path, 0, on_lost=_never) as end:
        claim = newest_claim(tmp_path)
        assert (claim.number, claim.owner["pid"]) == (1, os.getpid())
        assert observer.held(tmp_path, claim)
        with pytest.raises(LostClaimError), claimed(tmp_path, 0, on_lost=_never):
            pass
        end("finished")
    assert newest_claim(tmp_path).ended == "finished"
    assert not observer.held(tmp_path, newest_claim(tmp_path))


def test_an_interrupted_owner_lets_go(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(tmp_path, 0, on_lost=_never):
        raise KeyboardInterrupt
    assert newest_claim(tmp_path).ended == "interrupted"


def test_a_full_disk_does_not_keep_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with claimed(tmp_path, 0, on_lost=_never):
        monkeypatch.setattr(claims, "write_json", full)
    assert newest_claim(tmp_path).ended == "interrupted"


def test_dead_process_of_this_machine_is_seen_at_once(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    _write(tmp_path, 1, machine=claims.machine_name(), pid=dead.pid, process_began="1", ended=None)
    assert not Observer().held(tmp_path, newest_claim(tmp_path))
    # The number of a living process that began at another time is a re-used number.
    _write(tmp_path, 2, machine=claims.machine_name(), pid=os.getpid(), process_began="1")
    assert not Observer().held(tmp_path, newest_claim(tmp_path))


def test_another_machine_is_trusted_until_it_stays_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 100.0
    monkeypatch.setattr(claims, "time", SimpleNamespace(monotonic=lambda: seconds))
    _write(tmp_path, 4, machine="elsewhere", host="elsewhere", pid=1, ended=None)
    observer = Observer(stale_seconds=3.0)
    assert observer.held(tmp_path, newest_claim(tmp_path))
    seconds += 2.0
    os.utime(tmp_path / "claims" / "000004.json", (1000, 1000))  # touched, by whatever clock
    assert observer.held(tmp_path, newest_claim(tmp_path))
    seconds += 2.0
    assert observer.held(tmp_path, newest_claim(tmp_path))
    seconds += 2.0
    assert not observer.held(tmp_path, newest_claim(tmp_path))


def test_owner_touches_its_claim_and_notices_a_take_over(
    tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    lost = threading.Event()
    with claimed(tmp_path, 0, on_lost=lost.set, heartbeat_seconds=0.02):
        path = tmp_path / "claims" / "000001.json"
        os.utime(path, (1000, 1000))
        wait_until(lambda: path.stat().st_mtime != 1000, "the claim to be touched")
        assert not lost.is_set()
        _write(tmp_path, 2, machine="elsewhere", pid=1)
        assert lost.wait(240)


def test_many_claim_and_one_wins(tmp_path: Path) -> None:
    """Also on a folder without hard links, where creating the file is the decision."""
    won: list[int] = []
    barrier = threading.Barrier(8)

    def race(number: int) -> None:
        barrier.wait()
        try:
            claims._create(tmp_path / "claims" / "000001.json", {"pid": number})
        except LostClaimError:
            return
        won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert newest_claim(tmp_path).owner == {"pid": won[0]}


def test_folder_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    with claimed(tmp_path, 0, on_lost=_never):
        assert newest_claim(tmp_path).owner["pid"] == os.getpid()
        with pytest.raises(LostClaimError), claimed(tmp_path, 0, on_lost=_never):
            pass
