"""Record numbers and names that a change of structure must not change, or compare with a record.

Run: python tools/freeze.py RECORD.json            to write one
     python tools/freeze.py RECORD.json --check    to compare with one (exit status 1: it differs)

A record holds the run name of every planned run of studies/**/*.yaml, the metrics of a tiny run of
each task, a report's results.csv, and audit and calibrator of every file of predictions at hand.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sfumato.engine import fingerprint
from sfumato.study import load_study, plan

ROOT = Path(__file__).resolve().parents[1]
PREDICTIONS = ROOT.parent / "shared" / "data" / "predictions"
TOLERANCE = 1e-6  # other sums of the same numbers
TIMED = ("seconds", "cost", "images_per_second")
SMALL = {
    "classify": """
name: classify
recipe:
  data: {name: scenes, size: 16, train: 120, validation: 40, test: 80}
  model: {name: resnet, depth: 8, width: 4}
  augment: fcr+mixup
  train: {epochs: 2, batch_size: 20, clip_norm: 2.0}
  evaluate: {temperature: true, corruptions: [fog, jpeg_compression], severities: [3],
             perturbations: [brightness], attacks: {FGSM: {name: fgsm, epsilon: 0.01}}}
methods:
  cross entropy: {}
  ACLS: {loss: {name: acls, margin: 6.0}}
  mollification: {inputs: mollify, model: {smooth: true}}
  MC dropout: {model: {dropout: 0.2}, predict: {mc_dropout: 3}}
seeds: [0, 1]
""",
    "segment": """
name: segment
recipe:
  task: segment
  data: {name: scene_streams, train: 24, validation: 8, test: 2, test_frames: 4, size: 16}
  model: {name: unet, width: 4, depth: 2}
  train: {epochs: 1, batch_size: 8}
methods:
  plain: {}
  temporal: {predict: {temporal: {length: 3, decay: 0.8}}}
seeds: [0]
""",
    "detect": """
name: detect
recipe:
  task: detect
  data: {name: scene_objects, size: 32, train: 16, validation: 4, test: 8}
  model: {name: faster_rcnn, channels: 8, proposals: 16}
  train: {epochs: 1, batch_size: 4}
  classifier:
    data: {name: scenes, size: 16, train: 60, validation: 20, test: 20}
    model: {name: resnet, depth: 8, width: 4}
    train: {epochs: 1, batch_size: 20}
    evaluate: {resamples: 0}
methods:
  hard label: {}
seeds: [0]
""",
}


def record() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return {
            "runs": _run_names(),
            "tasks": {name: _study(name, text, Path(folder)) for name, text in SMALL.items()},
            "predictions": _predictions(Path(folder)),
        }


def _run_names() -> dict[str, list[str]]:
    return {
        str(path.relative_to(ROOT)): [
            f"{run.method}, {run.config.seed}: {fingerprint(run.config)}"
            for run in plan(load_study(path))
        ]
        for path in sorted((ROOT / "studies").rglob("*.yaml"))
    }


def _study(name: str, text: str, folder: Path) -> dict[str, Any]:
    file, out = folder / f"{name}.yaml", folder / name
    file.write_text(text, encoding="utf-8")
    _sfumato("run", file, "--out", out, "--quiet", "--workers", "1", "--threads", "1")
    rows = list(csv.reader((out / "report" / "results.csv").read_text("utf-8").splitlines()))
    runs = json.loads((out / "study.json").read_text("utf-8"))
    metrics = {
        path.parent.name: _without_times(json.loads(path.read_text("utf-8")))
        for path in sorted((out / "runs").glob("*/metrics.json"))
    }
    return {"results": rows, "study": runs, "metrics": metrics}


def _predictions(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(PREDICTIONS.glob("*")):
        if path.name.endswith("-labels.npy"):
            continue
        labels = path.with_name(path.name.replace("-probs", "-labels"))
        extra = ["--labels", labels, "--kind", "probs"] if labels != path else []
        out, calibrator = folder / path.stem, folder / f"{path.stem}.json"
        _sfumato("audit", path, *extra, "--out", out, "--quiet")
        written = (out / "audit.json").read_text("utf-8")
        audit = json.loads(written.replace(str(PREDICTIONS), "predictions"))
        found[path.name] = {"audit": audit}
        works = _sfumato("calibrate", path, *extra, "--out", calibrator, check=False)
        made = json.loads(calibrator.read_text("utf-8")) if works else "refused"
        found[path.name]["calibrator"] = made
    return found


def _sfumato(*arguments: object, check: bool = True) -> bool:
    command = [sys.executable, "-m", "sfumato", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.returncode == 0


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_times(each)
            for key, each in value.items()
            if not any(word in key for word in TIMED)
        }
    return value


def differences(old: Any, new: Any, place: str = "") -> list[str]:
    """Places where two records differ by more than rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new}, key=str)
        return [
            line
            for key in keys
            for line in differences(old.get(key), new.get(key), f"{place}/{key}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for n, (a, b) in pairs for line in differences(a, b, f"{place}/{n}")]
    if _number(old) is not None and _number(new) is not None:
        a, b = float(_number(old)), float(_number(new))  # type: ignore[arg-type]
        same = math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (a != a and b != b)
        return [] if same else [f"{place}: {old} -> {new}"]
    return [] if old == new else [f"{place}: {old!r} -> {new!r}"]


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    path = Path(sys.argv[1])
    if "--check" in sys.argv:
        found = differences(json.loads(path.read_text("utf-8")), json.loads(json.dumps(record())))
        print("\n".join(found[:100]) or "nothing differs")
        sys.exit(bool(found))
    path.write_text(json.dumps(record(), indent=1), encoding="utf-8")
