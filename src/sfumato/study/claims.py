"""Claims on trainings: one owner at a time, on one machine or on many with a shared folder.

A claim is a numbered file, `claims/000001.json`; the highest number owns. To claim is to create
the next number, which the file system lets one process do; nothing is ever deleted, so no two can
take over the same abandoned claim. The owner touches its file every few seconds. A claim is
abandoned when its process is gone (seen at once on the same machine), or when nobody has touched
it for `STALE_SECONDS` by the observer's own clock, so that clocks need not agree.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sfumato._core.files import write_json

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 180.0
Ending = Literal["finished", "failed", "interrupted"]
_NAME = re.compile(r"(\d{6,})\.json")  # copies and whatever else lies there are no claims
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class Claim:
    """The newest claim on a training; number 0 where nobody ever had one."""

    number: int
    owner: dict[str, Any]
    touched: float = 0.0

    @property
    def ended(self) -> str | None:
        ended: str | None = self.owner.get("ended")
        return "interrupted" if ended is None and self.number and self.touched == 0 else ended

    @property
    def holder(self) -> str:
        return f"{self.owner.get('host', 'unknown')} (process {self.owner.get('pid', '?')})"


@dataclass
class Observer:
    """Tells held claims from abandoned ones; remembers when it first saw each untouched."""

    stale_seconds: float = STALE_SECONDS
    _seen: dict[tuple[Path, int], tuple[float, float]] = field(default_factory=dict)

    def held(self, training: Path, claim: Claim) -> bool:
        """True if somebody alive works on this training."""
        if claim.number == 0 or claim.ended:
            return False
        if claim.owner.get("machine") == machine_name():
            return _alive(claim.owner.get("pid"), claim.owner.get("process_began"))
        now = time.monotonic()
        touched, since = self._seen.get((training, claim.number), (None, now))
        if touched != claim.touched:
            since = now
        self._seen[training, claim.number] = (claim.touched, since)
        return now - since < self.stale_seconds


class LostClaimError(RuntimeError):
    """Somebody else has the claim."""


def newest_claim(training: Path) -> Claim:
    found = [_NAME.fullmatch(path.name) for path in (training / "claims").glob("*.json")]
    number = max((int(name[1]) for name in found if name), default=0)
    if number == 0:
        return Claim(0, {})
    # Opening asks the server of a shared folder anew, where a plain stat may be minutes old.
    with _file(training, number).open(encoding="utf-8") as file:
        touched = os.fstat(file.fileno()).st_mtime
        text = file.read()
    try:
        owner = json.loads(text)
    except json.JSONDecodeError:  # created this moment, on a folder without hard links
        owner = {}
    return Claim(number, owner if isinstance(owner, dict) else {}, touched)


@contextmanager
def claimed(
    training: Path,
    after: int,
    *,
    on_lost: Callable[[], object],
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> Iterator[Callable[[Ending], None]]:
    """Own the training that was last owned by claim number `after`."""
    # Whoever creates the next number owns the training.
    path = _file(training, after + 1)
    owner = {
        "host": socket.gethostname(),
        "machine": machine_name(),
        "pid": os.getpid(),
        "process_began": _began(os.getpid()),
        "ended": None,
    }
    _create(path, owner)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(heartbeat_seconds):
            # This process slept so long that another one took over: the work must stop.
            if _file(training, after + 2).exists():
                on_lost()
                return
            with suppress(OSError):
                os.utime(path)  # needs no space, so that a full disk does not look like a death

    thread = threading.Thread(target=beat, name="sfumato claim", daemon=True)
    thread.start()
    endings: list[Ending] = ["interrupted"]
    try:
        yield endings.append
    finally:
        stop.set()
        thread.join()
        try:
            write_json(path, {**owner, "ended": endings[-1]})
        except OSError:
            with suppress(OSError):
                os.utime(path, (0, 0))  # says "interrupted" without needing space


def machine_name() -> str:
    """Name the space of process numbers: host, boot and, in containers, their namespace."""
    parts = [socket.gethostname()]
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if boot.exists():
        parts.append(boot.read_text().strip())
    if space.exists():
        parts.append(os.readlink(space))
    return " ".join(parts)


def _file(training: Path, number: int) -> Path:
    return training / "claims" / f"{number:06d}.json"


def _create(path: Path, owner: dict[str, Any]) -> None:
    """Create the file with its content in one step, or raise where it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(json.dumps(owner), encoding="utf-8")
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with path.open("x", encoding="utf-8") as file:  # creating is exclusive without links
                file.write(json.dumps(owner))
    except FileExistsError:
        message = f"{path.parent.parent} was claimed by somebody else a moment ago"
        raise LostClaimError(message) from None
    finally:
        temporary.unlink(missing_ok=True)


def _alive(pid: object, began: str | None) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    found = _began(pid)
    return found == began and found != "zombie"


def _began(pid: int) -> str | None:
    """Return when a process started, which tells it from a later one with the same number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "zombie" if fields[0] in "ZX" else fields[19]
