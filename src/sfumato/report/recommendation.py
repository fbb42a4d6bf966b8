"""Which smoothing to use here, what it costs and how sure that is, in plain language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sfumato.report.beside_temperature import BesideTemperature, compare_temperatures, titled
from sfumato.report.columns import Column
from sfumato.report.findings import Findings, Row
from sfumato.report.inference import LEVEL
from sfumato.report.notes import images_are_counted, listed

# What decides, where a study has it: being right, being honest, and both under damage.
DECIDING = (
    *("test.accuracy", "test.miou", "test.mean_iou", "test.ap", "test.nll", "test.ece"),
    "corrupted.error",
)
_FEW_SEEDS = 3
_SAME = 0.05  # ratios of times that are nearer to 1 are noise


@dataclass(frozen=True)
class Recommendation:
    """A headline, and the sentences that give its reasons, its cost and its certainty."""

    method: str | None
    headline: str
    reasons: list[str]
    cost: str
    certainty: str

    @property
    def text(self) -> str:
        """All of it as one paragraph."""
        return " ".join(
            part for part in (self.headline, *self.reasons, self.cost, self.certainty) if part
        )


def recommend(findings: Findings) -> Recommendation:
    """The method that is measurably better somewhere and measurably worse nowhere; else say so.

    Only metrics of `DECIDING` count. A method with gains and losses is named as a trade, never as
    a recommendation; nor is one recommended that is nowhere measurably better than the baseline
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
    certainty = _certainty(findings, compared, columns)
    if trained:
        best = min(trained, key=lambda row: (-len(_gains(row, columns)), _tie_break(row, findings)))
        beside = temperatures.get(str(best.baseline))
        reasons = [
            _evidence(best, columns),
            *([] if beside is None else [beside.against(best.name)]),
            *_runners_up([row for row in clean if row is not best]),
            *_trades(compared, columns),
        ]
        return Recommendation(
            best.name, f"Use {best.name}.", reasons, _cost(best, findings), certainty
        )
    helping = next((each for each in temperatures.values() if each.helps), None)
    if helping is not None:
        return Recommendation(
            helping.name,
            f"Fit one temperature to {helping.baseline}.",
            [helping.alone, *_runners_up(clean), *_trades(compared, columns)],
            "It costs a few seconds, on predictions of held-out images.",
            certainty,
        )
    return Recommendation(
        None,
        f"No method is measurably better than {baseline} without being measurably worse somewhere: "
        f"stay with {baseline}, or add seeds.",
        [*_trades(compared, columns), *_by_means_alone(findings, compared)],
        "",
        certainty,
    )


def _is_matched(row: Row, temperatures: Mapping[str, BesideTemperature]) -> bool:
    """Whether a temperature on its baseline does what it does, as far as the study can tell."""
    beside = temperatures.get(str(row.baseline))
    return beside is not None and beside.helps and not beside.is_beaten_by(row.name)


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
    open_ = [c.title for c in columns if _verdict(row, c) == "can't tell"]
    text = f"Against {row.baseline} it is measurably better in {listed(gains)}."
    if open_:
        text += f" For {listed(open_)} the study can't tell."
    perfect = [f"{c.title} of {_against_perfect(row, c)}" for c in columns if _is_near(row, c)]
    if perfect:
        text += f" Its {listed(perfect)} with as many images."
    return text


def _is_near(row: Row, column: Column) -> bool:
    return column.id in row.values and row.values[column.id].is_near_floor


def _against_perfect(row: Row, column: Column) -> str:
    value = row.values[column.id]
    unit = " %" if column.percent else ""
    floor = column.number(value.floor or 0.0)
    return f"{column.number(value.mean)}{unit} is near the {floor}{unit} of a perfect network"


def _runners_up(clean: Sequence[Row]) -> list[str]:
    others = [row.name for row in clean]
    if not others:
        return []
    verb = "is" if len(others) == 1 else "are"
    return [
        f"{listed(others)} {verb} also measurably better somewhere and measurably worse nowhere."
    ]


def _trades(compared: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Methods with gains and losses; those with the same in one sentence."""
    alike: dict[tuple[str, str], list[str]] = {}
    for row in compared:
        gains, losses = _gains(row, columns), _losses(row, columns)
        if gains and losses:
            what = listed([c.title for c in gains]), listed([c.title for c in losses])
            alike.setdefault(what, []).append(row.name)
    return [
        f"{listed(names)} {'is a trade' if len(names) == 1 else 'are trades'}: better in {gains}, "
        f"worse in {losses}."
        for (gains, losses), names in alike.items()
    ]


def _by_means_alone(findings: Findings, compared: Sequence[Row]) -> list[str]:
    """A lead to follow, said to be no more than that."""
    scored = [row for row in findings.rows if "test.nll" in row.values]
    if len(scored) < 2:
        return []
    best = min(scored, key=lambda row: row.values["test.nll"].mean)
    return [
        f"By the means alone {best.name} has the lowest NLL "
        f"({best.values['test.nll'].mean:.3f}), which chance could explain."
        if best in compared and _may_be_chance(best)
        else f"By the means alone {best.name} has the lowest NLL "
        f"({best.values['test.nll'].mean:.3f})."
    ]


def _may_be_chance(row: Row) -> bool:
    found = row.differences.get("test.nll")
    return found is None or found.verdict == "can't tell"


def _cost(row: Row, findings: Findings) -> str:
    reference = findings.row(row.baseline).cost if row.baseline else row.cost
    parts = []
    for ours, theirs, what in (
        (row.cost.train_seconds, reference.train_seconds, "training"),
        (row.cost.seconds_per_image, reference.seconds_per_image, "prediction"),
    ):
        if ours and theirs:
            ratio = ours / theirs
            times = "the same" if abs(ratio - 1) < _SAME else f"{ratio:.2g} times the"
            parts.append(f"{times} {what} time")
    if not parts:
        return "Its cost was not recorded."
    return f"It takes {listed(parts)}, as far as a busy machine lets one measure."


def _certainty(findings: Findings, compared: Sequence[Row], columns: Sequence[Column]) -> str:
    made = [r.differences[c.id] for r in compared for c in columns if c.id in r.differences]
    if not any(difference.p is not None for difference in made):
        return (
            "How sure: one seed shows how networks differ on these images, not how methods do, so "
            "there are no verdicts. Add seeds."
        )
    fewest = min(difference.seeds for difference in made)
    most = max(difference.seeds for difference in made)
    seeds = _count(most, "shared seed") if fewest == most else f"{fewest} to {most} shared seeds"
    text = (
        f"How sure: verdicts count {seeds} {_images(findings, columns)}, with the noise of all "
        f"methods together; in each column any false one has a probability of at most "
        f"{100 * LEVEL:.0f} %, over the {_count(len(columns), 'column')} that decide here "
        f"at most {_joint(len(columns))} %."
    )
    if fewest == 1:
        text += " A method with one shared seed gets no verdict."
    if most < _FEW_SEEDS:
        text += " Two seeds make wide intervals: with three to five, more can be told."
    return text


def _images(findings: Findings, columns: Sequence[Column]) -> str:
    if images_are_counted(findings, columns):
        return "and test images"
    some = any(images_are_counted(findings, [column]) for column in columns)
    return "and, where kept, test images" if some else "only, not images"


def _joint(columns: int) -> str:
    return f"{100 * min(LEVEL * columns, 1.0):.0f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
