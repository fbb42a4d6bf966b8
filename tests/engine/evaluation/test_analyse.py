"""`sfumato analyse`: the analyses on finished runs, and their page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from sfumato._core.files import write_json
from sfumato.analysis import hessian_max_spectrum
from sfumato.engine import ConfigError, RunConfig, fingerprint, parse, run
from sfumato.engine.evaluation.analyses import (
    ANALYSES,
    Effort,
    analyse,
    find_runs,
    read_analysed_run,
)
from sfumato.predictions import mean_log_probability
from sfumato.report.page import write_analysis_page

DATA = {"name": "scenes", "size": 16, "train": 40, "validation": 10, "test": 10}
SMALL = Effort(batch_size=8, spectrum_batches=2, density_probes=1, points=3, passes=6)
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, one stochastic and smoothed, trained for one epoch."""
    folder = tmp_path_factory.mktemp("study")
    methods = {
        "plain": {"name": "resnet", "depth": 8, "width": 4},
        HOSTILE: {"name": "resnet", "depth": 8, "width": 4, "smooth": True, "dropout": 0.2},
    }
    runs = []
    for method, model in methods.items():
        loss = "cross_entropy" if method == "plain" else {"name": "acls", "margin": 1.0}
        train = {"epochs": 1, "batch_size": 20}
        content = {"data": DATA, "model": model, "loss": loss, "train": train}
        config = parse(RunConfig, content, "test")
        run(config, folder / "runs", show=False)
        runs += [{"method": method, "seed": seed, "run": fingerprint(config)} for seed in (0, 1)]
    write_json(folder / "study.json", {"runs": runs})
    return folder


def test_a_study_gives_the_first_seed_of_each_method(study: Path) -> None:
    assert list(find_runs([study])[0]) == ["plain", HOSTILE]
    one = next((study / "runs").glob("*/config.yaml")).parent
    assert next(iter(find_runs([one])[0])).endswith(", seed 0")
    assert len(find_runs([one, one])[0]) == 2


def test_what_is_not_finished_is_left_out_and_said_first(study: Path, tmp_path: Path) -> None:
    index = json.loads((study / "study.json").read_text())
    plain = index["runs"][0]
    later = [{"method": "later", "seed": seed, "run": f"{seed}0"} for seed in (0, 1)]
    partly = tmp_path / "partly"
    partly.mkdir()
    (partly / "runs").symlink_to(study / "runs")
    runs = [later[0], {**plain, "run": "10", "seed": 5}, plain, later[1]]
    write_json(partly / "study.json", {"runs": runs})
    said: list[str] = []
    found = analyse(
        [partly],
        tmp_path / "out",
        effort=SMALL,
        only=["loss_variance"],
        show=False,
        say=said.append,
    )
    assert found["titles"] == ["plain"]
    assert said == [
        f"{partly}: 1 of 2 methods are left out, because no run of theirs is finished: later"
    ]
    write_json(partly / "study.json", {"runs": later})
    with pytest.raises(ConfigError, match="no run is finished; train one first"):
        analyse([partly], tmp_path / "out", show=False)
    with pytest.raises(FileNotFoundError, match="holds no config"):  # before the first is analysed
        analyse([study, tmp_path], tmp_path / "out", show=False, say=said.append)


def test_every_analysis_is_drawn_and_kept_as_numbers(study: Path, tmp_path: Path) -> None:
    found = analyse([study], tmp_path, effort=SMALL, show=False)
    assert json.loads((tmp_path / "analysis.json").read_text()) == found
    sections = {section["name"]: section for section in found["sections"]}
    assert list(sections) == [each.name for each in ANALYSES]
    for section in sections.values():
        assert (tmp_path / section["picture"]).read_bytes()[:4] == b"\x89PNG"
    # Only networks with dropout vary, and only smoothed ones have a response.
    assert list(sections["loss_variance"]["results"]) == [HOSTILE]
    assert list(sections["frequency_response"]["results"]) == [HOSTILE]
    assert list(sections["regulariser"]["results"]) == [HOSTILE]
    assert "plain: loss cross_entropy, weight decay 0.0005" in sections["loss_landscape"]["caption"]
    spectrum = torch.tensor(sections["hessian_spectrum"]["results"]["plain"]["eigenvalues"])
    assert found["summary"]["plain"]["largest eigenvalue"] == pytest.approx(float(spectrum.max()))


def test_the_spectrum_is_that_of_the_trained_weights(study: Path, tmp_path: Path) -> None:
    from sfumato.data import TensorLoader, load_data
    from sfumato.engine import load_network

    found = analyse([study], tmp_path, effort=SMALL, only=["hessian_spectrum"], show=False)
    trained = load_network(find_runs([study])[0]["plain"])
    loader = TensorLoader(
        load_data(DATA).train, 8, shuffle=True, mean=trained.facts.mean, std=trained.facts.std
    )
    expected = hessian_max_spectrum(
        trained.network, loader, batches=2, generator=torch.Generator().manual_seed(0)
    )
    values = found["sections"][0]["results"]["plain"]["eigenvalues"]
    torch.testing.assert_close(torch.tensor(values).double(), expected.eigenvalues)


def test_it_is_the_loss_that_was_trained(tmp_path: Path) -> None:
    """Its value at the weights, with mixed and mollified images, a history, and soft labels."""
    content = {
        "data": DATA,
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "augment": "fcr+mixup",
        "inputs": "mollify",
        "labels": "objectness",
        "train": {"epochs": 1, "batch_size": 20, "weight_decay": 0.0},
        "evaluate": {"resamples": 0},
    }
    analysed = read_analysed_run(
        run(parse(RunConfig, content), tmp_path, show=False).path, SMALL, None
    )
    first, again = (next(iter(analysed.batches)) for _ in range(2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    images, target = first
    assert target.shape == (8, 10)  # probabilities, of which none is certain
    assert float(target.max()) < 1
    assert not torch.equal(images, analysed.loader.batch(0)["image"])
    assert analysed.objective.startswith("loss cross_entropy, augment fcr+mixup, inputs mollify")
    with torch.no_grad():
        expected = -(target * analysed.network.eval()(images).log_softmax(1)).sum(1).mean()
        torch.testing.assert_close(
            analysed.loss(analysed.network(images), target), expected.to(torch.float32)
        )


def test_a_loss_with_a_history_is_told_the_samples(tmp_path: Path) -> None:
    content = {
        "data": DATA,
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "loss": {"name": "acls", "margin": 0.0, "condition": "ranking"},
        "train": {"epochs": 1, "batch_size": 20},
        "evaluate": {"resamples": 0},
    }
    analysed = read_analysed_run(
        run(parse(RunConfig, content), tmp_path, show=False).path, SMALL, None
    )
    loss = analysed.loss.loss
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    assert any(bool(value.any()) for value in before.values())  # of the training
    images, target = next(iter(analysed.batches))
    index = analysed.loader.batch(0)["index"]
    assert target[:, -1].tolist() == index.tolist()
    logits = analysed.network.eval()(images)
    expected = loss(logits, target[:, 0], index=index)
    torch.testing.assert_close(analysed.loss(logits, target), expected)
    torch.testing.assert_close(loss.state_dict(), before)


def train_tiny(folder: Path, **train: Any) -> Path:
    content = {
        "data": DATA,
        "model": {"name": "resnet", "depth": 8, "width": 4, "dropout": 0.5},
        "augment": "fcr",
        "train": {"epochs": 1, "batch_size": 20, **train},
        "evaluate": {"resamples": 0},
    }
    return run(parse(RunConfig, content), folder, show=False).path


def test_several_passes_are_averaged_as_in_training(tmp_path: Path) -> None:
    analysed = read_analysed_run(train_tiny(tmp_path, passes=3), SMALL, None)
    images, target = next(iter(analysed.batches))
    assert (len(images), len(target)) == (24, 8)
    assert analysed.objective.endswith("3 passes, weight decay 0.0005")
    network = analysed.network.train()
    torch.manual_seed(0)
    found = analysed.loss(network(images), target)
    torch.manual_seed(0)
    logits = mean_log_probability(network, analysed.loader.batch(0)["image"], samples=3)
    torch.testing.assert_close(found, F.cross_entropy(logits, target))
    by_hand = torch.stack([each.softmax(1) for each in network.eval()(images).split(8)]).mean(0)
    expected = F.nll_loss(by_hand.log(), target)
    torch.testing.assert_close(analysed.loss(network(images), target), expected)


def test_several_copies_are_averaged_as_in_training(tmp_path: Path) -> None:
    copies = {"count": 2, "estimator": "monte_carlo"}
    analysed = read_analysed_run(train_tiny(tmp_path, copies=copies), SMALL, None)
    images, target = next(iter(analysed.batches))
    assert target.tolist() == target[:8].tolist() * 2  # every sample twice, augmented in two ways
    assert not torch.equal(images[:8], images[8:])
    logits = analysed.network.eval()(images)
    likelihood = logits.softmax(1).gather(1, target[:, None]).view(2, 8).mean(0)
    torch.testing.assert_close(analysed.loss(logits, target), -likelihood.log().mean())


@pytest.mark.parametrize(
    ("train", "only"),
    [
        ({"passes": 2}, ["hessian_spectrum", "hessian_density", "loss_landscape"]),
        ({"copies": {"count": 2}}, ["hessian_spectrum"]),
        ({"sam": 0.05}, ["loss_landscape"]),
    ],
)
def test_what_trains_by_several_passes_is_analysed(
    tmp_path: Path, train: dict[str, Any], only: list[str]
) -> None:
    path = train_tiny(tmp_path / "runs", **train)
    found = analyse([path], tmp_path, effort=SMALL, only=only, show=False)
    assert [section["name"] for section in found["sections"]] == only
    (row,) = found["summary"].values()
    assert all(math.isfinite(value) for value in row.values())


def test_the_page_escapes_names(study: Path, tmp_path: Path) -> None:
    analyse([study], tmp_path, effort=SMALL, only=["frequency_response"], show=False)
    page = write_analysis_page(tmp_path).read_text()
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert "src='data:image/png;base64," in page


def test_bad_input(study: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown analysis 'hessian'; choose from"):
        analyse([study], tmp_path, only=["hessian"])
    with pytest.raises(FileNotFoundError, match=r"no config\.yaml"):
        analyse([tmp_path], tmp_path)
