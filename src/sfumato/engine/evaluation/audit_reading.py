"""Read the models of an audit: small ones row by row into memory, large ones as sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sfumato.engine.evaluation.audit_histograms import read_histogram
from sfumato.engine.evaluation.audit_sources import LARGEST_IN_MEMORY, Source
from sfumato.engine.evaluation.audit_tallies import NOTHING_MORE, Summed, Wanted
from sfumato.engine.evaluation.audit_workers import Job, jobs_of, tally
from sfumato.engine.runs.prediction_files import Reading, read_batches
from sfumato.engine.runs.prediction_parts import Layout, layout_of, merged
from sfumato.engine.runs.prediction_rows import AnyPredictions, PredictionFileError, joined
from sfumato.engine.runs.progress import Bar


@dataclass(frozen=True)
class Plan:
    """How a model is read: by these jobs, or whole where there are none.

    Args:
        source: the model.
        jobs: parts of it that are summed up.
        wanted: what is summed up beside the rest.
    """

    source: Source
    jobs: tuple[Job, ...] = ()
    wanted: Wanted = NOTHING_MORE

    @property
    def steps(self) -> int:
        """How often reading it moves the bar."""
        return len(self.jobs) or len(self.source.paths)


def plan_reading(
    sources: Sequence[Source],
    *,
    per_class: bool = False,
    unlabelled: bool = False,
    workers: int = 1,
    ray: str | None = None,
) -> list[Plan]:
    """Rows in memory where those of every model fit and one process reads them; else their sums.

    Args:
        sources: the models, which are compared with the first where there are several.
        per_class: whether each class gets a threshold of its own.
        unlabelled: whether there are no labels, so that sums are all that is needed.
        workers: processes on this machine.
        ray: address of a Ray cluster.
    """
    if unlabelled:
        return [Plan(source, tuple(jobs_of(source.paths))) for source in sources]
    fit = all(source.bytes() <= LARGEST_IN_MEMORY for source in sources)
    if workers == 1 and ray is None and fit:
        return [Plan(source) for source in sources]
    wanted = Wanted(sample=True, per_class=per_class, blocks=len(sources) > 1)
    return [Plan(source, tuple(jobs_of(source.paths)), wanted) for source in sources]


def read_source(
    plan: Plan, reading: Reading, *, workers: int = 1, ray: str | None = None, bar: Bar
) -> AnyPredictions | Summed:
    """The predictions of a model, or what an audit needs of them."""
    source = plan.source
    counted = read_histogram(source.paths[0]) if len(source.paths) == 1 else None
    if counted is not None and reading.unlabelled:
        raise PredictionFileError(
            f"{source.paths[0]}: is a histogram that counts right ones: leave --unlabelled out"
        )
    if counted is not None:
        bar.advance(source.name)
        return Summed(source.name, counted)
    if plan.jobs:
        if len(source.paths) > 1:
            reading = replace(reading, like=_first_layout(source, reading))
        tallies = tally(plan.jobs, reading, plan.wanted, workers=workers, ray=ray, bar=bar)
        return Summed(source.name, tallies)
    files, skipped = [], Counter[str]()
    for path in source.paths:
        files.append(joined(list(read_batches(path, reading, skipped))))
        reading = replace(reading, like=reading.like or layout_of(files[0]))
        bar.advance(path.name)
    return merged(files, source.name, dict(skipped))


def _first_layout(source: Source, reading: Reading) -> Layout:
    return layout_of(next(read_batches(source.paths[0], reading)))
