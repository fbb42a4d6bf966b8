"""What a training has logged: one JSON line an epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato._core.files import set_aside, write_text


@dataclass(frozen=True)
class EpochRecords:
    """The records of a training's epochs, in the log of its directory."""

    training: Path

    @property
    def path(self) -> Path:
        return self.training / "log.jsonl"

    def append(self, record: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """The records that are whole, in the order of the epochs."""
        if not self.path.exists():
            return []
        # A line that another process is still writing has no end yet.
        lines = self.path.read_bytes().splitlines(keepends=True)
        found = [_record(line) for line in lines if line.endswith(b"\n")]
        return [record for record in found if record is not None]

    def rewind(self, epoch: int) -> None:
        """Keep the records of finished epochs only, so that a resumed log has none twice."""
        if self.path.exists():
            self._write([record for record in self.read() if record["epoch"] < epoch])

    def repair(self) -> None:
        """Set a damaged log aside and keep the records that can be read."""
        records = self.read()
        whole = self.path.read_bytes().rpartition(b"\n")[0] if self.path.exists() else b""
        lost = len(whole.splitlines()) - len(records)
        if lost:
            set_aside(
                self.path,
                f"the curves and times of {lost} epochs are lost, the weights are not affected",
            )
            self._write(records)

    def _write(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in records))


def _record(line: bytes) -> dict[str, Any] | None:
    """A line of the log; None where it is damaged."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "epoch" in record else None
