"""The page of an audit: verdict, diagram, threshold and next step first; every table below.

Tables and sentences are HTML, made here; a script draws the figures and moves the threshold. What
users wrote reaches the page as escaped text or as data, never as markup.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from html import escape
from typing import Any

from sfumato.report.audit_advice import next_steps
from sfumato.report.audit_markdown import to_markdown
from sfumato.report.audit_sentences import (
    drift_sentence,
    error_sentence,
    headline,
    images_sentence,
    sample_sentence,
    scaling_sentence,
    threshold_sentences,
    time_text,
    warnings_of,
)
from sfumato.report.audit_tables import (
    AuditTable,
    detail_tables,
    metrics_table,
    model_tables,
    shared_tables,
    verdict_table,
)
from sfumato.report.document import asset, embedded, head, script_of, section, table
from sfumato.report.expected_view import expected_markdown, expected_screen, expected_tables

SCRIPTS = ("dom.js", "chart.js", "theme.js", "audit-figures.js", "audit.js")
_LONGEST = 12
_LINE = 140  # letters of a line on a laptop
_SAVES = "<div class='saves'></div>"
_HEIGHT = 900  # of the frame in a notebook, in pixels


def audit_page(found: Mapping[str, Any]) -> str:
    """The whole page, which opens from disk and loads nothing."""
    script = script_of(SCRIPTS)
    style = asset("report.css") + asset("audit.css")
    title = ", ".join(model["name"] for model in found["models"])
    return (
        f"{head(f'Audit: {title}', style=style, script=script)}"
        f"<body class='audit'><main>{_first_screens(found)}{_below(found)}</main>"
        f'<script type="application/json" id="data">{embedded(_payload(found))}</script>'
        f'<script type="module">{script}</script></body></html>\n'
    )


def notebook_page(found: Mapping[str, Any]) -> str:
    """For a notebook: the verdict as text, and the page in a frame of its own."""
    lines = "".join(f"<p>{escape(headline(model))}</p>" for model in found["models"])
    page = escape(audit_page(found), quote=True)
    return (
        f"{lines}<iframe title='Audit' sandbox='allow-scripts allow-downloads' "
        f"style='width:100%;height:{_HEIGHT}px;border:0' srcdoc=\"{page}\"></iframe>"
    )


def _first_screens(found: Mapping[str, Any]) -> str:
    if _is_unlabelled(found):
        return "".join(expected_screen(model, at) for at, model in enumerate(found["models"]))
    return "".join(_first_screen(model, at) for at, model in enumerate(found["models"]))


def _is_unlabelled(found: Mapping[str, Any]) -> bool:
    return not found.get("is_labelled", True)


def _first_screen(model: Mapping[str, Any], place: int) -> str:
    """Verdict, two places for figures, the threshold, and what to do next."""
    verdict = model["verdict"]
    kind = (
        "good" if verdict == "no miscalibration found" else "open" if "tell" in verdict else "bad"
    )
    more = [error_sentence(model), *threshold_sentences(model)]
    more += [drift_sentence(model)] if model.get("drift") else []
    more += [scaling_sentence(model)] if "scaled" in model else []
    more += [sample_sentence(model)] if model.get("sampled") else []
    more += [images_sentence(model)] if model.get("images") else []
    warned = "".join(
        f"<p class='warning'>{escape(line)}</p>" for line in warnings_of({"models": [model]})
    )
    advice = next_steps(model)[:2]
    steps = "".join(
        f"<div class='step'><p>{escape(step.why)}</p><pre tabindex='0'><code>"
        f"{escape(step.command)}</code></pre></div>"
        for step in advice
    )
    tag = "h1" if place == 0 else "h2"
    details = " ".join(escape(line) for line in more if line)
    room = _room(details, warned.count("<p"), len(advice) > 1)
    return (
        f"<section class='first' id='model-{place}' style='--more: {room:g}rem'>"
        f"<{tag} class='verdict {kind}'>{escape(headline(model))}</{tag}>"
        f"<p class='lead'>{details}</p>{warned}"
        f"<div class='pair'><div data-figure='reliability' data-model='{place}'></div>"
        f"<div data-figure='risk' data-model='{place}'></div></div>"
        f"<div class='advice next'><p class='headline'>What to do next</p>{steps}</div></section>"
    )


def _room(details: str, warnings: int, is_narrow: bool) -> float:
    """What more than two lines of text take from the figures, in heights of a letter."""
    lines = max(0, math.ceil(len(details) / _LINE) - 2)
    return 1.5 * lines + 2.2 * warnings + 2.8 * is_narrow


def _below(found: Mapping[str, Any]) -> str:
    if _is_unlabelled(found):
        tables = "".join(map(_section, expected_tables(found)))
        return f"{tables}<section id='downloads'><h2>Downloads</h2>{_SAVES}</section>"
    parts = []
    if len(found["models"]) > 1:
        parts.append(_section(verdict_table(found)))
    parts += [_section(each) for each in shared_tables(found)]
    for place, model in enumerate(found["models"]):
        parts += [_section(each, place) for each in model_tables(model)]
    parts += [
        section(
            f"{model['name']}: all numbers",
            table(metrics_table(model).head, metrics_table(model).rows),
        )
        for model in found["models"]
    ]
    parts.append(
        f"<section id='downloads'><h2>Downloads</h2>{_SAVES}"
        "<p class='note'>The gap is mean confidence minus accuracy. A verdict needs an interval "
        "without zero; «right on average, wrong in places» where a model with true confidences "
        "would show such an ECE in fewer than 5 of 100 test sets.</p></section>"
    )
    return "".join(parts)


def _section(content: AuditTable, place: int = 0) -> str:
    shown = table(content.head, content.rows[:_LONGEST])
    places = [
        f"<div data-figure='{name}' data-model='{place}'></div>" for name in content.figure.split()
    ]
    shown = "".join(places) + shown
    if len(content.rows) <= _LONGEST:
        return section(content.title, shown)
    rest = table(content.head, content.rows[_LONGEST:])
    folded = f"<details><summary>{len(content.rows) - _LONGEST:,} more</summary>{rest}</details>"
    return section(content.title, shown + folded)


def _payload(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the script draws, and the files that can be saved from the page."""
    models = []
    for model in found["models"]:
        periods = [
            {**row, "label": time_text(row["start"], model["is_dated"])}
            for row in model.get("by_time", ())
        ]
        keys = (
            *("name", "samples", "reliability", "curve", "thresholds", "sets", "drift"),
            *("counts", "most_per_image"),
        )
        models.append({**{key: model.get(key) for key in keys}, "by_time": periods})
    files = {
        "audit.json": json.dumps(_known(found), indent=2, allow_nan=False) + "\n",
        "audit.md": expected_markdown(found) if _is_unlabelled(found) else to_markdown(found),
        "audit.csv": _tables_csv(found),
    }
    payload: dict[str, Any] = _known({"models": models, "downloads": files})
    return payload


def _tables_csv(found: Mapping[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for content in _all_tables(found):
        writer.writerow([_no_formula(content.title)])
        writer.writerow([_no_formula(cell) for cell in content.head])
        writer.writerows([[_no_formula(cell) for cell in row] for row in content.rows])
        writer.writerow([])
    return text.getvalue()


def _all_tables(found: Mapping[str, Any]) -> list[AuditTable]:
    if _is_unlabelled(found):
        return expected_tables(found)
    return [verdict_table(found), *detail_tables(found)]


def _no_formula(cell: str) -> str:
    """A spreadsheet would run a name that begins like a formula; numbers with a sign stay."""
    is_number = cell[1:2].isdigit() or cell[1:2] == "."
    return f"'{cell}" if cell[:1] in ("=", "@", "+", "-") and not is_number else cell


def _known(value: Any) -> Any:
    """NaN and infinity, which JSON has not, as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _known(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value]
    return value
