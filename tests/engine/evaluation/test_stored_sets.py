"""Stored benchmarks in their published layouts: the numbers are those of their images."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.corruptions import corrupt, perturb, write_corrupted
from sfumato.data import ArrayDataset, load_data
from sfumato.engine import ConfigError, RunConfig, parse, run
from sfumato.engine.config.sections import EvaluateConfig
from sfumato.engine.evaluation import altered
from sfumato.engine.evaluation.altered import open_stored
from sfumato.engine.preflight import check_runs
from sfumato.engine.training.checkpoint import load_network

Content = dict[str, Any]
NAMES = ["contrast", "fog"]


@pytest.fixture
def test_set(tiny: Content) -> ArrayDataset:
    return load_data(tiny["data"]).test


def _stored(folder: Path, data: ArrayDataset) -> str:
    write_corrupted(folder, data.images, data.labels, names=NAMES, seed=0)
    return str(folder)


def _sequences(folder: Path, data: ArrayDataset) -> str:
    folder.mkdir()
    for name in ("gaussian_noise", "rotate"):
        generator = torch.Generator().manual_seed(1)
        frames = perturb(data.images[:6], name, generator=generator)
        np.save(folder / f"{name}.npy", frames.permute(0, 1, 3, 4, 2).numpy())
    return str(folder)


def test_a_run_measures_stored_sets(
    tiny: Content, test_set: ArrayDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [_stored(tmp_path / "C", test_set), _sequences(tmp_path / "P", test_set)]
    train = {"epochs": 1, "batch_size": 32}
    made = {"resamples": 20, "corruptions": NAMES, "severities": [1, 4], "temperature": False}
    stored = {"resamples": 20, "severities": [1, 4], "stored": sets}
    runs = [
        run(parse(RunConfig, {**tiny, "train": train, "evaluate": each}), tmp_path, show=False)
        for each in (made, stored)
    ]
    first, second = (each.metrics() for each in runs)
    assert second["corrupted"]["names"] == ["fog", "contrast"]  # the benchmark's order
    order = [NAMES.index(name) for name in second["corrupted"]["names"]]
    for key in ("error", "nll", "ece"):
        expected = [first["corrupted"]["cells"][key][row] for row in order]
        np.testing.assert_allclose(second["corrupted"]["cells"][key], expected, rtol=1e-5)
    assert second["corrupted"]["rmsce_interval"] == pytest.approx(
        first["corrupted"]["rmsce_interval"]
    )

    network = load_network(runs[1].path)
    flips = []
    for name in ("gaussian_noise", "rotate"):
        frames = np.load(tmp_path / "P" / f"{name}.npy")
        changed = 0
        for video in frames:  # as the released code counts: noise against the first frame
            images = torch.from_numpy(video).permute(0, 3, 1, 2)
            found = network(images).argmax(1).tolist()
            before = [found[0]] * (len(found) - 1) if "noise" in name else found[:-1]
            changed += sum(a != b for a, b in zip(found[1:], before, strict=True))
        flips.append(changed / (len(frames) * (frames.shape[1] - 1)))
    cells = second["perturbed"]["cells"]
    assert [cells[name]["flip_rate"] for name in cells] == pytest.approx(flips)
    assert second["perturbed"]["flip_rate"] == pytest.approx(sum(flips) / 2)
    assert "relative_confidence" not in cells["rotate"]  # which needs labels

    monkeypatch.setattr(altered, "predict_altered", None)  # its cells are kept
    again = {**tiny, "train": train, "evaluate": {**stored, "resamples": 10}}
    third = run(parse(RunConfig, again), tmp_path, show=False).metrics()
    assert third["corrupted"]["cells"] == second["corrupted"]["cells"]


def _open(folder: Path | str, data: ArrayDataset, **options: Any) -> Any:
    wanted = EvaluateConfig(stored=str(folder), **options)
    return open_stored(wanted, classes=data.classes, image=tuple(data.images.shape[1:]))


def test_folders_and_limits(test_set: ArrayDataset, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-c"
    images, labels = test_set.images[:30], torch.arange(30) % 10
    wnids = tuple(f"n{number:08}" for number in range(10))
    options: Content = {"layout": "folders", "classes": wnids, "names": ["fog"]}
    write_corrupted(folder, images, labels, **options)
    found = _open(folder, test_set).corrupted
    assert found.labels.tolist() == sorted(labels.tolist())
    assert _open(folder, test_set, corrupted_images=10).corrupted.labels.tolist() == [*range(10)]
    (folder / "weather").mkdir()
    (folder / "fog").rename(folder / "weather" / "fog")  # as ImageNet-C's archives unpack
    assert _open(folder, test_set).corrupted.names == ("fog",)
    shutil.rmtree(folder / "weather" / "fog" / "3" / wnids[9])
    with pytest.raises(ValueError, match="fog 3 has other labels than fog 1"):
        _open(folder, test_set)
    fewer = ArrayDataset(images, labels, tuple("abcdefghijk"))
    with pytest.raises(ValueError, match="has 10 classes, and the training set has 11"):
        _open(folder, fewer, severities=[1])
    turned = ArrayDataset(images, labels, wnids[::-1])
    with pytest.raises(ValueError, match="not those of the training set in their order"):
        _open(folder, turned, severities=[1])
    sorted((folder / "weather" / "fog" / "1" / wnids[0]).iterdir())[0].write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"\.JPEG: unreadable image"):
        _open(folder, test_set, severities=[1])


def test_what_does_not_fit_is_refused(
    tiny: Content, test_set: ArrayDataset, tmp_path: Path
) -> None:
    folder = Path(_stored(tmp_path / "C", test_set))

    def refused(message: str, *sets: Path, **options: Any) -> None:
        evaluate = {"stored": [str(each) for each in sets or (folder,)], **options}
        with pytest.raises(ConfigError, match=message) as raised:
            check_runs([parse(RunConfig, {**tiny, "evaluate": evaluate})])
        assert "\n" not in str(raised.value)

    refused("evaluate.stored: .*absent: no such folder", tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    refused("holds no corrupted images", tmp_path / "empty")
    refused("has neither snow.npy nor snow/1/", corruptions=["snow"])
    refused("two sets of one kind", folder, folder)
    np.save(folder / "labels.npy", np.full(250, 10))
    refused("has a label 10, and the training set has 10 classes")
    np.save(folder / "labels.npy", np.array([{}] * 250))
    refused(r"labels\.npy: not readable as \.npy without pickle")
    (folder / "labels.npy").unlink()
    refused(r"labels\.npy: no such file")
    smaller = tmp_path / "smaller"
    images = corrupt(test_set.images, "fog", 1).permute(0, 2, 3, 1).numpy()[:, ::2]
    smaller.mkdir()
    np.save(smaller / "fog.npy", images)
    np.save(smaller / "labels.npy", test_set.labels[:10].numpy())
    refused(r"images of \(3, 8, 16\).* trained on \(3, 16, 16\)", smaller)
    np.save(smaller / "fog.npy", images[:49])
    refused(r"fog.npy must be uint8 \(5 N, H, W, C\), got uint8 \(49,", smaller)
    sequences = Path(_sequences(tmp_path / "P", test_set))
    np.save(sequences / "rotate.npy", np.zeros((2, 1, 16, 16, 3), np.uint8))
    refused("two or more frames", sequences)
    refused(r"snow\.npy: no such file", sequences, perturbations=["snow"])


def test_stored_needs_images_and_one_label_each(tiny: Content) -> None:
    texts = {"data": {"name": "newsgroups", "root": "x"}, "model": "gpcn"}
    with pytest.raises(ConfigError, match=r"evaluate.stored reads images, .*leave it out"):
        parse(RunConfig, {**texts, "evaluate": {"stored": "x"}})
    assert "stored" not in parse(RunConfig, tiny).model_dump(mode="json")["evaluate"]
