"""The tables of docs/results, one function each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from papers import (
    OBJECTNESS_TABLE_1,
    OBJECTNESS_TABLE_2,
)
from readings import (
    ACCURACY,
    CONFIDENCE,
    ECE,
    NLL,
    RANKING,
    ROOT,
    WITHOUT_OBJECT,
    Column,
    Metrics,
    Runs,
    at,
    cell,
    of_size,
    table,
)


def method_table(
    runs: Runs,
    columns: Sequence[Column],
    *,
    base: Callable[[str], str],
    paper: Mapping[str, str] | None = None,
    paper_title: str = "",
) -> str:
    head = ["method", *(column.title for column in columns), *([paper_title] if paper else [])]
    rows = []
    for method, of_method in runs.items():
        row = [cell(of_method, column, runs[base(method)]) for column in columns]
        rows.append([method, *row, *([paper.get(method, "")] if paper else [])])
    return table(head, rows)


def margins(runs: Runs) -> str:
    columns = (
        Column("validation ECE %", at("validation", "ece")),
        Column("validation accuracy %", at("validation", "accuracy"), "higher"),
        Column("validation AURC %", at("validation", "aurc")),
    )
    rows = [
        [method, *(cell(of_method, column, None) for column in columns)]
        for method, of_method in runs.items()
    ]
    return table(["loss", *(column.title for column in columns)], rows)


def with_scaled(runs: Runs) -> Runs:
    """Cross entropy after temperature scaling as a method of its own, after cross entropy."""
    scaled: dict[int, Metrics] = {
        seed: {
            "test": {"accuracy": metrics["test"]["accuracy"], **metrics["scaled"]},
            "scaled": metrics["scaled"],
            "corrupted": metrics["scaled"]["corrupted"],
        }
        for seed, metrics in runs["cross entropy"].items()
    }
    ordered: Runs = {"cross entropy": runs["cross entropy"], "cross entropy, temperature": scaled}
    return ordered | {name: found for name, found in runs.items() if name not in ordered}


def sizes(runs: Runs) -> str:
    """ECE of cross entropy and ACLS by the number of training images."""
    numbers = sorted({int(name.split(", ")[1]) for name in runs})
    columns = (ACCURACY, ECE, NLL, RANKING[0])
    rows = []
    for number in numbers:
        plain, margin = runs[f"cross entropy, {number}"], runs[f"ACLS, {number}"]
        row = [cell(plain, column, None) for column in columns]
        rows.append([f"{number:,}", *row, *(cell(margin, column, plain) for column in columns)])
    heads = [f"{loss}: {column.title}" for loss in ("CE", "ACLS") for column in columns]
    return table(["training images", *heads], rows)


def mollification_types(runs: Runs) -> str:
    """Error by type of corruption, mean over severities and seeds."""
    some = next(iter(runs["FCR"].values()))["corrupted"]
    rows = []
    for place, name in enumerate(some["names"]):
        errors = [
            fmean(
                fmean(metrics["corrupted"]["cells"]["error"][place]) for metrics in found.values()
            )
            for found in runs.values()
        ]
        rows.append([name.replace("_", " "), *(f"{100 * error:.1f}" for error in errors)])
    return table(["corruption", *runs], rows)


def spatial_sizes(runs: Runs) -> str:
    """Numbers by ensemble size."""
    sampled = {
        name: found
        for name, found in runs.items()
        if all("ensemble" in metrics for metrics in found.values())
    }
    numbers = next(iter(next(iter(sampled.values())).values()))["ensemble"]["sizes"]
    rows = []
    for key, shown in (("nll", NLL), ("accuracy", ACCURACY), ("ece", ECE)):
        columns = [replace(shown, read=of_size(key, place)) for place in range(len(numbers))]
        for name, found in sampled.items():
            texts = [cell(found, column, None) for column in columns]
            rows.append([f"{shown.title}: {name}", *texts])
    return table(["", *(f"N = {size}" for size in numbers)], rows)


def objectness(runs: Runs, *, with_paper: bool = False) -> str:
    columns = (
        *(*WITHOUT_OBJECT, ACCURACY, ECE, *CONFIDENCE, *RANKING),
        Column("objectness deviation %", at("objectness", "mean_objectness_deviation")),
        Column("objectness ECE 100 %", at("objectness", "ece_100")),
    )
    paper = {
        method: f"{OBJECTNESS_TABLE_1.get(method, '–')}; {rest}"
        for method, rest in OBJECTNESS_TABLE_2.items()
    }
    return method_table(
        runs,
        columns,
        base=lambda method: "hard label",
        paper=paper if with_paper else None,
        paper_title="paper, ImageNet: accuracy, confidence without object; accuracy, ECE, "
        "over-, underconfidence %",
    )


def costs() -> str:
    """Tabulate the cost of each method relative to cross entropy, of `benchmarks/costs.py`."""
    rows = json.loads((ROOT / "benchmarks/results/costs.json").read_text())["rows"]
    plain = rows[0]
    cells = [
        [
            row["method"],
            f"{row['training']:.2f}",
            f"{row['predicting']:.2f}",
            f"{row['MB'] / plain['MB']:.2f}",
        ]
        for row in rows
    ]
    return table(["method", "training time", "prediction time", "memory of training"], cells)
