"""How long the epochs of a study will take, from a few steps of each method."""

from __future__ import annotations

from dataclasses import dataclass, field

from sfumato.data import DataSplits, load_data
from sfumato.engine import RunConfig, content_hash
from sfumato.engine.classify import seconds_per_epoch


@dataclass
class Probe:
    """Times methods, each once whatever its seeds, and writes nothing into the study.

    Args:
        active: False gives None for every method.
    """

    active: bool = True
    _epochs: dict[str, float | None] = field(default_factory=dict)
    _data: dict[str, DataSplits] = field(default_factory=dict)

    def seconds_per_epoch(self, config: RunConfig) -> float | None:
        """Seconds of one epoch; None where the task has no probe or a step fails."""
        if not self.active or config.task != "classify":
            return None
        content = config.model_dump(mode="json", exclude={"predict", "evaluate", "seed"})
        name = content_hash(content)
        if name not in self._epochs:
            self._epochs[name] = self._time(config)
        return self._epochs[name]

    def _time(self, config: RunConfig) -> float | None:
        source = content_hash(config.data)
        try:
            if source not in self._data:
                self._data[source] = load_data(config.data)
            seconds = seconds_per_epoch(config, self._data[source])
        except Exception:  # the run itself will say what is wrong, and record it
            return None
        devices = config.train.devices
        return seconds / (devices if isinstance(devices, int) else 1)
