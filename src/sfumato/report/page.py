"""Pages of a report and of an analysis: one folder that opens from disk, without network."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from sfumato._core.files import (
    UnreadableFileError,
    plain_name,
    read_bytes,
    read_json,
    remove_leftovers,
    write_text,
)
from sfumato._core.metric_descriptions import describe_metric
from sfumato._core.text import html_text
from sfumato.report.columns import Column, pooled_bins
from sfumato.report.document import asset, document, embedded, head, script_of, section, table
from sfumato.report.export import seeds_text, to_csv, to_latex, to_markdown
from sfumato.report.findings import (
    Findings,
    Row,
    compare_methods,
    corrupted_cells,
    ensemble_curves,
    frequency_curves,
    mean_of,
    perturbed_sequences,
)
from sfumato.report.read import RunResult, StudyResults, read_studies
from sfumato.report.recommendation import DECIDING, note, recommend
from sfumato.report.statistics import LEVEL, Difference, Estimate

SAMPLES_SHOWN = 8
_LOGGED = "validation_"  # what the log puts before a metric of the validation set
_MOST_EPOCHS = 150  # points of a training curve
_DIGITS = 6


def payload(results: StudyResults, findings: Findings) -> dict[str, Any]:
    """All that the page shows, rounded to six significant digits; JSON has no NaN, so None."""
    methods = [_method(row, findings.columns) for row in findings.rows]
    content = {
        "title": results.title,
        "note": note(findings),
        "recommendation": asdict(recommend(findings)),
        "columns": [_column(column, findings) for column in findings.columns],
        "front_columns": [column.id for column in findings.front_columns],
        "methods": methods,
        "scores": _scores(methods),
        "profiles": results.profiles,
        "study": yaml.safe_dump(results.study, sort_keys=False, allow_unicode=True),
        "environment": results.environment,
        "downloads": {
            "results.csv": to_csv(findings),
            "results.tex": to_latex(findings, findings.columns),
            "results.md": to_markdown(findings, findings.columns),
        },
    }
    rounded: dict[str, Any] = _rounded(content)
    return rounded


_FIELDS = {
    "values": ("mean", "low", "high", "over", "text", "perfect"),
    "differences": ("mean", "low", "high", "verdict", "over", "reason", "text"),
}
_SHARED = ("verdict", "over", "reason")  # fields with few different values


def _packed(content: dict[str, Any]) -> dict[str, Any]:
    """Shorten what the page repeats: names of fields, pictures, and the numbers of downloads."""
    shared: dict[Any, int] = {}  # each value, and its place

    def place(value: Any) -> int:
        return shared.setdefault(value, len(shared))

    methods = []
    for method in content["methods"]:
        # Samples are a stranger's file: what is no picture stays as it is.
        samples = [
            {**each, "image": place(each["image"])}
            if isinstance(each, dict) and isinstance(each.get("image"), str)
            else each
            for each in method["samples"]
        ]
        packed = {**method, "samples": samples}
        for part, names in _FIELDS.items():
            packed[part] = {
                key: [place(each[name]) if name in _SHARED else each[name] for name in names]
                for key, each in method[part].items()
            }
        methods.append(packed)
    downloads = {
        name: base64.b64encode(zlib.compress(text.encode())).decode()
        for name, text in content["downloads"].items()
    }
    packing = {"fields": _FIELDS, "shared_fields": _SHARED, "shared": list(shared)}
    return {**content, "methods": methods, "downloads": downloads, **packing}


def _scores(methods: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, bool]]:
    """Title of each metric in the figures, and whether it is shown in percent."""
    names: set[str] = set()
    for method in methods:
        names.update((method["corrupted"] or {}).get("cells", ()), method["ensemble"] or ())
        names.update(method["training"], *(method["frequency"] or {}).values())
    found = {}
    for name in sorted(names - {"change", "at"}):
        key = name.removeprefix(_LOGGED)
        title, _, bounds = describe_metric(key)
        found[name] = (title if key == name else f"validation {title}", bounds == "share")
    return found


def _column(column: Column, findings: Findings) -> dict[str, Any]:
    made = [row.differences[column.id] for row in findings.rows if column.id in row.differences]
    sizes = sorted({each.compared for each in made if each.verdict and each.compared})
    return {
        "id": column.id,
        "title": column.title,
        "heading": column.heading,
        "better": column.better,
        "percent": column.percent,
        "main": column.is_main,
        "deciding": column.id in DECIDING,
        "error": f"≤ {100 * LEVEL:.0f} % over {' and '.join(map(str, sizes))}" if sizes else "",
    }


def _method(row: Row, columns: Sequence[Column]) -> dict[str, Any]:
    runs = row.method.runs
    config = runs[0].config if runs else {}
    values = [(c, row.values[c.id]) for c in columns if c.id in row.values]
    differences = [(c, row.differences[c.id]) for c in columns if c.id in row.differences]
    return {
        "name": row.name,
        "baseline": row.baseline,
        "seeds": seeds_text(row),
        "failures": [f"seed {seed}: {why}" for seed, why in row.method.failures.items()],
        "front": row.on_front,
        "values": {
            c.id: _fields("values", each, text=each.text(c), perfect=each.floor_text(c))
            for c, each in values
        },
        "differences": {
            c.id: _fields("differences", each, text=each.text(c), reason=each.reason())
            for c, each in differences
        },
        "cost": [row.cost.train_seconds, row.cost.seconds_per_image],
        "reliability": pooled_bins(row.method),
        "corrupted": corrupted_cells(runs),
        "frequency": frequency_curves(runs),
        "along": perturbed_sequences(runs),
        "ensemble": ensemble_curves(runs),
        "training": _training(runs),
        "samples": next((run.samples[:SAMPLES_SHOWN] for run in runs if run.samples), []),
        "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True) if config else "",
    }


def _fields(part: str, found: Estimate | Difference, **texts: str) -> dict[str, Any]:
    return {name: texts[name] if name in texts else getattr(found, name) for name in _FIELDS[part]}


def _training(runs: Sequence[RunResult]) -> dict[str, list[Any]]:
    """Each logged number by epoch, mean over the seeds that have that epoch."""
    epochs = max((len(run.log) for run in runs), default=0)
    step = -(-epochs // _MOST_EPOCHS) or 1
    kept = sorted({*range(0, epochs, step), *range(epochs)[-1:]})
    names = dict.fromkeys(key for run in runs for record in run.log[:1] for key in record)
    curves: dict[str, list[Any]] = {"epoch": [epoch + 1 for epoch in kept]}
    for name in names:
        if name not in ("epoch", "seconds"):
            found = [[r.log[e].get(name) for r in runs if e < len(r.log)] for e in kept]
            curves[name] = [mean_of(values) for values in found]
    return curves


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value


_MOST_BYTES = 64 * 2**20


def write_analysis_page(folder: Path) -> Path:
    """Write `index.html` beside the `analysis.json` that `sfumato analyse` wrote."""
    content = read_json(folder / "analysis.json", within=folder)
    summary = content["summary"]
    names = list(dict.fromkeys(name for row in summary.values() for name in row))
    rows = [
        [title, *(f"{row[name]:.4g}" if name in row else "" for name in names)]
        for title, row in summary.items()
    ]
    sections = [table(["network", *names], rows)]
    sections += [_section(each, folder) for each in content["sections"]]
    page = folder / "index.html"
    write_text(page, document("Why it works: " + ", ".join(content["titles"]), sections))
    return page


def _section(content: dict[str, Any], folder: Path) -> str:
    title = content["name"].replace("_", " ")
    # In the page itself: its policy allows no other file, and one file is easily passed on.
    path = folder / plain_name(content["picture"], folder / "analysis.json")
    picture = base64.b64encode(read_bytes(path, within=folder, most=_MOST_BYTES)).decode()
    return section(
        title.capitalize(),
        f"<p>{html_text(content['caption'])}</p>"
        f"<p><img class='analysis' src='data:image/png;base64,{picture}' "
        f"alt='{html_text(title)} of {len(content['results'])} networks'></p>",
    )


_TABLES = {"csv": to_csv, "tex": to_latex, "md": to_markdown}

# Joined in this order into the page's one script.
SCRIPTS = (
    *("dom.js", "table.js", "chart.js", "reliability.js", "forest.js", "figures.js", "theme.js"),
    "page.js",
)


def write_report(folder: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of the study in `folder`, or of several; the path of its `index.html`.

    Beside it stand the tables: `results.csv`, `results.tex`, `results.md`.

    Args:
        folder: what `sfumato run` wrote; several folders become one page.
        out: where the page goes; `report` in the (first) folder by default.
    """
    folders = [folder] if isinstance(folder, str | Path) else list(folder)
    results = read_studies(folders)
    return write_findings(results, compare_methods(results), folders[0], out)


def write_findings(
    results: StudyResults, findings: Findings, folder: str | Path, out: str | Path | None
) -> Path:
    """Write the report of results that were read and judged before, as `write_report`."""
    place = Path(folder) / "report" if out is None else Path(out)
    if out is None and place.is_symlink():  # a stranger's folder may lead anywhere
        raise UnreadableFileError(
            f"{place} is a link, and no study writes one: remove it, or say where the page goes "
            "(--out)"
        )
    texts = {f"results.{end}": make(findings) for end, make in _TABLES.items()}
    texts["index.html"] = render(payload(results, findings), findings)
    for name, text in texts.items():
        remove_leftovers(place / name)
        write_text(place / name, text)
    return place / "index.html"


def render(content: dict[str, Any], findings: Findings) -> str:
    """The page as HTML; what users wrote reaches it only as data, never as markup."""
    script = script_of(SCRIPTS)
    return (
        f"{head(findings.title, style=asset('report.css'), script=script)}"
        f"<body><main><h1>{html_text(findings.title)}</h1><noscript>This page draws its tables and "
        "figures with a script; without one, read results.md or results.csv beside it.</noscript>"
        "</main>"
        f'<script type="application/json" id="data">{embedded(_packed(content))}</script>'
        f"<script>{script}</script></body></html>\n"
    )
