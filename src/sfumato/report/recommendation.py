"""Recommend a smoothing, with gain, cost and certainty in plain language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sfumato.report.columns import Column
from sfumato.report.findings import Findings, Row, judge_column
from sfumato.report.read import MethodResults, after_temperature
from sfumato.report.statistics import LEVEL, Difference, Estimate

_USUAL_BINS = 15
_ONE_SEED = (
    "With one seed the interval is over the test images only: it says nothing about another "
    "training, and there is no verdict about methods."
)


def note(findings: Findings) -> str:
    """The lines under a table: only what occurs in it is explained."""
    columns = [column for column in findings.columns if column.is_main]
    values = [each for column in columns for each in _values(findings, column)]
    parts = [
        "Mean over seeds; in brackets its 95 % interval, from the spread over seeds (t) and, where "
        "they are kept, from resamples of the test images (bootstrap).",
        _without_images(findings, columns),
        _ONE_SEED if any(value.seeds < 2 for value in values) else "",
        "✓ significantly better than the baseline, ✗ significantly worse, ? inconclusive. In each "
        "column the probability of any false ✓ or ✗ is at most 5 % (Dunnett), so that the single "
        "interval of a difference may exclude zero without a verdict.",
    ]
    if any(value.is_near_floor for value in values):
        parts.append(
            "“perfect” is expected for a perfectly calibrated model with as many images. There is "
            "no verdict where even the larger of two numbers could be that of such a model, or "
            "where what is expected differs as much as they do."
        )
    if any(column.key == "expected_accuracy" for column in columns):
        parts.append(
            "“expected accuracy” is of images without labels: the mean confidence after the "
            "temperature of the validation set, which is the accuracy if the network is as well "
            "calibrated there as on the validation images, and not if the shift breaks that."
        )
    return " ".join(filter(None, [*parts, _bins_and_skipped(findings)]))


def _bins_and_skipped(findings: Findings) -> str:
    """Name the number of bins where it is not 15, and images that were left out as undecodable."""
    runs = [run for row in findings.rows for run in row.method.runs]
    found = [(run.config.get("evaluate") or {}).get("bins", _USUAL_BINS) for run in runs]
    counts = sorted({each[0] if isinstance(each, list) else each for each in found})
    most = max((run.metrics.get("skipped_images", 0) for run in runs), default=0)
    parts = []
    if counts not in ([], [_USUAL_BINS]):
        parts.append(f"Calibration errors have {listed([str(each) for each in counts])} bins.")
    if most:
        parts.append(
            f"Images that could not be decoded were left out, up to {most} of a run; each run "
            "lists its own in skipped_images.json."
        )
    return " ".join(parts)


def _are_counted(findings: Findings, column: Column) -> bool:
    """True if every interval over seeds of this column includes the test images."""
    return not any(value.over == "seeds" for value in _values(findings, column))


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def _values(findings: Findings, column: Column) -> list[Estimate]:
    return [row.values[column.id] for row in findings.rows if column.id in row.values]


def _without_images(findings: Findings, columns: Sequence[Column]) -> str:
    lacking = [column for column in columns if not _are_counted(findings, column)]
    if lacking and len(lacking) == len(columns):
        return (
            "These runs keep no resamples of their test images (an older version made them): all "
            "intervals are over seeds only."
        )
    names = listed([column.title for column in lacking])
    return f"No resamples are kept of {names}: there, seeds only." if lacking else ""


_Differences = Mapping[Column, Difference]


@dataclass(frozen=True)
class TemperatureComparison:
    """A baseline after a temperature: its differences to the baseline, and of others to it.

    Verdicts hold over all methods of a column, as in the table.
    """

    baseline: str
    name: str
    own: _Differences
    others: Mapping[str, _Differences]

    @property
    def helps(self) -> bool:
        """True if it is significantly better somewhere and worse nowhere."""
        verdicts = {found.verdict for found in self.own.values()}
        return "better" in verdicts and "worse" not in verdicts

    def is_beaten_by(self, method: str) -> bool:
        """True if a method is significantly better than it somewhere."""
        return any(found.verdict == "better" for found in self.others[method].values())

    @property
    def alone(self) -> str:
        """Describe it where nothing is better than it without a loss elsewhere."""
        trades = [name for name in self.others if self.is_beaten_by(name)]
        beyond = f"No method but {listed(trades)}" if trades else "No method"
        return f"{self._what()}. {beyond} is significantly better than that anywhere."

    def against(self, method: str) -> str:
        """Describe it, and what a method adds to it."""
        return f"{self._what()}; against that {method} {_differing(self.others[method])}."

    def _what(self) -> str:
        which = f"One temperature on {self.baseline}, which trains nothing,"
        return f"{which} {_differing(self.own)}"


def compare_temperatures(
    findings: Findings, columns: Sequence[Column]
) -> dict[str, TemperatureComparison]:
    """Compare each baseline whose runs fitted a temperature with itself after it, by its name.

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
) -> TemperatureComparison:
    own: dict[Column, Difference] = {}
    beyond: dict[str, dict[Column, Difference]] = {each.name: {} for each in others}
    for column in columns:
        _, plain = judge_column([baseline, scaled, *others], baseline, column)
        if scaled.name in plain:
            own[column] = plain[scaled.name]
        _, found = judge_column([scaled, *others], scaled, column)
        for name, difference in found.items():
            beyond[name][column] = difference
    return TemperatureComparison(baseline.name, scaled.name, own, beyond)


def _differing(found: _Differences) -> str:
    parts = []
    for verdict in ("better", "worse"):
        named = [titled(each, column) for column, each in found.items() if each.verdict == verdict]
        if named:
            parts.append(f"significantly {verdict} in {listed(named)}")
    return f"is {listed(parts) or 'not significantly different'}"


def titled(found: Difference, column: Column) -> str:
    """A difference with its metric and unit, as `ECE (-2.1 [-3.0, -1.2] points)`."""
    return f"{column.title} ({found.text(column)}{' points' if column.percent else ''})"


# What decides, where a study has it: being right, being honest, and both under damage.
DECIDING = (
    *("test.accuracy", "test.miou", "test.mean_iou", "test.ap", "test.nll", "test.ece"),
    "corrupted.error",
)
_FEW_SEEDS = 3


@dataclass(frozen=True)
class Recommendation:
    """A headline, and the sentences that give its reasons, its cost and its certainty."""

    method: str | None
    headline: str
    reasons: list[str]
    cost: str
    certainty: str

    @property
    def short(self) -> str:
        """The headline, with the evidence where a method is recommended."""
        if self.method is None or not self.reasons:
            return self.headline
        evidence, stop, _ = self.reasons[0].partition(". ")
        return f"{self.headline} {evidence}{stop.strip()}"

    @property
    def text(self) -> str:
        """All of it as one paragraph."""
        return " ".join(filter(None, (self.headline, *self.reasons, self.cost, self.certainty)))


def recommend(findings: Findings) -> Recommendation:
    """Choose the method that is significantly better somewhere and worse nowhere; else say so.

    Only metrics of `DECIDING` count. A method with gains and losses is named as a trade, never as
    a recommendation; nor is one recommended that is nowhere significantly better than the baseline
    after a temperature, where that is better than the baseline already.
    """
    columns = [column for column in findings.columns if column.id in DECIDING]
    compared = [row for row in findings.rows if row.differences]
    baseline = next((row.name for row in findings.rows if row.baseline is None), "")
    if not compared or not columns:
        return Recommendation(None, "There is nothing to compare yet.", [], "", "")
    temperatures = compare_temperatures(findings, columns)
    clean = [r for r in compared if _gains(r, columns) and not _losses(r, columns)]
    trained = [r for r in clean if not _is_matched(r, temperatures)]
    trades, strange = _trades(compared, columns), strange_inputs(findings)
    certainty = _certainty(findings, compared, columns)
    if trained:
        best = min(trained, key=lambda row: (-len(_gains(row, columns)), _tie_break(row, findings)))
        scaled = temperatures.get(str(best.baseline))
        against = [] if scaled is None else [scaled.against(best.name)]
        others = _runners_up([row for row in clean if row is not best])
        reasons = [_evidence(best, columns), *against, *others, *trades, *strange]
        headline, cost = f"Use {best.name}.", _cost(best, findings)
        return Recommendation(best.name, headline, reasons, cost, certainty)
    helping = next((each for each in temperatures.values() if each.helps), None)
    if helping is not None:
        return Recommendation(
            helping.name,
            f"Fit one temperature to {helping.baseline}.",
            [helping.alone, *_runners_up(clean), *trades, *strange],
            "It costs a few seconds, on predictions of held-out images.",
            certainty,
        )
    headline = (
        f"No method is significantly better than {baseline} without being worse somewhere: "
        f"stay with {baseline}, or add seeds."
    )
    reasons = [*trades, *_by_means_alone(findings, compared), *strange]
    return Recommendation(None, headline, reasons, "", certainty)


def strange_inputs(findings: Findings) -> list[str]:
    """Say whether methods cost recognition of strange inputs, where a study has verdicts on it."""
    columns = [c for c in findings.columns if c.split.startswith("ood.") and c.key == "auroc"]
    alike: dict[str, list[str]] = {}
    for row in findings.rows:
        if any(_verdict(row, column) for column in columns):
            counts = {"better": len(_gains(row, columns)), "worse": len(_losses(row, columns))}
            parts = [f"{verdict} in {count}" for verdict, count in counts.items() if count]
            what = f"significantly {listed(parts)}" if parts else "not significantly different"
            alike.setdefault(what, []).append(row.name)
    said = "; ".join(f"{listed(names)} {_are(names)} {what}" for what, names in alike.items())
    against = f"by {_count(len(columns), 'AUROC')} against the baseline"
    return [f"Recognition of strange inputs, {against}: {said}."] if alike else []


def _is_matched(row: Row, temperatures: Mapping[str, TemperatureComparison]) -> bool:
    """True if the method does not differ significantly from a temperature on its baseline."""
    scaled = temperatures.get(str(row.baseline))
    return scaled is not None and scaled.helps and not scaled.is_beaten_by(row.name)


def _gains(row: Row, columns: Sequence[Column]) -> list[Column]:
    return [c for c in columns if _verdict(row, c) == "better"]


def _losses(row: Row, columns: Sequence[Column]) -> list[Column]:
    return [c for c in columns if _verdict(row, c) == "worse"]


def _verdict(row: Row, column: Column) -> str | None:
    found = row.differences.get(column.id)
    return None if found is None else found.verdict


def _tie_break(row: Row, findings: Findings) -> float:
    """The lowest mean NLL, a proper score, decides among equals; else the order of the study."""
    likelihood = row.values.get("test.nll")
    return likelihood.mean if likelihood else float(findings.rows.index(row))


def _evidence(row: Row, columns: Sequence[Column]) -> str:
    gains = [titled(row.differences[c.id], c) for c in _gains(row, columns)]
    open_ = [c.title for c in columns if _verdict(row, c) == "inconclusive"]
    text = f"Against {row.baseline} it is significantly better in {listed(gains)}."
    if open_:
        text += f" Inconclusive: {listed(open_)}."
    known = [(column, row.values[column.id]) for column in columns if column.id in row.values]
    perfect = [_near_perfect(value, column) for column, value in known if value.is_near_floor]
    if perfect:
        text += f" Its {listed(perfect)} with as many images."
    return text


def _near_perfect(value: Estimate, column: Column) -> str:
    shown, floor = (
        f"{column.number(number)}{' %' if column.percent else ''}"
        for number in (value.mean, value.floor or 0.0)
    )
    what = "expected for a perfectly calibrated model"
    return f"{column.title} of {shown} is near the {floor} {what}"


def _runners_up(clean: Sequence[Row]) -> list[str]:
    names = [row.name for row in clean]
    better = "also significantly better somewhere and worse nowhere"
    return [f"{listed(names)} {_are(names)} {better}."] if names else []


def _trades(compared: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Methods with gains and losses; those with the same in one sentence."""
    alike: dict[str, list[str]] = {}
    for row in compared:
        gains, losses = (
            listed([c.title for c in found(row, columns)]) for found in (_gains, _losses)
        )
        if gains and losses:
            alike.setdefault(f"better in {gains}, worse in {losses}", []).append(row.name)
    return [
        f"{listed(names)} {'is a trade' if len(names) == 1 else 'are trades'}: {what}."
        for what, names in alike.items()
    ]


def _by_means_alone(findings: Findings, compared: Sequence[Row]) -> list[str]:
    """A lead to follow, said to be no more than that."""
    scored = [row for row in findings.rows if "test.nll" in row.values]
    if len(scored) < 2:
        return []
    best = min(scored, key=lambda row: row.values["test.nll"].mean)
    found = best.differences.get("test.nll")
    may_be_chance = best in compared and (found is None or found.verdict == "inconclusive")
    chance = ", which chance could explain" if may_be_chance else ""
    nll = best.values["test.nll"].mean
    return [f"On average {best.name} has the lowest NLL ({nll:.3f}){chance}."]


def _cost(row: Row, findings: Findings) -> str:
    reference = findings.row(row.baseline).cost if row.baseline else row.cost
    parts = [
        f"{ours / theirs:.2g}x {what} time"
        for ours, theirs, what in (
            (row.cost.train_seconds, reference.train_seconds, "training"),
            (row.cost.seconds_per_image, reference.seconds_per_image, "prediction"),
        )
        if ours and theirs
    ]
    if not parts:
        return "Its cost was not recorded."
    measured = "measured during the study; other processes may have interfered"
    return f"Cost: {listed(parts)} ({measured})."


def _certainty(findings: Findings, compared: Sequence[Row], columns: Sequence[Column]) -> str:
    made = [r.differences[c.id] for r in compared for c in columns if c.id in r.differences]
    if not any(difference.p is not None for difference in made):
        return (
            "How sure: one seed shows how networks differ on these images, not how methods do, so "
            "there are no verdicts. Add seeds."
        )
    fewest, most = (best(difference.seeds for difference in made) for best in (min, max))
    seeds = _count(most, "shared seed") if fewest == most else f"{fewest} to {most} shared seeds"
    text = (
        f"How sure: verdicts count {seeds} {_images(findings, columns)}, with the noise of each "
        f"method and of all together; in each column any false one has a probability of at most "
        f"{100 * LEVEL:.0f} %, over the {_count(len(columns), 'column')} that decide here "
        f"at most {100 * min(LEVEL * len(columns), 1.0):.0f} %."
    )
    if fewest == 1:
        text += " A method with one shared seed gets no verdict."
    if most < _FEW_SEEDS:
        text += " Two seeds make wide intervals: use three to five."
    return text


def _images(findings: Findings, columns: Sequence[Column]) -> str:
    counted = [_are_counted(findings, column) for column in columns]
    if all(counted):
        return "and test images"
    return "and, where kept, test images" if any(counted) else "only, not images"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
