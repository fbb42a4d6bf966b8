"""CONTRIBUTING.md walked in copies of the package: the worked example, and each other addition."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"^<!-- (file|line): (\S+) -->\n```python\n(.*?)^```$", re.M | re.S)
# What the example's reader is promised, asked of the copy.
SEEN = """
from pathlib import Path

import losses
import sfumato
from sfumato.study import StudyConfig, plan
from sfumato.study.schema import catalogue
from sfumato.study.run import write_profiles
from sfumato.study.schema import schema_text


def test_poly_is_seen_everywhere(tmp_path: Path) -> None:
    assert Path(sfumato.__file__).is_relative_to(Path.cwd())
    assert catalogue()["losses"]["poly"] == "weight=1.0, ignore_index=-100"
    assert '"const": "poly"' in schema_text()
    assert "poly" in losses.fast_losses((2,), classes=3)
    methods = {"poly": {"loss": {"name": "poly", "weight": 2.0}}}
    recipe = {"data": "scenes", "model": "resnet"}
    write_profiles(plan(StudyConfig(name="s", recipe=recipe, methods=methods)), tmp_path)
    assert "poly: weight 2.0" in (tmp_path / "profiles.json").read_text()
"""


def _copy(folder: Path) -> None:
    """The package and the tests that look at every loss, which are not edited by the example."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src/sfumato", folder / "src/sfumato", ignore=ignored)
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=ignored)
    oracle = "tools/endurance/loss_references.py"
    for name in ("tests/conftest.py", "tests/contracts/test_losses.py", oracle):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests/test_seen.py").write_text(SEEN)


# What the other sections say, as additions: file, the beginning of the line that they go before
# (None: at the end of the file), and their text.
ADDED: tuple[tuple[str, str | None, str], ...] = (
    # A metric, in every run, with its description, and as a column that waits.
    (
        "metrics/scores.py",
        None,
        '''
def error_share(probs: Tensor, target: Tensor) -> Tensor:
    """Share of samples whose predicted class is wrong."""
    return 1 - accuracy(probs, target)
''',
    ),
    (
        "metrics/__init__.py",
        "from sfumato.metrics.scores",
        "from sfumato.metrics.scores import error_share as error_share\n",
    ),
    (
        "metrics/evaluate.py",
        '        "ece": error_of_bins',
        '        "error_share": 1 - accuracy_of_groups(groups),\n',
    ),
    (
        "_core/metric_descriptions.py",
        '    "nll": Description',
        '    "error_share": Description("share of errors", "lower", "share"),\n',
    ),
    ("report/columns.py", '    *("flip_rate"', '    "error_share",\n'),
    # A corruption.
    (
        "corruptions/camera.py",
        None,
        '''
def posterise(levels: Tensor, *, steps: float) -> Tensor:
    """Fewer levels."""
    return (levels / 255 * steps).round() / steps * 255
''',
    ),
    (
        "corruptions/catalogue.py",
        "from sfumato.corruptions.camera",
        "from sfumato.corruptions.camera import posterise\n",
    ),
    (
        "corruptions/catalogue.py",
        "    _EXTRA: (",
        "    _EXTRA: (posterise, speckle_noise, gaussian_blur, spatter, saturate),\n",
    ),
    *(
        (
            "corruptions/catalogue.py",
            begin,
            f'    "posterise": {{"steps": (20, 10, 7, 5, {last})}},\n',
        )
        for begin, last in (
            ('    "gaussian_noise": {"std": (0.04, 0.06', 4),
            ('    "gaussian_noise": {"std": (0.04, 0.08', 3),
            ('    "gaussian_noise": {"std": (0.08, 0.12', 2),
        )
    ),
    # An evaluation.
    (
        "engine/config/sections.py",
        "    normalised: bool",
        '    darkest: bool = Field(False, exclude_if=is_unused)\n    """Measure the darkest."""\n',
    ),
    ("engine/config/rules.py", '    *("ensemble_sizes"', '    "darkest",\n'),
    (
        "engine/evaluation/other_sets.py",
        None,
        '''
def measure_darkest(test: ArrayDataset) -> dict[str, float]:
    """The lowest level of the test images."""
    return {"level": float(test.images[:].min()) / 255}
''',
    ),
    (
        "engine/evaluation/classifier.py",
        "from sfumato.engine.evaluation.other_sets",
        "from sfumato.engine.evaluation.other_sets import measure_darkest\n",
    ),
    (
        "engine/evaluation/classifier.py",
        "        if wanted.own:",
        """        if wanted.darkest:
            self.metrics["darkest"] = context.keep("darkest", {}, lambda: measure_darkest(test))
""",
    ),
    (
        "_core/metric_descriptions.py",
        '    "nll": Description',
        '    "level": Description("level", None, "share"),\n',
    ),
    ("_core/metric_descriptions.py", '    *("train", "validation"', '    "darkest",\n'),
    # A command.
    (
        "cli/results.py",
        None,
        '''
def greet(name: Annotated[str, typer.Argument(help="Whom.")]) -> None:
    """Say hello."""
    console.print(f"Hello {name}")
''',
    ),
    ("cli/__init__.py", "from sfumato.cli.results", "from sfumato.cli.results import greet\n"),
    ("cli/__init__.py", "    quickstart,", "    greet,\n"),
    # A model.
    (
        "models/linear.py",
        None,
        '''"""One linear layer."""

from torch import nn


def linear(*, num_classes: int, in_channels: int = 3, bias: bool = True) -> nn.Module:
    """The mean of each channel, and one linear layer."""
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(pooled, nn.Linear(in_channels, num_classes, bias=bias))
''',
    ),
    (
        "models/__init__.py",
        "from sfumato.models.onnx",
        "from sfumato.models.linear import linear as linear\n",
    ),
    (
        "engine/config/components.py",
        "from sfumato.models import",
        "from sfumato.models.linear import linear\n",
    ),
    (
        "engine/config/components.py",
        '    Component("model", "unet"',
        '    Component("model", "linear", with_weights(linear), ("classify",)),\n',
    ),
    # A data set.
    (
        "data/sources/halves.py",
        None,
        '''"""Dark and bright images."""

import torch

from sfumato.data.dataset import ArrayDataset, DataSplits
from sfumato.data.splits import Shared, source


@source("validation", "seed")
def load_halves(shared: Shared, *, count: int = 40) -> DataSplits:
    """Images of one level, dark or bright.

    Args:
        count: of each split.
    """
    labels = torch.arange(count) % 2
    images = (100 * labels + 50).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 16, 16)
    both = [ArrayDataset(images.contiguous(), labels, ("dark", "bright")) for _ in range(2)]
    return shared.with_test(*both)
''',
    ),
    (
        "data/load.py",
        "from sfumato.data.sources.huggingface",
        "from sfumato.data.sources.halves import load_halves\n",
    ),
    ("data/load.py", '    "npz": load_npz', '    "halves": load_halves,\n'),
)
ADDED_SEEN = """
import json
from pathlib import Path

import pytest
import sfumato
from sfumato import metrics
from sfumato.cli import app
from sfumato.engine import RunConfig, parse, run
from sfumato.report.columns import columns_of
from sfumato.study.schema import schema_text


def test_a_run_has_all_of_it(tmp_path: Path, capsys) -> None:
    assert Path(sfumato.__file__).is_relative_to(Path.cwd())
    content = {
        "data": {"name": "halves", "count": 20},
        "model": "linear",
        "train": {"epochs": 1, "batch_size": 4},
        "evaluate": {"corruptions": ["posterise"], "severities": [5], "darkest": True},
    }
    done = run(parse(RunConfig, content, "run"), tmp_path, show=False)
    found = json.loads((done.path / "metrics.json").read_text())
    assert found["test"]["error_share"] == pytest.approx(1 - found["test"]["accuracy"])
    assert len(found["test"]["error_share_interval"]) == 2
    assert found["corrupted"]["names"] == ["posterise"]
    assert found["darkest"] == {"level": 50 / 255}
    columns = {each.id: each for each in columns_of([found])}
    assert columns["test.error_share"].title == "share of errors"
    assert not columns["test.error_share"].is_main
    assert columns["darkest.level"].percent
    for name in ("halves", "linear", "posterise", "darkest"):
        assert f'"{name}"' in schema_text()
    assert "error_share" in metrics.__all__
    app(["greet", "Leonardo"], standalone_mode=False)
    assert "Hello Leonardo" in capsys.readouterr().out


def test_the_table_knows_its_options() -> None:
    with pytest.raises(ValueError, match="count"):
        parse(RunConfig, {"data": {"name": "halves", "cuont": 3}, "model": "linear"}, "run")
"""


def _apply(kind: str, path: Path, text: str) -> None:
    """Write a file, or put a line before the first one that begins with the same word."""
    if kind == "file":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    lines = path.read_text().splitlines(keepends=True)
    begin = text[: text.index(text.split()[0]) + len(text.split()[0])]
    first = next(number for number, line in enumerate(lines) if line.startswith(begin))
    path.write_text("".join([*lines[:first], text, *lines[first:]]))


@pytest.mark.slow
def test_the_worked_example(tmp_path: Path) -> None:
    _copy(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [kind for kind, _, _ in blocks] == ["file", "line", "line", "line", "file"]
    for kind, path, text in blocks:
        _apply(kind, tmp_path / path, text)
    tests = ["tests/labels/test_poly.py", "tests/test_seen.py", "src/sfumato/labels/poly.py"]
    said = _tested(tmp_path, *tests, "tests/contracts/test_losses.py", "-k", "poly or table")
    for test in ("test_second_derivatives_agree[poly]", "test_bad_weight", "poly.poly_loss"):
        assert re.search(rf"^PASSED .*{re.escape(test)}$", said, re.M), said


def _tested(folder: Path, *arguments: str) -> str:
    places = [str(folder / "src"), str(folder / "benchmarks"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-rA"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_every_other_addition(tmp_path: Path) -> None:
    _copy(tmp_path)
    shutil.copy(ROOT / "tests/contracts/test_corruptions.py", tmp_path / "tests/contracts")
    (tmp_path / "tests/test_seen.py").write_text(ADDED_SEEN)
    for name, begin, text in ADDED:
        path = tmp_path / "src/sfumato" / name
        if begin is None:
            path.write_text((path.read_text() + "\n" if path.exists() else "") + text)
            continue
        lines = path.read_text().splitlines(keepends=True)
        place = next(number for number, line in enumerate(lines) if line.startswith(begin))
        # The line of a table that is written anew stands in place of the old one.
        rest = (
            lines[place + 1 :] if text.startswith(begin) and "import" not in text else lines[place:]
        )
        path.write_text("".join([*lines[:place], text, *rest]))
    said = _tested(
        tmp_path,
        "tests/test_seen.py",
        "tests/contracts/test_corruptions.py",
        "-k",
        "seen or posterise",
    )
    assert "test_form_range_determinism_and_batching[posterise]" in said
