"""Runs in the stores of trackers: every number arrives, and exporting again adds nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfumato.integrations.trackers import Exported, export_runs

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader")  # mlflow's, of SQLAlchemy


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two finished runs, one that is not, and a report."""
    folder = tmp_path / "study"
    runs = [{"method": "ACLS", "seed": seed, "run": f"run{seed}"} for seed in range(3)]
    for seed in range(2):
        run = folder / "runs" / f"run{seed}"
        run.mkdir(parents=True)
        test = {"ece": 0.05 + seed, "ece_interval": [0.04, 0.06], "nll": None, "samples": 100}
        (run / "metrics.json").write_text(json.dumps({"test": test}))
        (run / "config.yaml").write_text(f"seed: {seed}\nloss: {{name: acls, margin: 10.0}}\n")
        lines = [json.dumps({"epoch": n, "train_loss": 2.0 / (n + 1)}) for n in range(3)]
        (run / "log.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "runs" / "run2").mkdir()
    (folder / "report" / "figures").mkdir(parents=True)
    (folder / "report" / "index.html").write_text("<html></html>")
    (folder / "report" / "figures" / "curve.svg").write_text("<svg/>")
    index = {"title": "my study", "methods": ["ACLS"], "runs": runs, "study": {}}
    (folder / "study.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("scheme", [pytest.param("sqlite", marks=pytest.mark.slow), "file"])
def test_mlflow(study: Path, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = f"sqlite:///{tmp_path}/mlflow.db" if scheme == "sqlite" else str(tmp_path / "mlruns")
    assert export_runs(study, "mlflow", store) == Exported(3, 0)
    assert export_runs(study, "mlflow", store) == Exported(0, 3)
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("my study")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"ACLS seed 0", "ACLS seed 1", "report"}
    second = runs["ACLS seed 1"]
    assert second.data.params == {"seed": "1", "loss.name": "acls", "loss.margin": "10.0"}
    assert second.data.metrics["test/ece"] == 1.05
    ends = (second.data.metrics["test/ece_low"], second.data.metrics["test/ece_high"])
    assert ends == (0.04, 0.06)
    assert "test/nll" not in second.data.metrics
    curve = client.get_metric_history(second.info.run_id, "train_loss")
    assert [(each.step, each.value) for each in curve] == [(0, 2.0), (1, 1.0), (2, 2 / 3)]
    files = {each.path for each in client.list_artifacts(runs["report"].info.run_id, "report")}
    assert files == {"report/index.html", "report/figures"}
    assert not list(elsewhere.iterdir())
    finish(study)
    assert export_runs(study, "mlflow", store) == Exported(1, 3)


def finish(study: Path) -> None:
    for name in ("metrics.json", "config.yaml"):
        text = (study / "runs" / "run1" / name).read_text()
        (study / "runs" / "run2" / name).write_text(text)


@pytest.mark.slow
def test_wandb_offline(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    store = str(tmp_path / "store")
    assert export_runs(study, "wandb", store) == Exported(3, 0)
    assert export_runs(study, "wandb", store) == Exported(0, 3)
    folders = list((tmp_path / "store" / "wandb").glob("offline-run-*"))
    assert len(folders) == 3
    assert all(list(folder.glob("run-*.wandb")) for folder in folders)
    text = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("run-*.wandb"))
    for each in (b"test/ece_low", b"train_loss", b"ACLS seed 1", b"loss"):
        assert each in text
    finish(study)
    assert export_runs(study, "wandb", store) == Exported(1, 3)


def test_tensorboard(study: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    store = tmp_path / "boards"
    assert export_runs(study, "tensorboard", str(store)) == Exported(3, 0)
    (run,) = (store / "my study").glob("ACLS seed 0 *")
    read = EventAccumulator(str(run))
    read.Reload()
    found = [(each.step, each.value) for each in read.Scalars("train_loss")]
    assert found == [(0, 2.0), (1, 1.0), (2, pytest.approx(2 / 3))]
    assert read.Scalars("test/ece")[0].value == pytest.approx(0.05)
    assert (run / "config.yaml").exists()
    run.rename(run.with_name(f".{run.name}"))  # as if it had been cut off
    assert export_runs(study, "tensorboard", str(store)) == Exported(1, 2)
    assert export_runs(study, "tensorboard", str(store)) == Exported(0, 3)


def test_what_can_not_be_exported(study: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="to must be one of mlflow, wandb, tensorboard"):
        export_runs(study, "comet")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=r"holds no study\.json"):
        export_runs(tmp_path / "nothing", "tensorboard")
    for run in (study / "runs").glob("*/metrics.json"):
        run.unlink()
    with pytest.raises(ValueError, match="holds no finished run"):
        export_runs(study, "tensorboard", str(tmp_path / "boards"))


@pytest.mark.parametrize("title", ["..", ".", "", ".hidden", "é" * 300])
def test_a_title_leads_to_no_other_folder(study: Path, tmp_path: Path, title: str) -> None:
    pytest.importorskip("tensorboard")
    index = json.loads((study / "study.json").read_text())
    index["runs"][0]["method"] = f"../{title}"
    (study / "study.json").write_text(json.dumps({**index, "title": title}))
    store = tmp_path / "a" / "boards"
    assert export_runs(study, "tensorboard", str(store)) == Exported(3, 0)
    assert [path.name for path in store.parent.iterdir()] == ["boards"]
    (folder,) = store.iterdir()
    assert len(list(folder.iterdir())) == 3


def test_options_are_text_on_the_page(study: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    hostile = "a | b\n![](http://host/x.png)<script>"
    (study / "runs" / "run0" / "config.yaml").write_text(json.dumps({"loss": hostile}))
    export_runs(study, "tensorboard", str(tmp_path / "boards"))
    written = b"".join(path.read_bytes() for path in (tmp_path / "boards").rglob("events.*"))
    assert b"loss" in written
    assert not any(each in written for each in (b"![]", b"<script", b"http://"))


@pytest.mark.parametrize("name", ["metrics.json", "config.yaml", "../../report/index.html"])
def test_no_endless_file_is_read(study: Path, tmp_path: Path, name: str) -> None:
    with (study / "runs" / "run0" / name).open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"at most [0-9,]+ are read"):
        export_runs(study, "tensorboard", str(tmp_path / "boards"))


@pytest.mark.parametrize("runs", ["x", [1], [{"method": "ACLS"}], {"a": 1}])
def test_another_index_is_one_line(
    study: Path, tmp_path: Path, sfumato: Callable[..., Any], runs: Any
) -> None:
    (study / "study.json").write_text(json.dumps({"title": "a", "runs": runs}))
    store = str(tmp_path / "boards")
    done = sfumato("export", str(study), "--to", "tensorboard", "--store", store)
    assert (done.status, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "the results hold something else than Sfumato writes" in done.stderr


def test_what_can_not_be_written_is_one_line(
    study: Path, tmp_path: Path, sfumato: Callable[..., Any]
) -> None:
    pytest.importorskip("mlflow")
    to = ("--to", "mlflow", "--store")
    done = sfumato("export", str(study), *to, "nothing://of/the/kind")
    assert (done.status, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "mlflow can't write to nothing://of/the/kind: " in done.stderr
    for run in (study / "runs").glob("*/metrics.json"):
        run.unlink()
    done = sfumato("export", str(study), *to, str(tmp_path / "store"))
    assert (done.status, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "holds no finished run" in done.stderr


_ASKED = """
import sys, time
asked = []
sys.addaudithook(lambda event, given: event == "socket.getaddrinfo" and asked.append(given[0]))
from sfumato.integrations.trackers import export_runs
print(export_runs(sys.argv[1], "mlflow", sys.argv[2]))
time.sleep(3)
sys.exit(", ".join(map(str, asked)) or 0)
"""


@pytest.mark.slow
def test_mlflow_asks_no_host(study: Path, tmp_path: Path) -> None:
    """Its telemetry does, but not in tests and in CI, which it tells by their variables."""
    pytest.importorskip("mlflow")
    own = ("PATH", "HOME", "PYTHONPATH", "SYSTEMROOT")
    environment = {name: os.environ[name] for name in own if name in os.environ}
    command = [sys.executable, "-c", _ASKED, str(study), f"sqlite:///{tmp_path}/mlflow.db"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Exported(new=3, known=0)" in done.stdout
