"""Show an audit as page, Markdown and text for the terminal: verdict and next step first."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sfumato._core.checks import check_matplotlib
from sfumato._core.files import finite, write_json, write_text
from sfumato._core.metric_descriptions import describe_metric
from sfumato._core.text import csv_text, html_text, markdown_line, markdown_table
from sfumato.report.document import asset, embedded, head, script_of, section, table
from sfumato.report.statistics import verdict_of_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sfumato.auditing.judge import Found, Judgement, Verdict

_MOST_DETECTIONS = 1000  # beyond, what is accepted of an image are its pixels


def headline(model: Judgement) -> str:
    """The verdict as one sentence: what the audit found of one model, and how sure that is."""
    name, count = model["name"], model["samples"]
    if "expected" in model:
        part = model["expected"]
        around = "[95 %: {}, {}]".format(*_points(*part["interval"]))
        return (
            f"{name}: an accuracy of {100 * part['accuracy']:.1f} % is to be expected of {count:,} "
            f"predictions without labels {around}, if its confidences are right."
        )
    metrics = model["metrics"]
    if count < 2:
        return f"{name}: inconclusive; one prediction does not show whether confidences are right."
    facts = (
        f"it says {_percent(metrics['average_confidence'])} on average and is right in "
        f"{_percent(metrics['accuracy'])} of {count:,} cases"
    )
    if model["verdict"] == "inconclusive":
        why = "all of one image, which has no interval; audit two images or more"
        if model.get("is_histogram") and model["images"] is None:
            why = "a histogram without images has no interval; give it a row for each image"
        return f"{name}: inconclusive; {facts}, but {why}."
    low, high = (100 * end for end in model["gap"]["interval"])
    if model["verdict"] in ("overconfident", "underconfident"):
        smaller, larger = sorted((abs(low), abs(high)))
        side = "high" if model["verdict"] == "overconfident" else "low"
        amount = f"{abs(100 * model['gap']['gap']):.1f} points too {side}"
        return (
            f"{name} is {model['verdict']}: {facts}, {amount} [95 %: {smaller:.1f}, {larger:.1f}]."
        )
    around = f"[gap, 95 %: {low:+.1f}, {high:+.1f}]"
    return {
        "right on average, wrong in places": f"{name} is right on average, wrong in places: "
        f"{facts} {around}, but not where it says each confidence.",
        "no miscalibration found": f"{name}: no miscalibration found; {facts} {around}.",
    }[model["verdict"]]


def error_sentence(model: Judgement) -> str:
    """The calibration error beside what chance alone would show."""
    if model["samples"] < 2:
        return ""
    text = (
        f"ECE {_percent(model['metrics']['ece'])} ({_percent(model['ece_floor'])} expected for a "
        "perfectly calibrated model)"
    )
    if "d_ece" in model["metrics"]:
        text += f"; D-ECE in 20 bins {100 * model['metrics']['d_ece']:.2f} %"
    worst = model["worst_range"]
    if worst is None or model["verdict"] == "no miscalibration found":
        return f"{text}."
    return (
        f"{text}. The largest part of it is where it says {100 * worst['low']:.0f} to "
        f"{100 * worst['high']:.0f} %: {100 * worst['gap']:+.1f} points."
    )


def scaling_sentence(model: Judgement) -> str:
    """Say if temperature scaling helped; better only where that is significant."""
    scaled, name = model["scaled"], model["name"]
    before, after = model["metrics"], scaled["metrics"]
    first = ""
    if scaled["uniform"] is not None:
        first = f"with {_percent(scaled['uniform'])} of the uniform distribution mixed in, "
    facts = (
        f"{first}T = {scaled['temperature']:.3g}, "
        f"ECE {100 * before['ece']:.1f} to {_percent(after['ece'])}, "
        f"NLL {number(before['nll'])} to {number(after['nll'])}"
    )
    return {
        "better": f"Temperature scaling helps {name}: {facts}.",
        "worse": f"Temperature scaling makes {name} worse, don't use it: {facts}.",
        "inconclusive": f"Temperature scaling of {name}: no significant gain; {facts}.",
        "not resampled": f"Temperature scaling of {name}: {facts}; without resamples nothing says "
        "if that is chance.",
    }[scaled["verdict"]]


def threshold_sentences(model: Judgement) -> list[str]:
    """Say from which confidence on predictions may be accepted, or that none will do."""
    found = model.get("thresholds")
    if found is None:
        return []
    accept, sure = found["accept"], f"{100 * (1 - found['delta']):g} %"
    more = [] if found.get("escalate") is None else [_escalation_sentence(found)]
    if accept["confidence"] is None:
        return [
            f"No threshold of {model['name']} reaches an error of at most "
            f"{_percent(accept['target_risk'])} with {sure} certainty: accept nothing unseen, "
            "gather more labelled predictions, or allow more.",
            *more,
        ]
    kept = 1000 * accept["coverage"]
    text = (
        f"Accept {model['name']} from a confidence of {accept['confidence']:.4g} on. This keeps "
        f"{_percent(accept['coverage'])} of predictions with an error of at most "
        f"{_percent(accept['risk_bound'])} ({sure} certain): of 1,000 predictions {kept:.0f} are "
        f"accepted and {kept * accept['risk']:.0f} of those are wrong."
    )
    if accept.get("images") is not None:
        most = accept["most_per_image"]
        capped = f"; one with more than {most:,} accepted ones counts as {most:,}"
        capped = "" if most > _MOST_DETECTIONS else capped
        text += f" That rests on {accept['images']:,} images{capped}."
    return [text, *more]


def _escalation_sentence(found: Mapping[str, Any]) -> str:
    accept, escalate = found["accept"], found["escalate"]
    risk = _percent(escalate["target_risk"])
    if escalate["confidence"] is None:
        return f"No second threshold keeps the error of all that is not rejected at {risk}."
    upper = "the first" if accept["confidence"] is None else f"{accept['confidence']:.4g}"
    if not escalate["confidence"]:
        return (
            f"Escalate below {upper}, and reject nothing: of all predictions at most "
            f"{_percent(escalate['risk_bound'])} is wrong."
        )
    return (
        f"Escalate between {escalate['confidence']:.4g} and {upper}, reject below: of what is not "
        f"rejected at most {_percent(escalate['risk_bound'])} is wrong."
    )


def _details(model: Judgement) -> list[list[str]]:
    """Collect what is said of a model after its headline, by kind."""
    said = {
        "drift": drift_sentence,
        "scaled": scaling_sentence,
        "strange": strange_sentence,
        "sampled": sample_sentence,
        "images": images_sentence,
    }
    more = [[say(model)] if model.get(key) else [] for key, say in said.items()]
    return [[error_sentence(model)], threshold_sentences(model), *more]


def sentences(found: Found) -> list[str]:
    """The whole in sentences: the verdict on each model, then of all models kind by kind."""
    models = found["models"]
    if _is_unlabelled(found):
        return [*map(headline, models), ASSUMPTION, LEFT_OUT]
    verdicts = [" ".join(filter(None, (headline(m), error_sentence(m)))) for m in models]
    _, *kinds = zip(*map(_details, models), strict=True)
    return [*verdicts, *(line for kind in kinds for lines in kind for line in lines)]


def _is_unlabelled(found: Found) -> bool:
    return not found.get("is_labelled", True)


def images_sentence(model: Judgement) -> str:
    """Say how many images intervals rest on: predictions of one are not independent."""
    images, sampled = model["images"], model.get("images_sampled")
    about = "about " if sampled else ""
    some = f" ({sampled:,} random ones)" if sampled else ""
    return (
        f"Intervals and thresholds of {model['name']} count its {about}{images:,} "
        f"image{'s' if images != 1 else ''}{some}, because predictions of one image err together."
    )


def strange_sentence(model: Judgement) -> str:
    """Say how well the confidence tells strange inputs, and how many a threshold accepts."""
    strange = model["strange"]
    found = strange["scores"]["max_probability"]
    interval = found.get("auroc_interval")
    around = "" if interval is None else f" [95 %: {', '.join(_points(*interval))}]"
    text = (
        f"By its confidence {model['name']} tells {strange['samples']:,} strange inputs from "
        f"familiar ones with an AUROC of {_percent(found['auroc'])}{around}. A threshold "
        f"that finds 95 % of them turns away {_percent(found['fpr95'])} of the familiar ones."
    )
    if strange["accepted"] is not None:
        text += (
            f" {_percent(strange['accepted'])} of them have the confidence to be accepted: the "
            "guarantee above is about familiar inputs."
        )
    return text


def sample_sentence(model: Judgement) -> str:
    """Name the numbers that come from a sample of the rows, which are too many to keep."""
    return (
        f"{model['name']} is too large to keep: its prediction sets, classwise errors, parts of "
        f"NLL and Brier score, and scaling come from {model['sampled']['rows']:,} random rows."
    )


def drift_sentence(model: Judgement) -> str:
    """Say if confidences change over time, or were off from the start."""
    drift, name = model["drift"], model["name"]
    level = f"{100 * drift['level']:g} % false alarms, however often one looks"
    points = f"{100 * drift['tolerance']:g} points"
    first = drift["reference"]
    since = first["name"]
    since += f" to {first['until']}" if first["until"] != since else ""
    gap = f"{100 * first['gap']:+.1f} points in the first {first['count']:,} predictions, {since}"
    start = f"{name} is off from the start ({gap})"
    if drift["alarm"] is not None:
        return (
            f"{name} changes over time: its gap moves by more than {points} from the start "
            f"({gap}). The alarm goes off at {time_text(drift['alarm'])}, after "
            f"{drift['after']:,} predictions ({level})."
        )
    if drift["from_start"]:
        return f"No change over time shows: {start}, and stays so ({level})."
    if drift["miscalibration"]["alarm"] is not None:
        when = time_text(drift["miscalibration"]["alarm"])
        return (
            f"Over time it shows that {name} is off by more than {points}: the alarm goes off at "
            f"{when}; whether that is a change since the start ({gap}) is inconclusive ({level})."
        )
    return (
        f"No alarm over time: {name} shows no change, and no gap larger than {points}, at any "
        f"time ({level})."
    )


def time_text(value: str | float) -> str:
    """A date to the minute where times are dates, else the number."""
    return f"{value:.10g}" if isinstance(value, float) else value[:16].replace("T", " ")


def warnings_of(found: Found) -> list[str]:
    """List the warnings about the numbers, each with the name of its model."""
    return [line for model in found["models"] for line in _warnings(model)]


def _warnings(model: Judgement) -> list[str]:
    lines = []
    if "expected" in model and model["images"] is not None:
        lines.append("predictions of one image err together, so the interval is too narrow")
    if "strange" in model and model["strange"] is None:
        lines.append("'in_distribution' is true in every row, so no input is a strange one")
    if model.get("skipped"):
        bad = ", ".join(f"{count:,} {reason}" for reason, count in model["skipped"].items())
        lines.append(f"rows were left out ({bad})")
    if model.get("zero_labels"):
        lines.append(
            f"{model['zero_labels']:,} labels have probability 0, so the NLL is infinite; "
            "'sfumato calibrate' mixes in what is needed"
        )
    if model.get("is_histogram") and model["thresholds"] and model["images"] is None:
        lines.append(
            "a histogram without images does not say which predictions err together; its threshold "
            "holds for independent predictions, and pixels are not independent"
        )
    lines += model.get("scaled", {}).get("warnings", ())
    return [f"{model['name']}: {line}" for line in lines]


def number(value: float) -> str:
    """A likelihood with three digits; infinite where a label had probability 0, its parts "–"."""
    if math.isnan(value):
        return "–"
    return "infinite" if math.isinf(value) else f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _points(*values: float) -> list[str]:
    """Shares as cells of a table in percent."""
    return [f"{100 * value:.1f}" for value in values]


class AuditTable(NamedTuple):
    """A titled table; a terminal has no room for those that are `on_page_only`."""

    title: str
    head: Sequence[str]
    rows: list[list[str]]
    on_page_only: bool = False
    figure: str = ""  # names of those that the page draws above it


def verdict_table(found: Found) -> AuditTable:
    """Tabulate confidence, accuracy, gap and ECE of each model."""
    rows = []
    for model in found["models"]:
        metrics = model["metrics"]
        says = _points(metrics["average_confidence"], metrics["accuracy"])
        rows.append([model["name"], *says, gap_text(model["gap"]), metric_text(metrics, "ece")])
    head = ("model", "says %", "is right %", "gap in points [95 %]", "ECE % [95 %]")
    return AuditTable("Can these confidences be trusted?", head, rows)


def all_tables(found: Found) -> list[AuditTable]:
    """Every table, in the order in which it is read."""
    if _is_unlabelled(found):
        return _expected_tables(found)
    by_model = [each for model in found["models"] for each in model_tables(model)]
    return [verdict_table(found), *shared_tables(found), *by_model]


def shared_tables(found: Found) -> list[AuditTable]:
    """Tabulate likelihood and ranking, comparisons and scaling of all models."""
    keys = ("nll", "brier", "aurc", "augrc", "accuracy_at_80")
    known = [key for key in keys if any(key in model["metrics"] for model in found["models"])]
    rows = [[m["name"], *(_plain(m["metrics"], key) for key in known)] for m in found["models"]]
    head = ["model", *map(_title, known)]
    tables = [AuditTable("Likelihood and selective prediction", head, rows)]
    split = [model for model in found["models"] if "nll_calibration" in model["metrics"]]
    if split:
        parts = ("nll_calibration", "nll_refinement", "brier_calibration", "brier_refinement")
        rows = [[m["name"], *(metric_text(m["metrics"], part) for part in parts)] for m in split]
        title = "What one temperature would correct (calibration), and what would remain [95 %]"
        tables.append(AuditTable(title, ["model", *map(_title, parts)], rows, on_page_only=True))
    return [*tables, *_asked_tables(found)]


def _asked_tables(found: Found) -> list[AuditTable]:
    """Tabulate what further files ask for: comparisons, and scaling by held-out predictions."""
    tables = []
    for compared in found["comparisons"]:
        title = (
            f"{compared['second']} against {compared['first']}, same {compared['samples']} samples"
        )
        head = ["metric", compared["first"], compared["second"], "difference [95 %]", "verdict"]
        tables.append(AuditTable(title, head, _comparison_rows(compared["metrics"])))
    scaled = [model for model in found["models"] if "scaled" in model]
    if scaled:
        head = ["model", "T", "ECE %", "scaled", "NLL", "scaled", "verdict"]
        rows = [
            [
                model["name"],
                f"{model['scaled']['temperature']:.3g}",
                *_points(model["metrics"]["ece"], model["scaled"]["metrics"]["ece"]),
                *(number(each["metrics"]["nll"]) for each in (model, model["scaled"])),
                model["scaled"]["verdict"],
            ]
            for model in scaled
        ]
        tables.append(AuditTable("Temperature scaling", head, rows))
    return tables


def model_tables(model: Judgement) -> list[AuditTable]:
    """The breakdowns of one model; those without rows are left out."""
    name = model["name"]
    tables = [
        _parts_table(f"{name} by {what}", what, parts)
        for what, parts, least in (
            ("group", model["by_group"], 1),
            ("predicted class", model["by_class"], 2),  # one class alone is the whole
        )
        if len(parts) >= least
    ]
    tables.append(_confidence_table(model))
    if model.get("by_time"):
        what = model["period"] or "from"
        over_time = _parts_table(f"{name} over time", what, model["by_time"], on_page_only=True)
        tables.append(over_time._replace(figure="time"))
    more = {
        _class_thresholds: (model.get("thresholds") or {}).get("classes"),
        _sets_table: model.get("sets"),
        _strange_table: model.get("strange"),
        _mistakes_table: model["mistakes"],
    }
    return [*tables, *(make(model) for make, rows in more.items() if rows)]


def metrics_table(model: Judgement) -> AuditTable:
    """Every metric with its interval."""
    metrics, sampled = model["metrics"], (model.get("sampled") or {}).get("metrics", ())
    rows = [
        [_title(key) + (", of a sample" if key in sampled else ""), metric_text(metrics, key, 2)]
        for key in metrics
        if not key.endswith("_interval")
    ]
    return AuditTable("All numbers", ("metric", "value [95 %]"), rows)


def metric_text(metrics: Mapping[str, Any], key: str, digits: int = 1) -> str:
    """A number with its interval; shares in percent."""
    is_share = describe_metric(key).range == "share"

    def text(value: float) -> str:
        return f"{100 * value:.{digits}f}" if is_share else number(value)

    low, high = metrics.get(f"{key}_interval") or (math.nan, math.nan)
    value = text(metrics[key])
    return value if low != low else f"{value} [{text(low)}, {text(high)}]"


def gap_text(part: Mapping[str, Any]) -> str:
    """A gap in points with its interval, where there is one."""
    low, high = part["interval"]
    gap = f"{100 * part['gap']:+.1f}"
    return gap if low is None or low != low else f"{gap} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _title(key: str) -> str:
    title, _, bounds = describe_metric(key)
    return title + (" %" if bounds == "share" else "")


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
    rows = []
    for row in parts:
        shares = _points(row["confidence"], row["accuracy"])
        rows.append([row["name"], f"{row['count']:,}", *shares, gap_text(row), row["direction"]])
    return AuditTable(title, head, rows, on_page_only)


def _confidence_table(model: Judgement) -> AuditTable:
    bins = model["reliability"]
    size = len(bins["counts"])
    columns = zip(
        *(bins[k] for k in ("counts", "confidence", "accuracy", "low", "high")), strict=True
    )
    rows = []
    for at, (count, says, right, low, high) in enumerate(columns):
        verdict = "overconfident" if right < low else "as expected"
        row = [
            f"{100 * at / size:.0f} to {100 * (at + 1) / size:.0f} %",
            f"{count:,.0f}",
            *_points(says, right),
            " to ".join(_points(low, high)),
            "underconfident" if right > high else verdict,
        ]
        rows += [row] if count else []
    head = ["it says", "predictions", "on average %", "is right %", "expected if calibrated %", ""]
    return AuditTable(f"{model['name']} by confidence", head, rows, True)


def _class_thresholds(model: Judgement) -> AuditTable:
    head = ["predicted class", "predictions", "accept from", "keeps %", "error at most %"]
    rows = []
    for each in model["thresholds"]["classes"]:
        cells = ["none", "–", "–"]
        if each["confidence"] is not None:
            shares = _points(each["coverage"], each["risk_bound"])
            cells = [f"{each['confidence']:.4g}", *shares]
        rows.append([each["name"], f"{each['count']:,}", *cells])
    return AuditTable(f"{model['name']}: a threshold for each class", head, rows)


def _sets_table(model: Judgement) -> AuditTable:
    head = ["sets", "hold the label %", "of the worst class %", "classes", "single %", "empty %"]
    rows = []
    for row in model["sets"]["rows"]:
        held = _points(row["coverage"], row["worst_class"])
        shares = _points(row["single"], row["empty"])
        rows.append([row["name"], *held, f"{row['mean_size']:.2f}", *shares])
    promised = f"{100 * (1 - model['sets']['alpha']):g} %"
    title = f"{model['name']}: prediction sets that guarantee {promised}"
    return AuditTable(title, head, rows, figure="sets coverage")


def _strange_table(model: Judgement) -> AuditTable:
    """Tabulate each score of strange inputs; AURC and AUGRC are over both kinds."""
    found = model["strange"]["scores"]
    keys = [key for key in found["max_probability"] if not key.endswith("_interval")]
    rows = [
        [name.replace("_", " "), *(metric_text(each, key) for key in keys)]
        for name, each in found.items()
    ]
    head = ["score", *map(_title, keys)]
    return AuditTable(f"{model['name']}: strange inputs [95 %]", head, rows, on_page_only=True)


def _mistakes_table(model: Judgement) -> AuditTable:
    head = ["row", "says", "true class", "confidence %"]
    rows = []
    for each in model["mistakes"]:
        place = (
            str(each["row"]) if each["file"] == model["name"] else f"{each['file']}: {each['row']}"
        )
        names = [each[key] or "–" for key in ("predicted", "label")]
        rows.append([place, *names, f"{100 * each['confidence']:.2f}"])
    return AuditTable(f"{model['name']}: most confident mistakes", head, rows, True)


def _comparison_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for key, each in metrics.items():
        _, better, bounds = describe_metric(key)
        scale, digits = (100, 2) if bounds == "share" else (1, 4)
        verdict = verdict_of_interval(each["low"], each["high"], better) if better else ""
        numbers = [f"{scale * each[part]:.{digits}f}" for part in ("first", "second")]
        difference, low, high = (
            f"{scale * each[part]:+.{digits}f}" for part in ("difference", "low", "high")
        )
        rows.append([_title(key), *numbers, f"{difference} [{low}, {high}]", verdict])
    return rows


class Step(NamedTuple):
    """Something to do: why, and the command, or the call where arrays were audited."""

    why: str
    command: str


def next_steps(model: Judgement) -> list[Step]:
    """The most useful step first, of those that were not taken yet and that work for the file."""
    if "expected" in model:
        why = "Label some hundred of these, drawn at random, and audit them: that checks the "
        return [Step(f"{why}assumption.", "sfumato audit LABELLED_SAMPLE")]
    steps = []
    is_off = model["verdict"] not in ("no miscalibration found", "inconclusive")
    has_one = "scaled" in model or "--calibrator" in model.get("layout", {})
    if is_off and model.get("can_calibrate") and not has_one:
        why = "Correct the confidences: fit a calibrator on held-out predictions, and ship it."
        call = "sfumato.predictions.choose_calibrator(held_out, target)"
        if "nll" not in model["metrics"]:
            call = "sfumato.predictions.choose_calibrator(confidence=held_out, correct=...)"
        command = f"calibrate VALIDATION_FILE{_options(model, 'VALIDATION_LABELS')}"
        steps.append(_step(model, why, call, f"{command} --out calibrator.json"))
    risk = model.get("reachable_risk")
    if risk is not None:
        steps.append(_threshold(model, risk))
    if not steps:
        why = "Audit again when the data changes, for example next month's predictions with labels."
        command = f"audit NEW_FILE{_options(model, 'NEW_LABELS')} --out audit-new"
        steps.append(_step(model, why, "sfumato.audit(probs=..., target=...)", command))
    return steps


def _step(model: Judgement, why: str, call: str, command: str) -> Step:
    """A command where files were audited, a call where arrays were."""
    return Step(why, f"sfumato {command}" if "source" in model else call)


def _threshold(model: Judgement, risk: float) -> Step:
    why = (
        f"Act on the confident ones: find the confidence above which {100 * risk:g} % err at most."
    )
    if model.get("thresholds") is not None:
        why = (
            f"No threshold guarantees that error; {100 * risk:g} % can be guaranteed. Allow more "
            "errors, or audit more labelled predictions."
        )
    named = " ".join(map(shlex.quote, model.get("source", ())))
    command = f"audit {named}{_as_text(model.get('reading', {}) | model.get('layout', {}))}"
    call = f"sfumato.audit(..., target_risk={risk:g})"
    return _step(model, why, call, f"{command} --target-risk {risk:g}")


def _options(model: Judgement, labels: str) -> str:
    """The options that read the model's files, with the name of other labels where it has some."""
    reading = dict(model.get("reading", {}))
    return _as_text(reading | ({"--labels": labels} if "--labels" in reading else {}))


def _as_text(reading: Mapping[str, str]) -> str:
    """Options of a command, with a blank before each; those without a value are ''."""
    return "".join(
        f" {name}" + (f" {shlex.quote(value)}" if value else "") for name, value in reading.items()
    )


def to_markdown(found: Found) -> str:
    """A block for a model card: verdict, warnings, and every number; names are escaped."""
    lines = ["## Accuracy to expect" if _is_unlabelled(found) else "## Calibration", ""]
    lines += [f"{markdown_line(line)}\n" for line in sentences(found)]
    lines += [f"- Warning: {markdown_line(line)}" for line in warnings_of(found)]
    tables = _expected_tables(found) if _is_unlabelled(found) else []
    for model in found["models"] if not tables else ():
        title = f"{model['name']}, {model['samples']:,} predictions"
        tables.append(metrics_table(model)._replace(title=title))
    for content in tables:
        lines += ["", f"### {markdown_line(content.title)}", ""]
        lines += markdown_table(content.head, content.rows)
    return "\n".join(lines).rstrip() + "\n"


ASSUMPTION = (
    "Assumption: each confidence is right on these data, which only labels can check. A model can "
    "be confidently wrong about inputs of a new kind."
)

LEFT_OUT = (
    "Left out, because it needs labels: calibration errors, likelihood, thresholds with a "
    "guarantee, prediction sets, mistakes."
)


def _expected_tables(found: Found) -> list[AuditTable]:
    wholes = [{**model["expected"], "name": model["name"]} for model in found["models"]]
    tables = [_expected_table("Accuracy to expect, if confidences are right", "model", wholes)]
    for model in found["models"]:
        for what, parts in (
            ("group", model["by_group"]),
            ("predicted class", model["by_class"]),
            (model["period"] or "time", model["by_time"]),
        ):
            if len(parts) > 1:
                tables.append(_expected_table(f"{model['name']} by {what}", what, parts))
    return tables


def _expected_table(title: str, what: str, parts: Sequence[Mapping[str, Any]]) -> AuditTable:
    rows = []
    for part in parts:
        value, low, high = _points(part["accuracy"], *part["interval"])
        rows.append([part["name"], f"{part['count']:,}", f"{value} [{low}, {high}]"])
    return AuditTable(title, (what, "predictions", "right, to be expected % [95 % for all]"), rows)


_BAR, _OVER, _UNDER, _INK = "#4477aa", "#cc6677", "#ddaa33", "#222222"


def audit_figure(model: Judgement) -> Figure:
    """Reliability diagram with consistency bars beside the risk-coverage curve of one model."""
    check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.4), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    _reliability(left, model)
    _risk(right, model)
    return figure


def _reliability(axes: Axes, model: Judgement) -> None:
    bins = model["reliability"]
    size = len(bins["counts"])
    filled = [at for at, count in enumerate(bins["counts"]) if count]
    for at in filled:
        accuracy, confidence = bins["accuracy"][at], bins["confidence"][at]
        colour = _OVER if confidence > accuracy else _UNDER
        low, height = min(accuracy, confidence), abs(confidence - accuracy)
        axes.bar(at / size, accuracy, 1 / size, align="edge", color=_BAR, edgecolor="white", lw=0.6)
        axes.bar(at / size, height, 1 / size, low, align="edge", color=colour, alpha=0.5)
    mean = [bins["confidence"][at] for at in filled]
    ends = [
        [max(0.0, bins["confidence"][at] - bins["low"][at]) for at in filled],
        [max(0.0, bins["high"][at] - bins["confidence"][at]) for at in filled],
    ]
    style: dict[str, Any] = {"fmt": "none", "ecolor": _INK, "elinewidth": 1.4, "capsize": 2.5}
    middle = [(at + 0.5) / size for at in filled]
    axes.errorbar(middle, mean, ends, label="95 % of calibrated models", **style)
    axes.plot([0, 1], [0, 1], "--", color=_INK, lw=0.8)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    axes.set_title(f"ECE {model['metrics']['ece']:.2%}, n = {model['samples']:,}", loc="left")
    axes.legend(frameon=False, loc="upper left")


def _risk(axes: Axes, model: Judgement) -> None:
    from matplotlib.ticker import PercentFormatter

    curve = model["curve"]
    share = [kept / model["samples"] for kept in curve["kept"]]
    risk = [wrong / kept for wrong, kept in zip(curve["wrong"], curve["kept"], strict=True)]
    axes.plot(share, risk, color=_BAR, lw=1.8, label="error of those kept")
    axes.plot(share, curve["bound"], color=_BAR, lw=0.9, ls=":", label="95 % bound")
    chosen = (model.get("thresholds") or {}).get("accept")
    if chosen is not None:
        axes.axhline(chosen["target_risk"], color=_OVER, lw=1, ls="--", label="target")
        if chosen["confidence"] is not None:
            text = f"confidence {chosen['confidence']:.3g}"
            axes.plot([chosen["coverage"]], [chosen["risk"]], "o", color=_OVER, label=text)
    highest = max(risk)
    axes.set(xlim=(0, 1), ylim=(0, 1.3 * highest or 1.0), xlabel="share of predictions kept")
    axes.set_ylabel("error of those kept")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title("which to act on", loc="left")
    axes.legend(frameon=False)


SCRIPTS = ("dom.js", "chart.js", "theme.js", "audit-figures.js", "audit.js")
# Class of the headline in audit.css.
_VERDICT_STYLES: dict[Verdict, str] = {
    "overconfident": "bad",
    "underconfident": "bad",
    "right on average, wrong in places": "bad",
    "no miscalibration found": "good",
    "inconclusive": "open",
}

_LONGEST = 12
_LINE = 140  # letters of a line on a laptop
_HEIGHT = 900  # of the frame in a notebook, in pixels
_DOWNLOADS = "<section id='downloads'><h2>Downloads</h2><div class='saves'></div>"


def audit_page(found: Found) -> str:
    """The whole page, which opens from disk and loads nothing."""
    script = script_of(SCRIPTS)
    style = asset("report.css") + asset("audit.css")
    title = ", ".join(model["name"] for model in found["models"])
    screens = "".join(_first_screen(model, at) for at, model in enumerate(found["models"]))
    return (
        f"{head(f'Audit: {title}', style=style, script=script)}"
        f"<body class='audit'><main>{screens}{_below(found)}</main>"
        f'<script type="application/json" id="data">{embedded(_payload(found))}</script>'
        f'<script type="module">{script}</script></body></html>\n'
    )


def notebook_page(found: Found) -> str:
    """Show in a notebook: the verdict as text, and the page in a frame of its own."""
    lines = "".join(f"<p>{html_text(headline(model))}</p>" for model in found["models"])
    page = html_text(audit_page(found))
    return (
        f"{lines}<iframe title='Audit' sandbox='allow-scripts allow-downloads' "
        f"style='width:100%;height:{_HEIGHT}px;border:0' srcdoc=\"{page}\"></iframe>"
    )


def _first_screen(model: Judgement, place: int) -> str:
    """Verdict, two places for figures, the threshold, and what to do next."""
    if "expected" in model:
        kind, figure, details = "open", "confidences", [ASSUMPTION, LEFT_OUT]
    else:
        kind, figure = _VERDICT_STYLES[model["verdict"]], "reliability"
        details = [line for lines in _details(model) for line in lines if line]
    lead = " ".join(map(html_text, details))
    warned = "".join(f"<p class='warning'>{html_text(line)}</p>" for line in _warnings(model))
    advice = next_steps(model)[:2]
    steps = "".join(
        f"<div class='step'><p>{html_text(step.why)}</p><pre tabindex='0'><code>"
        f"{html_text(step.command)}</code></pre></div>"
        for step in advice
    )
    tag = "h1" if place == 0 else "h2"
    # Height, in rem, that more than two lines of text take from the figures.
    room = 1.5 * max(0, math.ceil(len(lead) / _LINE) - 2)
    room += 2.2 * warned.count("<p") + 2.8 * (len(advice) > 1)
    return (
        f"<section class='first' id='model-{place}' style='--more: {room:g}rem'>"
        f"<{tag} class='verdict {kind}'>{html_text(headline(model))}</{tag}>"
        f"<p class='lead'>{lead}</p>{warned}"
        f"<div class='pair'><div data-figure='{figure}' data-model='{place}'></div>"
        f"<div data-figure='risk' data-model='{place}'></div></div>"
        f"<div class='advice next'><p class='headline'>What to do next</p>{steps}</div></section>"
    )


def _below(found: Found) -> str:
    if _is_unlabelled(found):
        return "".join(map(_section, _expected_tables(found))) + f"{_DOWNLOADS}</section>"
    parts = [_section(verdict_table(found))] if len(found["models"]) > 1 else []
    parts += map(_section, shared_tables(found))
    for place, model in enumerate(found["models"]):
        parts += [_section(each, place) for each in model_tables(model)]
    for model in found["models"]:
        _, head, rows, *_ = metrics_table(model)
        parts.append(section(f"{model['name']}: all numbers", table(head, rows)))
    return "".join(parts) + (
        f"{_DOWNLOADS}<p class='note'>The gap is mean confidence minus accuracy. A verdict needs "
        "an interval without zero; «right on average, wrong in places» where a model with true "
        "confidences would show such an ECE in fewer than 5 of 100 test sets.</p></section>"
    )


def _section(content: AuditTable, place: int = 0) -> str:
    shown = "".join(
        f"<div data-figure='{name}' data-model='{place}'></div>" for name in content.figure.split()
    )
    shown += table(content.head, content.rows[:_LONGEST])
    more = content.rows[_LONGEST:]
    if more:
        rest = table(content.head, more)
        shown += f"<details><summary>{len(more):,} more</summary>{rest}</details>"
    return section(content.title, shown)


def _payload(found: Found) -> dict[str, Any]:
    """Collect the data that the script draws, and the files to save from the page."""
    keys = (
        *("name", "samples", "reliability", "curve", "thresholds", "sets", "drift"),
        *("counts", "most_per_image", "by_time"),
    )
    files = {
        "audit.json": json.dumps(finite(found), indent=2, allow_nan=False) + "\n",
        "audit.md": to_markdown(found),
        "audit.csv": csv_text(
            row for each in all_tables(found) for row in ([each.title], each.head, *each.rows, [])
        ),
    }
    models = [{key: model.get(key) for key in keys} for model in found["models"]]
    payload: dict[str, Any] = finite({"models": models, "downloads": files})
    return payload


_LONGEST_LIST = 10


def audit_view(found: Found, *, verbose: bool = False) -> list[RenderableType]:
    """Warnings, then verdicts in sentences and the next step; for a terminal of 80 columns.

    The last part is a command, to be printed without wrapping: it is copied from the screen.
    `verbose` begins with all tables, not only with those that further files ask for.
    """
    shown = _asked_tables(found)
    if verbose:
        shown = [each for each in all_tables(found) if not each.on_page_only]
    parts: list[RenderableType] = [_rich(each) for each in shown]
    parts += [Text(f"warning: {line}\n", style="yellow") for line in warnings_of(found)]
    parts += [Text(f"{line}\n") for line in sentences(found)]
    step = next_steps(found["models"][0])[0]
    return [*parts, Text(step.why), Text(f"  {step.command}")]


def write_audit(found: Found, folder: Path) -> Path:
    """Write `audit.json` and the page; the path of its `index.html`."""
    write_json(folder / "audit.json", found)
    write_text(folder / "index.html", audit_page(found))
    return folder / "index.html"


def _rich(content: AuditTable) -> Table:
    view = Table(title=Text(content.title), title_justify="left")  # names from files are no markup
    for place, cell in enumerate(content.head):
        # A long name goes on in the next line: nothing is cut, on the narrowest terminal.
        view.add_column(Text(cell), justify="right" if place else "left", overflow="fold")
    for row in content.rows[:_LONGEST_LIST]:
        view.add_row(*(Text(cell) for cell in row))
    if len(content.rows) > _LONGEST_LIST:
        view.caption = f"and {len(content.rows) - _LONGEST_LIST} more rows on the page"
    return view
