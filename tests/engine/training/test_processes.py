"""Several processes that train one network see and do what one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric

from sfumato._core.seeds import fold_seed
from sfumato.data import TensorLoader, channel_statistics, load_data
from sfumato.engine import RunConfig, RunDirectory, fingerprint, load_checkpoint, parse
from sfumato.engine.tasks.classify import Setup, build_trainer
from sfumato.engine.training.checkpoint import Checkpoint
from sfumato.engine.training.steps import LabelStep, SharedStream

# In double precision, so that a single pair of samples that differs can be told from rounding.
RECIPE: dict[str, Any] = {
    "data": {"name": "scenes", "train": 37, "validation": 5, "test": 5, "size": 16},
    "model": {"name": "resnet", "depth": 8, "width": 4, "norm": "group"},
    "train": {"epochs": 2, "batch_size": 16, "precision": "64-true", "accelerator": "cpu"},
}
METHODS: dict[str, dict[str, Any]] = {
    "history of samples": {"loss": "crl"},
    "history of samples as a condition": {"loss": {"name": "acls", "condition": "ranking"}},
    "accuracy of bins": {"loss": {"name": "cape", "num_bins": 3}},
    "pairs of a batch": {"loss": "mmce"},
    "mixup, mean of a batch": {"augment": "fcr+mixup", "loss": "mdca"},
    "cutmix": {"augment": "fcr+cutmix"},
    "ricap": {"augment": "fcr+ricap"},
    "mollification": {"inputs": "mollify"},
    "policy, drawn for each sample": {"augment": "fcr+augmix"},
    "copies": {
        "augment": "fcr+mixup",
        "train": {**RECIPE["train"], "copies": {"count": 2, "estimator": "monte_carlo"}},
    },
    "two passes a step, and an average": {
        "augment": "fcr+mixup",
        "train": {**RECIPE["train"], "sam": 0.1, "ema": 0.9, "best": "scaled_nll"},
    },
    "mollified mixture of crops with labels of their own": {
        "augment": {"name": "resized_crop", "mixing": "cutmix", "rotation": 10.0},
        "labels": "objectness",
        "inputs": "mollify",
    },
}


def _train(fabric: Fabric, folder: Path) -> None:
    data = load_data(RECIPE["data"])
    statistics = channel_statistics(data.train.images)
    for number, method in enumerate(METHODS.values()):
        config = parse(RunConfig, {**RECIPE, **method})
        directory = RunDirectory(folder / str(number))
        build_trainer(Setup(fabric, config, directory, *statistics), data).fit()


def _fabric(devices: int) -> Fabric:
    strategy = "ddp_spawn" if devices > 1 else "auto"
    return Fabric(accelerator="cpu", devices=devices, strategy=strategy, precision="64-true")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Checkpoint, Checkpoint]]:
    """Each method trained by one process and by two."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    _train(_fabric(1), one)
    _fabric(2).launch(_train, two)
    found = {}
    for number, name in enumerate(METHODS):
        ours, theirs = (load_checkpoint(root / str(number) / "checkpoint") for root in (one, two))
        assert ours is not None
        assert theirs is not None
        found[name] = (ours, theirs)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_train_what_one_trains(
    trained: dict[str, tuple[Checkpoint, Checkpoint]], method: str
) -> None:
    one, two = trained[method]
    for name, weights in one.model.items():
        torch.testing.assert_close(two.model[name], weights, rtol=0, atol=1e-9, msg=name)
    assert one.loss.keys() == two.loss.keys()
    assert all(torch.equal(one.loss[name], two.loss[name]) for name in one.loss)


def test_a_shared_stream_leaves_the_global_one_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(0)
    undisturbed = torch.rand(2)
    torch.manual_seed(0)
    stream = SharedStream(1, torch.device("cpu"))
    before = torch.rand(1)
    with stream.drawing():
        first = torch.rand(2)
    after = torch.rand(1)
    with stream.drawing():
        second = torch.rand(1)
    assert torch.equal(torch.cat([first, second]), expected)
    assert torch.equal(torch.cat([before, after]), undisturbed)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_takes_nothing_from_the_stream_of_the_inputs(dropout: float) -> None:
    seen: list[torch.Tensor] = []

    def inputs(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(torch.rand(3))
        return images, target

    fabric = Fabric(accelerator="cpu", devices=1)
    data = load_data(RECIPE["data"])
    loader = TensorLoader(data.train, batch_size=16, shuffle=True, seed=0)
    step = LabelStep(fabric, torch.nn.CrossEntropyLoss(), loader, 0, inputs)
    masks = torch.nn.Dropout(dropout)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10), masks)
    for number, batch in enumerate(loader):
        step(network, number, step.prepare(number, batch))
    with torch.random.fork_rng():
        torch.manual_seed(fold_seed(0, "epoch", 0, 0))
        expected = [torch.rand(3) for _ in seen]
    assert len(seen) == 3
    assert all(torch.equal(*pair) for pair in zip(seen, expected, strict=True))


def test_a_run_whose_numbers_changed_has_a_new_name() -> None:
    names = [parse(RunConfig, {**RECIPE, **method}) for method in METHODS.values()]
    assert [each.streams for each in names] == [None] * 4 + [2] * 4 + [None, 2, 2, 2]
    assert "streams" not in names[0].model_dump()
    again = parse(RunConfig, names[4].model_dump(mode="json"))
    assert fingerprint(again) == fingerprint(names[4])
