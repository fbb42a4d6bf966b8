"""What the system says of a process: its memory, its time, and the files that it holds open."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def resident(pid: int | str = "self") -> int:
    """Bytes in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def handles(pid: int | str = "self") -> int:
    """Open files, pipes and sockets."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def processor_seconds(pid: int | str = "self") -> float:
    """Time that it computed, however busy the machine is."""
    fields = _status(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def descendants(pid: int) -> list[int]:
    """Processes that it started, and those that they did."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents.setdefault(int(_status(folder.name)[1]), []).append(int(folder.name))
            except OSError:  # it has ended
                continue
    found = list(parents.get(pid, ()))
    for each in found:
        found += parents.get(each, ())
    return found


def _status(pid: int | str) -> list[str]:
    """The fields of `stat` behind the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
