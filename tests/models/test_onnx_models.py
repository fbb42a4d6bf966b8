"""Networks in ONNX files."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sfumato
from sfumato.data import load_data
from sfumato.engine import ConfigError, RunConfig, load_network, parse, run
from sfumato.engine.config.networks import network_digest, onnx_network
from sfumato.engine.evaluation.analyses import analyse
from sfumato.models import OnnxModel
from sfumato.report import read_study

DATA = {"name": "scenes", "train": 40, "validation": 20, "test": 30, "size": 16}
WEIGHT = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32)


def write(
    path: Path,
    *,
    shape: tuple[Any, ...] = ("N", 3, 16, 16),
    softmax: bool = False,
    outputs: int = 1,
    classes: int = 10,
) -> Path:
    """The mean of each channel times a matrix, as an ONNX file."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        make.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        make.make_node("Flatten", ["pooled"], ["means"]),
        make.make_node("MatMul", ["means", "weight"], ["scores" if softmax else "logits"]),
    ]
    if softmax:
        nodes.append(make.make_node("Softmax", ["scores"], ["logits"]))
    made = [make.make_tensor_value_info("logits", kind, (shape[0], classes))]
    if outputs == 2:
        made.append(make.make_tensor_value_info("means", kind, (shape[0], 3)))
    graph = make.make_graph(
        nodes,
        "means",
        [make.make_tensor_value_info("images", kind, shape)],
        made,
        [onnx.numpy_helper.from_array(WEIGHT[:, :classes], "weight")],
    )
    opset = [make.make_opsetid("", 17)]
    onnx.save(make.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def expected(images: torch.Tensor) -> torch.Tensor:
    return images.mean((2, 3)) @ torch.from_numpy(WEIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["N", 4])
def test_logits_are_those_of_the_file(tmp_path: Path, batch: Any) -> None:
    model = OnnxModel(write(tmp_path / "net.onnx", shape=(batch, 3, 16, 16)))
    images = torch.rand(6, 3, 16, 16)  # a fixed batch of 4 is padded
    torch.testing.assert_close(model(images), expected(images), rtol=1e-5, atol=1e-5)
    assert list(model.parameters()) == []


@pytest.mark.slow
def test_probabilities_are_said(tmp_path: Path) -> None:
    file, images = write(tmp_path / "net.onnx", softmax=True), torch.rand(5, 3, 16, 16)
    probs = expected(images).softmax(1)
    found = OnnxModel(file, outputs="probabilities")(images)
    torch.testing.assert_close(found.softmax(1), probs, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="say outputs: probabilities"):
        OnnxModel(file)(images)


@pytest.mark.slow
def test_evaluate_takes_it(tmp_path: Path) -> None:
    test = load_data(DATA).test
    model = OnnxModel(write(tmp_path / "net.onnx"))
    settings: dict[str, Any] = {"resamples": 0, "quiet": True, "corruptions": ["fog"]}
    found, known = (sfumato.evaluate(each, test, **settings) for each in (model, expected))
    for split in ("test", "corrupted"):
        assert found[split]["nll"] == pytest.approx(known[split]["nll"], rel=1e-5)


@pytest.mark.slow
def test_refusals_of_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such ONNX file"):
        OnnxModel(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no network")
    with pytest.raises(ValueError, match="onnxruntime can't read it"):
        OnnxModel(tmp_path / "text.onnx")
    with pytest.raises(ValueError, match="expected one output"):
        OnnxModel(write(tmp_path / "two.onnx", outputs=2))
    model = OnnxModel(write(tmp_path / "net.onnx"))
    with pytest.raises(ValueError, match=r"takes images \(N, 3, 16, 16\), got \(2, 3, 8, 8\)"):
        model(torch.zeros(2, 3, 8, 8))
    with pytest.raises(TypeError, match=r"takes images of torch.float32, got torch.uint8"):
        model(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("shape", "channels", "message"),
    [
        ((1, 3, 16, 16), 3, r"takes images \(N, 3, 16, 16\)"),
        (("N", 3, "H", "W"), 3, "1 to 67,108,864 numbers"),
        (("N", "C", 16, 16), 10**13, "1 to 67,108,864 numbers"),
    ],
)
def test_an_image_is_bounded_before_it_is_made(
    tmp_path: Path, shape: tuple[Any, ...], channels: int, message: str
) -> None:
    """A run's `network.json` says the size; no machine has room for one of these."""
    file = write(tmp_path / "net.onnx", shape=shape)
    size = (10**7, 10**7) if channels == 3 else (16, 16)
    with pytest.raises(ValueError, match=message):
        onnx_network(str(file), num_classes=10, in_channels=channels, image_size=size)


def test_weights_in_any_other_file_are_in_the_digest(tmp_path: Path) -> None:
    file, other = write(tmp_path / "net.onnx"), tmp_path / "other.bin"
    alone = network_digest(file)
    onnx = pytest.importorskip("onnx")
    settings = {"save_as_external_data": True, "size_threshold": 0}
    onnx.save(onnx.load(file), file, location=other.name, **settings)
    before = network_digest(file)
    other.write_bytes(other.read_bytes()[::-1])
    assert len({alone, before, network_digest(file)}) == 3
    other.rename(tmp_path / "net.onnx.data")  # by its name alone it is part of the digest
    onnx.save(onnx.load(write(file)), file, location="net.onnx.data", **settings)
    assert network_digest(file) == _digest_by_names(file)


def _digest_by_names(file: Path) -> str:
    parts = [sha256(each.read_bytes()).hexdigest()[:16] for each in sorted(file.parent.iterdir())]
    return sha256(" ".join(parts).encode()).hexdigest()[:16]


def test_a_network_that_onnxruntime_cannot_compute(tmp_path: Path) -> None:
    file = write(tmp_path / "net.onnx", shape=(0, 3, 16, 16))
    with pytest.raises(ValueError, match=r"net\.onnx: onnxruntime can't compute it"):
        OnnxModel(file)(torch.zeros(1, 3, 16, 16))


def content(file: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data": DATA,
        "model": f"onnx:{file}",
        "standardise": {"mean": [0.0] * 3, "std": [1.0] * 3},
        "train": {"epochs": 0},
        "evaluate": {"resamples": 10},
        **changes,
    }


@pytest.mark.slow
def test_in_a_study(tmp_path: Path, sfumato: Callable[..., Any]) -> None:
    file = write(tmp_path / "net.onnx")
    config = parse(RunConfig, content(file))
    directory = run(config, tmp_path / "runs", show=False)
    test = load_data(DATA).test
    found = directory.read_predictions("test").logits
    torch.testing.assert_close(found, expected(test.images / 255), rtol=1e-4, atol=1e-5)
    assert read_study(directory.path).methods[0].runs
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(load_network(directory)(images), expected(images))
    with pytest.raises(ConfigError, match="neither gradients nor feature maps"):
        analyse([directory.path], tmp_path / "page", show=False)
    write(file, softmax=True)  # another content is another run
    changed = parse(RunConfig, content(file)).model
    assert changed != config.model
    (tmp_path / "net.onnx.data").write_bytes(b"weights")  # as torch.onnx writes them
    assert parse(RunConfig, content(file)).model not in (changed, config.model)
    with pytest.raises(ValueError, match="the file has changed"):
        load_network(directory)


def test_what_a_study_refuses(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    with pytest.raises(ConfigError, match="no such file"):
        parse(RunConfig, content(file))
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match="can't be trained"):
        parse(RunConfig, content(file, train={"epochs": 3}))
    with pytest.raises(ConfigError, match="need dropout"):
        parse(RunConfig, content(file, predict={"mc_dropout": 3}))
