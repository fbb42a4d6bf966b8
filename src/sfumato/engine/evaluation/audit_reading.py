"""Read the models of an audit: small ones row by row into memory, large ones as sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from sfumato.engine.evaluation.audit import Summed
from sfumato.engine.evaluation.audit_histograms import read_histogram
from sfumato.engine.evaluation.audit_sources import LARGEST_IN_MEMORY, Source
from sfumato.engine.evaluation.audit_workers import Job, jobs_of, tally
from sfumato.engine.runs.prediction_files import Reading, read_batches
from sfumato.engine.runs.prediction_rows import AnyPredictions, joined
from sfumato.engine.runs.progress import Bar


@dataclass(frozen=True)
class Plan:
    """How a model is read: by these jobs, or whole where there are none."""

    source: Source
    jobs: tuple[Job, ...] = ()

    @property
    def steps(self) -> int:
        """How often reading it moves the bar."""
        return len(self.jobs) or len(self.source.paths)


def plan_reading(source: Source, *, workers: int = 1, ray: str | None = None) -> Plan:
    """Rows in memory where they fit and one process reads them; their sums otherwise."""
    if workers == 1 and ray is None and source.bytes() <= LARGEST_IN_MEMORY:
        return Plan(source)
    return Plan(source, tuple(jobs_of(source.paths)))


def read_source(
    plan: Plan, reading: Reading, *, workers: int = 1, ray: str | None = None, bar: Bar
) -> AnyPredictions | Summed:
    """The predictions of a model, or what an audit needs of them."""
    source = plan.source
    counted = read_histogram(source.paths[0]) if len(source.paths) == 1 else None
    if counted is not None:
        bar.advance(source.name)
        return Summed(source.name, counted)
    if plan.jobs:
        return Summed(source.name, tally(plan.jobs, reading, workers=workers, ray=ray, bar=bar))
    parts, skipped = [], Counter[str]()
    for path in source.paths:
        parts += list(read_batches(path, reading, skipped))
        bar.advance(path.name)
    return replace(joined(parts), name=source.name, skipped=dict(skipped))
