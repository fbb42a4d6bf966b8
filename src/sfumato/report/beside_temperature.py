"""What one temperature does to a baseline, and which methods are better than that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sfumato.report.columns import Column
from sfumato.report.findings import Findings
from sfumato.report.judgement import judge_column
from sfumato.report.notes import listed
from sfumato.report.read import MethodResults
from sfumato.report.statistics import Difference
from sfumato.report.temperature import after_temperature

_Differences = Mapping[Column, Difference]


@dataclass(frozen=True)
class BesideTemperature:
    """A baseline after a temperature: its differences to the baseline, and of others to it.

    Verdicts hold over all methods of a column, as in the table.
    """

    baseline: str
    name: str
    own: _Differences
    others: Mapping[str, _Differences]

    @property
    def helps(self) -> bool:
        """Whether it is measurably better somewhere and measurably worse nowhere."""
        verdicts = {found.verdict for found in self.own.values()}
        return "better" in verdicts and "worse" not in verdicts

    def is_beaten_by(self, method: str) -> bool:
        """Whether a method is measurably better than it somewhere."""
        return any(found.verdict == "better" for found in self.others[method].values())

    @property
    def alone(self) -> str:
        """What it does, where nothing is better than it without a loss elsewhere."""
        trades = [name for name in self.others if self.is_beaten_by(name)]
        beyond = f"No method but {listed(trades)}" if trades else "No method"
        verdict = f"{beyond} is measurably better than that anywhere"
        return f"{self._what()} {_differing(self.own)}. {verdict}."

    def against(self, method: str) -> str:
        """What it does, and what a method does beyond."""
        beyond = _differing(self.others[method])
        return f"{self._what()} {_differing(self.own)}; against that {method} {beyond}."

    def _what(self) -> str:
        return f"One temperature on {self.baseline}, which trains nothing,"


def compare_temperatures(
    findings: Findings, columns: Sequence[Column]
) -> dict[str, BesideTemperature]:
    """Of each baseline whose runs fitted a temperature, by its name.

    Where a method of the study has the name already it is compared in the table.
    """
    found, names = {}, {row.name for row in findings.rows}
    for row in findings.rows:
        scaled = after_temperature(row.method) if row.baseline is None else None
        if scaled is not None and scaled.name not in names:
            others = [each.method for each in findings.rows if each.baseline == row.name]
            found[row.name] = _compared(row.method, scaled, others, columns)
    return found


def _compared(
    baseline: MethodResults,
    scaled: MethodResults,
    others: Sequence[MethodResults],
    columns: Sequence[Column],
) -> BesideTemperature:
    own: dict[Column, Difference] = {}
    beyond: dict[str, dict[Column, Difference]] = {each.name: {} for each in others}
    for column in columns:
        plain = judge_column([baseline, scaled, *others], baseline, column).differences
        if scaled.name in plain:
            own[column] = plain[scaled.name]
        for name, found in judge_column([scaled, *others], scaled, column).differences.items():
            beyond[name][column] = found
    return BesideTemperature(baseline.name, scaled.name, own, beyond)


def _differing(found: _Differences) -> str:
    parts = []
    for verdict in ("better", "worse"):
        named = [titled(each, column) for column, each in found.items() if each.verdict == verdict]
        if named:
            parts.append(f"measurably {verdict} in {listed(named)}")
    return f"is {' and '.join(parts)}" if parts else "is not measurably different"


def titled(found: Difference, column: Column) -> str:
    """A difference with its metric and unit, as `ECE (-2.1 [-3.0, -1.2] points)`."""
    return f"{column.title} ({found.text(column)}{' points' if column.percent else ''})"
