"""What the intervals and verdicts of a study rest on, in the words that stand under its tables."""

from __future__ import annotations

from collections.abc import Sequence

from sfumato.report.columns import Column
from sfumato.report.findings import Findings
from sfumato.report.statistics import Estimate

_USUAL_BINS = 15


def note(findings: Findings) -> str:
    """The lines under a table: only what occurs in it is explained."""
    columns = [column for column in findings.columns if column.is_main]
    values = [each for column in columns for each in _values(findings, column)]
    parts = [
        "Mean over seeds; in brackets its 95 % interval, from the spread over seeds of all methods "
        "together (moderated t) and, where they are kept, from resamples of the test images "
        "(bootstrap).",
        *_without_images(findings, columns),
        *_single(values),
        "✓ measurably better than the baseline, ✗ measurably worse, ? can't tell: in each column "
        "the probability of any false ✓ or ✗ is at most 5 % (Holm), so that the single interval of "
        "a difference may exclude zero without a verdict.",
    ]
    if any(value.is_near_floor for value in values):
        parts.append(
            "“perfect” is what a perfectly calibrated network would show there with as many "
            "images; where even the larger of two numbers could be that of such a network, or "
            "their two floors differ as much as they do, there is no verdict."
        )
    if any(column.key == "expected_accuracy" for column in columns):
        parts.append(
            "“expected accuracy” is of images without labels: the mean confidence after the "
            "temperature of the validation set, which is the accuracy if the network is as well "
            "calibrated there as on the validation images, and not if the shift breaks that."
        )
    return " ".join([*parts, *_bins(findings), *_skipped(findings)])


def _skipped(findings: Findings) -> list[str]:
    """Where images could not be decoded and the study said to leave them out."""
    runs = [run for row in findings.rows for run in row.method.runs]
    most = max((run.metrics.get("skipped_images", 0) for run in runs), default=0)
    if not most:
        return []
    return [
        f"Images that could not be decoded were left out, up to {most} of a run; each run lists "
        "its own in skipped_images.json."
    ]


def _bins(findings: Findings) -> list[str]:
    """Where a calibration error has another number of bins than the usual 15."""
    runs = [run for row in findings.rows for run in row.method.runs]
    found = [(run.config.get("evaluate") or {}).get("bins", _USUAL_BINS) for run in runs]
    counts = sorted({each[0] if isinstance(each, list) else each for each in found})
    if counts in ([], [_USUAL_BINS]):
        return []
    return [f"Calibration errors have {listed([str(each) for each in counts])} bins."]


def images_are_counted(findings: Findings, columns: Sequence[Column]) -> bool:
    """Whether every interval over seeds of these columns has the test images in it, too."""
    return not any(v.over == "seeds" for c in columns for v in _values(findings, c))


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _values(findings: Findings, column: Column) -> list[Estimate]:
    return [row.values[column.id] for row in findings.rows if column.id in row.values]


def _without_images(findings: Findings, columns: Sequence[Column]) -> list[str]:
    lacking = [column for column in columns if not images_are_counted(findings, [column])]
    if not lacking:
        return []
    if len(lacking) == len(columns):
        return [
            "These runs keep no resamples of their test images (an older version made them): all "
            "intervals are over seeds only."
        ]
    names = listed([column.title for column in lacking])
    return [f"No resamples are kept of {names}: there, seeds only."]


def _single(values: Sequence[Estimate]) -> list[str]:
    if all(value.seeds > 1 for value in values):
        return []
    return [
        "With one seed the interval is over the test images only: it says nothing about another "
        "training, and there is no verdict about methods."
    ]
