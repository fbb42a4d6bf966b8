"""The tables of an audit, as rows of text: for the terminal, the page and Markdown alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sfumato._core.metric_descriptions import describe_metric
from sfumato.report.audit_sentences import number, time_text
from sfumato.report.statistics import verdict_of_interval

TITLE = "Can these confidences be trusted?"
_PARTS = ("calibration", "refinement")
_TOO_SURE, _TOO_MODEST = "too sure", "too modest"
# Of a class, slice or bin, in words that fit a table.
_SHORT = {"overconfident": _TOO_SURE, "underconfident": _TOO_MODEST}
_VERDICT_HEAD = ("model", "says %", "is right %", "gap in points [95 %]", "ECE % [95 %]")


class AuditTable(NamedTuple):
    """A titled table; a terminal has no room for those that are `on_page_only`."""

    title: str
    head: Sequence[str]
    rows: list[list[str]]
    on_page_only: bool = False
    figure: str = ""  # names of those that the page draws above it


def verdict_table(found: Mapping[str, Any]) -> AuditTable:
    """What each model says and how often it is right."""
    rows = [
        [
            model["name"],
            f"{100 * model['metrics']['average_confidence']:.1f}",
            f"{100 * model['metrics']['accuracy']:.1f}",
            gap_text(model["gap"]),
            metric_text(model["metrics"], "ece"),
        ]
        for model in found["models"]
    ]
    return AuditTable(TITLE, _VERDICT_HEAD, rows)


def detail_tables(found: Mapping[str, Any]) -> list[AuditTable]:
    """Everything else, in the order in which it is read."""
    by_model = [each for model in found["models"] for each in model_tables(model)]
    return [*shared_tables(found), *by_model]


def shared_tables(found: Mapping[str, Any]) -> list[AuditTable]:
    """What is about all models: likelihood and ranking, comparisons, scaling."""
    tables = [_ranking(found)]
    split = [model for model in found["models"] if "nll_calibration" in model["metrics"]]
    if split:
        tables.append(_score_parts(split))
    for compared in found["comparisons"]:
        title = (
            f"{compared['second']} against {compared['first']}, same {compared['samples']} samples"
        )
        head = ["metric", compared["first"], compared["second"], "difference [95 %]", "verdict"]
        tables.append(AuditTable(title, head, _comparison_rows(compared["metrics"])))
    scaled = [model for model in found["models"] if "scaled" in model]
    if scaled:
        head = ["model", "T", "ECE %", "scaled", "NLL", "scaled", "verdict"]
        rows = [_scaled_row(model) for model in scaled]
        tables.append(AuditTable("Temperature scaling", head, rows))
    return tables


def model_tables(model: Mapping[str, Any]) -> list[AuditTable]:
    """The breakdowns of one model; those without rows are left out."""
    name = model["name"]
    tables = [
        _parts_table(f"{name} by {what}", what, model[key])
        for key, what in (("by_group", "group"), ("by_class", "predicted class"))
        if len(model[key]) > (key == "by_class")
    ]
    tables.append(_confidence_table(model))
    if model.get("by_time"):
        tables.append(_time_table(model))
    if model.get("thresholds", {}) and model["thresholds"].get("classes"):
        tables.append(_class_thresholds(model))
    if model.get("sets"):
        tables.append(_sets_table(model))
    if model["mistakes"]:
        tables.append(_mistakes_table(model))
    return tables


def metrics_table(model: Mapping[str, Any]) -> AuditTable:
    """Every metric with its interval."""
    names = [key for key in model["metrics"] if not key.endswith("_interval")]
    sampled = (model.get("sampled") or {}).get("metrics", ())
    rows = [
        [
            _title(key) + (", of a sample" if key in sampled else ""),
            metric_text(model["metrics"], key, 2),
        ]
        for key in names
    ]
    return AuditTable("All numbers", ("metric", "value [95 %]"), rows)


def metric_text(metrics: Mapping[str, Any], key: str, digits: int = 1) -> str:
    """A number with its interval; shares in percent."""
    is_share = describe_metric(key).range == "share"
    scale, digits = (100, digits) if is_share else (1, 3)

    def text(value: float) -> str:
        return number(value) if not is_share else f"{scale * value:.{digits}f}"

    interval = metrics.get(f"{key}_interval")
    if interval is None or interval[0] != interval[0]:
        return text(metrics[key])
    return f"{text(metrics[key])} [{text(interval[0])}, {text(interval[1])}]"


def gap_text(part: Mapping[str, Any]) -> str:
    """A gap in points with its interval, where there is one."""
    low, high = part["interval"]
    gap = f"{100 * part['gap']:+.1f}"
    return gap if low is None or low != low else f"{gap} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _title(key: str) -> str:
    title, _, bounds = describe_metric(key)
    return title + (" %" if bounds == "share" else "")


def _ranking(found: Mapping[str, Any]) -> AuditTable:
    keys = ("nll", "brier", "aurc", "augrc", "accuracy_at_80")
    known = [key for key in keys if any(key in model["metrics"] for model in found["models"])]
    rows = [
        [model["name"], *(_plain(model["metrics"], key) for key in known)]
        for model in found["models"]
    ]
    head = ["model", *(_title(key) for key in known)]
    return AuditTable("Likelihood, and which to reject", head, rows)


def _score_parts(models: Sequence[Mapping[str, Any]]) -> AuditTable:
    """Both scores as what one temperature would take away and what would remain."""
    parts = [f"{score}_{part}" for score in ("nll", "brier") for part in _PARTS]
    rows = [
        [model["name"], *(metric_text(model["metrics"], part) for part in parts)]
        for model in models
    ]
    head = ["model", *(_title(part) for part in parts)]
    title = "What one temperature would repair (calibration), and what would remain [95 %]"
    return AuditTable(title, head, rows, on_page_only=True)


def _plain(metrics: Mapping[str, Any], key: str) -> str:
    if key not in metrics:
        return "–"
    if describe_metric(key).range == "share":
        return f"{100 * metrics[key]:.{1 if key == 'accuracy_at_80' else 2}f}"
    return number(metrics[key])


def _parts_table(
    title: str, what: str, parts: Sequence[Mapping[str, Any]], *, on_page_only: bool = False
) -> AuditTable:
    head = [what, "predictions", "says %", "is right %", "gap in points [95 % for all]", "verdict"]
    rows = [
        [
            row["name"],
            f"{row['count']:,}",
            f"{100 * row['confidence']:.1f}",
            f"{100 * row['accuracy']:.1f}",
            gap_text(row),
            _SHORT.get(row["direction"], row["direction"]),
        ]
        for row in parts
    ]
    return AuditTable(title, head, rows, on_page_only)


def _confidence_table(model: Mapping[str, Any]) -> AuditTable:
    bins = model["reliability"]
    size = len(bins["counts"])
    rows = []
    for at, count in enumerate(bins["counts"]):
        if not count:
            continue
        says, right, low, high = (
            bins[key][at] for key in ("confidence", "accuracy", "low", "high")
        )
        verdict = _TOO_SURE if right < low else _TOO_MODEST if right > high else "as chance"
        rows.append(
            [
                f"{100 * at / size:.0f} to {100 * (at + 1) / size:.0f} %",
                f"{count:,.0f}",
                f"{100 * says:.1f}",
                f"{100 * right:.1f}",
                f"{100 * low:.1f} to {100 * high:.1f}",
                verdict,
            ]
        )
    head = ["it says", "predictions", "on average %", "is right %", "if it were honest %", ""]
    return AuditTable(f"{model['name']} by confidence", head, rows, True)


def _time_table(model: Mapping[str, Any]) -> AuditTable:
    named = [
        {**row, "name": time_text(row["start"], model["is_dated"])} for row in model["by_time"]
    ]
    return _parts_table(f"{model['name']} over time", "from", named, on_page_only=True)._replace(
        figure="time"
    )


def _class_thresholds(model: Mapping[str, Any]) -> AuditTable:
    head = ["predicted class", "predictions", "accept from", "keeps %", "error at most %"]
    rows = []
    for each in model["thresholds"]["classes"]:
        cells = ["none", "–", "–"]
        if each["confidence"] is not None:
            shares = (each["coverage"], each["risk_bound"])
            cells = [f"{each['confidence']:.4g}", *(f"{100 * share:.1f}" for share in shares)]
        rows.append([each["name"], f"{each['count']:,}", *cells])
    return AuditTable(f"{model['name']}: a threshold for each class", head, rows)


def _sets_table(model: Mapping[str, Any]) -> AuditTable:
    head = ["sets", "hold the label %", "of the worst class %", "classes", "single %", "empty %"]
    rows = [
        [
            row["name"],
            f"{100 * row['coverage']:.1f}",
            f"{100 * row['worst_class']:.1f}",
            f"{row['mean_size']:.2f}",
            f"{100 * row['single']:.1f}",
            f"{100 * row['empty']:.1f}",
        ]
        for row in model["sets"]["rows"]
    ]
    promised = f"{100 * (1 - model['sets']['alpha']):g} %"
    return AuditTable(
        f"{model['name']}: prediction sets that promise {promised}",
        head,
        rows,
        figure="sets coverage",
    )


def _mistakes_table(model: Mapping[str, Any]) -> AuditTable:
    head = ["row", "says", "true class", "confidence %"]
    rows = [
        [
            str(each["row"]) if each["file"] == model["name"] else f"{each['file']}: {each['row']}",
            each["predicted"] or "–",
            each["label"] or "–",
            f"{100 * each['confidence']:.2f}",
        ]
        for each in model["mistakes"]
    ]
    return AuditTable(f"{model['name']}: most confident mistakes", head, rows, True)


def _comparison_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for key, each in metrics.items():
        title, better, bounds = describe_metric(key)
        is_share = bounds == "share"
        scale, digits = (100, 2) if is_share else (1, 4)
        verdict = verdict_of_interval(each["low"], each["high"], better) if better else ""
        numbers = [f"{scale * each[part]:.{digits}f}" for part in ("first", "second")]
        difference = (
            f"{scale * each['difference']:+.{digits}f} "
            f"[{scale * each['low']:+.{digits}f}, {scale * each['high']:+.{digits}f}]"
        )
        rows.append([title + (" %" if is_share else ""), *numbers, difference, verdict])
    return rows


def _scaled_row(model: Mapping[str, Any]) -> list[str]:
    before, after = model["metrics"], model["scaled"]["metrics"]
    return [
        model["name"],
        f"{model['scaled']['temperature']:.3g}",
        f"{100 * before['ece']:.1f}",
        f"{100 * after['ece']:.1f}",
        number(before["nll"]),
        number(after["nll"]),
        model["scaled"]["verdict"],
    ]
