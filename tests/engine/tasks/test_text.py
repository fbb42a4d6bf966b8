"""Runs on texts: the loops of images carry tokens."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from sfumato.engine import ConfigError, RunConfig, RunDirectory, load_network, parse, run
from sfumato.engine.evaluation.analyses import Effort, analyse
from sfumato.engine.preflight import check_runs
from sfumato.engine.timing import Rehearsal

Content = dict[str, Any]
TOPICS = {"ice": "puck goal skate rink", "road": "wheel brake gear fuel", "sky": "moon orbit probe"}


@pytest.fixture
def texts(tmp_path: Path) -> Content:
    """Plain data for a run on 60 texts of three topics, with word vectors."""
    draw = random.Random(0)
    for topic, words in TOPICS.items():
        folder = tmp_path / "texts" / topic
        folder.mkdir(parents=True)
        for number in range(20):
            chosen = [
                draw.choice(f"{words} the of and".split()) for _ in range(draw.randint(2, 30))
            ]
            (folder / f"{number}.txt").write_text(f"{words.split()[number % 3]} {' '.join(chosen)}")
    lines = [
        f"{word} {' '.join(str(draw.gauss(0, 1)) for _ in range(5))}"
        for word in " ".join(TOPICS.values()).split()
    ]
    (tmp_path / "vectors.txt").write_text("\n".join(lines))
    return {
        "data": {
            "name": "text_folder",
            "root": str(tmp_path / "texts"),
            "embeddings": str(tmp_path / "vectors.txt"),
        },
        "model": {"name": "gpcn", "width": 8, "dropout": 0.1},
        "train": {
            "epochs": 4,
            "batch_size": 8,
            "optimizer": "adam",
            "learning_rate": 0.02,
            "schedule": "constant",
        },
        "evaluate": {"resamples": 20, "temperature": True},
    }


class _StoppedError(Exception):
    """In place of a kill."""


def _stop_after(steps: int, config: RunConfig, root: Path) -> None:
    left = iter(range(steps))

    def stop(*_: Any) -> None:
        if next(left, None) is None:
            raise _StoppedError

    handle = register_optimizer_step_post_hook(stop)
    try:
        with pytest.raises(_StoppedError):
            run(config, root, show=False)
    finally:
        handle.remove()


def test_a_run_learns_resumes_and_is_loaded(texts: Content, tmp_path: Path) -> None:
    """With CRL, which remembers each text by its index; interrupted in its third epoch."""
    config = parse(RunConfig, {**texts, "loss": "crl", "predict": {"mc_dropout": 3}})
    whole = run(config, tmp_path / "whole", show=False)
    _stop_after(12, config, tmp_path / "stopped")
    stopped = run(config, tmp_path / "stopped", show=False)
    assert stopped.metrics() == whole.metrics()
    ours, theirs = stopped.predictions("test"), whole.predictions("test")
    assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    assert whole.metrics()["test"]["accuracy"] > 0.6
    assert "temperature" in whole.metrics()["scaled"]

    network = load_network(whole.path)
    assert network.facts.vocabulary is not None
    assert network.classes == tuple(TOPICS)
    written = [path.read_text() for path in sorted((tmp_path / "texts").glob("*/*.txt"))]
    predicted = network(network.facts.vocabulary.encode(written)).argmax(1)
    assert (predicted == torch.arange(3).repeat_interleave(20)).float().mean() > 0.6
    assert bool(network.network.embedding.weight[2:].any())  # the vectors are with the weights


@pytest.mark.slow
def test_a_transformer_is_trained_planned_and_analysed(texts: Content, tmp_path: Path) -> None:
    model = {"name": "text_transformer", "width": 8, "heads": 2, "depth": 1}
    content = {**texts, "model": model, "train": {**texts["train"], "epochs": 1}}
    config = parse(RunConfig, content)
    costs = Rehearsal().costs(config)
    assert costs.epoch > 0
    done = run(config, tmp_path / "runs", show=False)
    effort = Effort(
        batch_size=8,
        spectrum_batches=1,
        density_probes=1,
        points=3,
        landscape_batches=1,
        passes=4,
    )
    found = analyse([done.path], tmp_path / "analysis", effort=effort, show=False)
    names = [section["name"] for section in found["sections"]]
    assert names == ["hessian_spectrum", "hessian_density", "loss_landscape", "loss_variance"]


def test_vectors_that_are_learnt_come_back(texts: Content, tmp_path: Path) -> None:
    data = {key: value for key, value in texts["data"].items() if key != "embeddings"}
    content = {**texts, "data": data, "train": {**texts["train"], "epochs": 1}}
    done = run(parse(RunConfig, content), tmp_path / "runs", show=False)
    (tmp_path / "texts").rename(tmp_path / "gone")  # a trained network needs no data
    network = load_network(RunDirectory(done.path))
    assert network.facts.vocabulary is not None
    assert network.facts.vocabulary.vectors is None
    assert network(torch.ones(1, 3, dtype=torch.int32)).shape == (1, 3)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"inputs": "mollify"}, "inputs mollifies pixels, and data text_folder has texts"),
        ({"augment": "basic"}, "augment changes pixels"),
        ({"standardise": {"mean": [0.5], "std": [0.2]}}, "standardise standardises pixels"),
        ({"labels": "objectness"}, "labels measures objects in images"),
        ({"objects": {"single": True}}, "objects paints over objects"),
        ({"evaluate": {"corruptions": "all"}}, "evaluate.corruptions corrupts pixels"),
        ({"evaluate": {"perturbations": ["tilt"]}}, "evaluate.perturbations perturbs pixels"),
        ({"evaluate": {"context": True}}, "evaluate.context paints over"),
        (
            {"model": {"name": "resnet", "depth": 8}},
            "model resnet takes images, and data text_folder has texts: choose gpcn or text_trans",
        ),
        (
            {"model": {"name": "gpcn", "smooth": True}},
            "smooth smooths feature maps of images, and model gpcn reads texts: leave it out",
        ),
        ({"model": {"name": "text_transformer", "blur_pool": True}}, "blur_pool smooths feature"),
        ({"model": {"name": "gpcn", "embeddings": "x"}}, "set from the data or the run"),
        ({"data": "scenes"}, "model gpcn reads texts, and data scenes has images"),
    ],
)
def test_what_needs_pixels_is_refused(texts: Content, section: Content, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(RunConfig, {**texts, **section})


def test_a_check_finds_vectors_of_another_width(texts: Content) -> None:
    config = parse(RunConfig, {**texts, "model": {"name": "gpcn", "embedding_width": 100}})
    with pytest.raises(ConfigError, match=r"^model gpcn: embedding_width is 100, but .* have 5"):
        check_runs([config])
    check_runs([parse(RunConfig, texts)])


def test_a_check_finds_missing_dropout(texts: Content) -> None:
    content = {**texts, "model": "gpcn", "predict": {"mc_dropout": 5}}
    with pytest.raises(ConfigError, match=r"predict.mc_dropout needs a network with dropout"):
        check_runs([parse(RunConfig, content)])
