"""`sfumato.evaluate`: a network that was trained anywhere has the numbers that a run has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sfumato
from sfumato._core.files import read_json
from sfumato.data import ArrayDataset, DataSplits, load_data, scenes
from sfumato.engine import RunConfig, load_network, parse, run
from sfumato.metrics import evaluate_predictions
from sfumato.models import resnet
from sfumato.predictions import DeepEnsemble, MCDropout
from sfumato.report import compare_methods, read_studies

DATA = {"name": "scenes", "train": 40, "validation": 30, "test": 40, "size": 16}
STATISTICS: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
FEW: dict[str, Any] = {"resamples": 20, "quiet": True}


@pytest.fixture(scope="module")
def splits() -> DataSplits:
    return load_data(DATA)


@pytest.fixture
def network() -> nn.Module:
    return resnet(8, num_classes=10, width=4, dropout=0.1)


def loader(data: ArrayDataset, *, standardised: bool = True) -> DataLoader[Any]:
    images = (data.images / 255 - 0.5) / 0.25 if standardised else data.images
    return DataLoader(TensorDataset(images, data.labels), batch_size=16)


def assert_same(first: Any, second: Any) -> None:
    """Equal plain data, up to the last digits of floating point."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == (
            pytest.approx(second, rel=1e-5, abs=2e-5) if isinstance(first, float) else second
        )


def test_numbers_are_those_of_the_run(tmp_path: Path, splits: DataSplits) -> None:
    evaluate = {"corruptions": ["fog"], "severities": [2], "temperature": True, "resamples": 20}
    config = {
        "data": DATA,
        "model": {"name": "resnet", "depth": 8, "width": 4},
        "train": {"epochs": 1, "batch_size": 20},
        "evaluate": evaluate,
    }
    directory = run(parse(RunConfig, config), tmp_path, show=False)
    trained = load_network(directory)
    result = sfumato.evaluate(
        trained.network,
        splits,
        corruptions=["fog"],
        severities=[2],
        temperature=True,
        mean=trained.facts.mean,
        std=trained.facts.std,
        **FEW,
    )
    assert_same(result, directory.metrics())


def test_loader_gives_the_numbers_of_the_set(splits: DataSplits, network: nn.Module) -> None:
    settings = {"corruptions": ["brightness"], "severities": [1], **STATISTICS, **FEW}
    of_set = sfumato.evaluate(network, splits.test, **settings)
    of_loader = sfumato.evaluate(network, loader(splits.test), **settings)
    del of_set["test"]["true_calibration_error"], of_set["test"]["true_ece"]  # of scenes alone
    del of_set["test"]["true_calibration_error_interval"], of_set["test"]["true_ece_interval"]
    assert_same(of_loader, of_set)


def test_bytes_stay_bytes(splits: DataSplits) -> None:
    """A model that takes uint8 gets uint8, corrupted or not, and may use `view`."""
    seen = set()

    def model(images: Tensor) -> Tensor:
        seen.add(images.dtype)
        return images.view(len(images), -1)[:, :10].float()

    bytes_loader = loader(splits.test, standardised=False)
    sfumato.evaluate(model, bytes_loader, corruptions=["fog"], severities=[1], **FEW)
    assert seen == {torch.uint8}


def test_modes_and_random_state_are_as_before(splits: DataSplits, network: nn.Module) -> None:
    network.train()
    frozen = next(each for each in network.modules() if isinstance(each, nn.BatchNorm2d)).eval()
    before = torch.random.get_rng_state()
    sfumato.evaluate(network, splits.test, ensemble=2, **FEW)
    assert network.training
    assert not frozen.training
    assert bool((torch.random.get_rng_state() == before).all())


def test_deep_ensemble_averages_probabilities(splits: DataSplits) -> None:
    members = [resnet(8, num_classes=10, width=4).eval() for _ in range(3)]
    result = sfumato.evaluate(members[0], splits.test, ensemble=members[1:], **FEW)
    with torch.no_grad():
        probs = [member(splits.test.images / 255).softmax(1) for member in members]
    expected = evaluate_predictions(probs=sum(probs[:2]) / 2, target=splits.test.labels)
    assert result["ensemble"]["sizes"] == [1, 2, 3]
    assert result["ensemble"]["nll"][1] == pytest.approx(expected["nll"], abs=1e-5)
    assert result["ensemble"]["nll"][2] == pytest.approx(result["test"]["nll"], abs=1e-5)


def test_dropout_masks_by_size(splits: DataSplits, network: nn.Module) -> None:
    result = sfumato.evaluate(network, splits.test, ensemble=6, **FEW)
    assert result["ensemble"]["sizes"] == [1, 2, 4, 6]


def test_written_run_is_read(
    tmp_path: Path, network: nn.Module, sfumato: Callable[..., Any], splits: DataSplits
) -> None:
    from sfumato import evaluate

    first = evaluate(network, DATA, out=tmp_path / "nets" / "first", **FEW)
    evaluate(resnet(8, num_classes=10, width=4), loader(splits.test), out="second", **FEW)
    assert read_json(tmp_path / "nets/first/metrics.json") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nets", "second"]
    # The loader's images are known to be those of the set: they have the same labels.
    found = compare_methods(read_studies([tmp_path / "nets/first", tmp_path / "second"]))
    assert [row.baseline for row in found.rows] == [None, "first"]
    assert "test.ece" in found.row("second").differences
    assert sfumato("report", "nets/first", "second", "--out", "page").status == 0
    assert sfumato("compare", "nets/first", "second", "--resamples", "20").status == 0
    with pytest.raises(FileNotFoundError, match="keeps predictions and no network"):
        load_network(tmp_path / "second")
    with pytest.raises(FileExistsError, match="never overwritten"):
        evaluate(network, DATA, out="second", **FEW)


def test_prints_the_table_unless_quiet(
    splits: DataSplits, network: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    sfumato.evaluate(network, splits.test, **FEW)
    assert capsys.readouterr().out == ""
    sfumato.evaluate(network, splits.test, **{**FEW, "quiet": False})
    assert "ECE" in capsys.readouterr().out


def constant(value: Any) -> Callable[[Tensor], Any]:
    return lambda images: value if not callable(value) else value(len(images))


def data_of(images: Tensor, labels: Tensor | None = None) -> DataLoader[Any]:
    parts = [images] if labels is None else [images, labels]
    return DataLoader(TensorDataset(*parts), batch_size=4)


IMAGES, LABELS = torch.rand(8, 3, 16, 16), torch.arange(8) % 4
GOOD = constant(lambda count: torch.zeros(count, 4))


@pytest.mark.parametrize(
    ("model", "data", "settings", "message"),
    [
        ("resnet", data_of(IMAGES, LABELS), {}, "model must be an nn.Module or a function"),
        (nn.Linear, data_of(IMAGES, LABELS), {}, "got the class Linear"),
        (constant([1.0]), data_of(IMAGES, LABELS), {}, "it returned list"),
        (constant(torch.zeros(3, 4)), data_of(IMAGES, LABELS), {}, r"it returned \(3, 4\)"),
        (constant(lambda n: torch.zeros(n)), data_of(IMAGES, LABELS), {}, r"logits \(4, C\)"),
        (constant(lambda n: torch.zeros(n, 4).long()), data_of(IMAGES, LABELS), {}, "int64"),
        (constant(lambda n: torch.full((n, 4), torch.nan)), data_of(IMAGES, LABELS), {}, "finite"),
        (constant(lambda n: torch.zeros(n, 3)), data_of(IMAGES, LABELS), {}, r"in \[0, 3\)"),
        (constant(lambda n: torch.zeros(n, 4)), scenes.generate(4, size=16), {}, "has 10 classes"),
        (GOOD, data_of(IMAGES), {}, "got 1 things in a list. Metrics need the labels"),
        (GOOD, [{"image": IMAGES}], {}, r"a mapping with \['image'\]"),
        (GOOD, data_of(IMAGES, torch.zeros(8, 4)), {}, r"argmax\(1\)"),
        (GOOD, [(IMAGES, LABELS[:3])], {}, "8 images with 3 labels"),
        (GOOD, [], {}, "data is empty|test is empty"),
        (GOOD, TensorDataset(IMAGES, LABELS), {}, "Put a data set into"),
        (GOOD, "scnes", {}, "did you mean 'scenes'"),
        (GOOD, data_of(IMAGES, LABELS), {"corruptions": ["fogg"]}, "did you mean 'fog'"),
        (GOOD, data_of(IMAGES, LABELS), {"severities": [6]}, "^evaluate: severities must be from"),
        (GOOD, data_of(IMAGES, LABELS), {"severities": [1]}, "none are asked for: pass corrupt"),
        (GOOD, data_of(IMAGES, LABELS), {"mean": (0.5,) * 4}, "mean must have 3 entries"),
        (GOOD, DATA, {"std": [0.5, 0.5]}, "std must have 3 entries"),
        (GOOD, data_of(IMAGES, LABELS), {"std": 0}, r"std must be in \(0, inf\)"),
        (GOOD, data_of(IMAGES, LABELS), {"mean": [[0.5]]}, r"one for each channel, got \(1, 1\)"),
        (GOOD, data_of(IMAGES, LABELS), {"mean": "half"}, "mean must be numbers"),
        (GOOD, data_of(IMAGES, LABELS), {"temperature": True}, "pass validation="),
        (GOOD, data_of(3 * IMAGES, LABELS), {"corruptions": ["fog"]}, r"mean=\(...\), std"),
        (GOOD, data_of(IMAGES, LABELS), {"ensemble": 5}, "no active dropout"),
        (GOOD, data_of(IMAGES, LABELS), {"ensemble": 0}, "ensemble must be at least 1"),
        (GOOD, data_of(IMAGES, LABELS), {"ensemble": []}, "got none"),
        (GOOD, data_of(IMAGES, LABELS), {"ensemble": [GOOD]}, "would count twice"),
        (GOOD, data_of(IMAGES, LABELS), {"ensemble": True}, "a list of models"),
        (GOOD, data_of((255 * IMAGES).byte(), LABELS), STATISTICS, "leave mean and std out"),
        (GOOD, DATA, {"validation": data_of(IMAGES, LABELS)}, "validation set of its own"),
    ],
)
def test_refusals(model: Any, data: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        sfumato.evaluate(model, data, **{**FEW, **settings})


@pytest.mark.parametrize(
    "number",
    [0.5, [0.5], [0.5] * 3, torch.tensor([0.5] * 3), torch.tensor(0.5), np.full(3, 0.5)],
    ids=["float", "list of one", "list", "tensor", "scalar tensor", "array"],
)
def test_numbers_of_channels_in_any_form(number: Any, splits: DataSplits) -> None:
    """Images of a set are standardised with them, those of a loader are brought back."""
    network = resnet(8, num_classes=10, width=4)
    few = splits.test.subset(torch.arange(8))
    wanted: dict[str, Any] = {"corruptions": "fog", "severities": [1], "quiet": True}
    wanted["resamples"] = 0
    expected = sfumato.evaluate(network, few, mean=(0.5,) * 3, std=(0.5,) * 3, **wanted)
    assert list(expected["corrupted"]["names"]) == ["fog"]
    assert_same(sfumato.evaluate(network, few, mean=number, std=number, **wanted), expected)
    batches = DataLoader(TensorDataset((few.images / 255 - 0.5) / 0.5, few.labels), batch_size=8)
    found = sfumato.evaluate(network, batches, mean=number, std=number, **wanted)
    assert_same(found["corrupted"], expected["corrupted"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device that should be missing")
def test_a_missing_device_is_said() -> None:
    with pytest.raises(ValueError, match="device='cuda': PyTorch finds no CUDA device"):
        sfumato.evaluate(GOOD, data_of(IMAGES, LABELS), device="cuda", **FEW)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    with pytest.raises(NotADirectoryError, match="notes is a file, so there can be no folder"):
        sfumato.evaluate(GOOD, data_of(IMAGES, LABELS), out=tmp_path / "notes" / "run", **FEW)


def test_output_with_logits_inside_says_how_to_pick_them() -> None:
    class Output:
        logits = torch.zeros(4, 4)

    with pytest.raises(TypeError, match=r"lambda images: model\(images\).logits"):
        sfumato.evaluate(constant(Output()), data_of(IMAGES, LABELS), **FEW)


def test_predictors_say_that_they_give_probabilities(splits: DataSplits) -> None:
    """As if their logarithm had been given, on loaders and sets alike."""
    members = [resnet(8, num_classes=10, width=4, dropout=0.1) for _ in range(2)]
    ensemble = DeepEnsemble(members).eval()  # a function has no mode
    mean = evaluate(ensemble, loader(splits.test))
    assert_same(mean, evaluate(lambda images: ensemble(images).log(), loader(splits.test)))
    sampled = MCDropout(members[0], samples=5)
    for data in (loader(splits.test), splits.test):
        assert 0 < evaluate(sampled, data)["test"]["nll"] < 10
    both = DeepEnsemble([ensemble, sampled])
    assert torch.allclose(both(splits.test.images[:4] / 255).sum(1), torch.ones(4))
    assert evaluate(members[1], loader(splits.test), ensemble=[sampled])["ensemble"]
    with pytest.raises(ValueError, match="MCDropout gives probabilities: leave ensemble out"):
        evaluate(sampled, loader(splits.test), ensemble=3)
    wrong = nn.Sequential(members[0])
    wrong.returns_probabilities = True  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"don't sum to 1"):
        evaluate(wrong, loader(splits.test))


def test_a_softmax_is_refused_in_batches_of_one(splits: DataSplits) -> None:
    images = splits.test.images / 255
    single = DataLoader(TensorDataset(images, splits.test.labels), batch_size=1)
    model = nn.Sequential(resnet(8, num_classes=10, width=4), nn.Softmax(1))
    with pytest.raises(ValueError, match="the model returned probabilities"):
        evaluate(model, single)


def evaluate(model: Any, data: Any, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    return sfumato.evaluate(model, data, **{**FEW, **options})


def _stranger(data: ArrayDataset) -> DataLoader[Any]:
    noise = torch.rand(30, *data.images.shape[1:], generator=torch.Generator().manual_seed(0))
    labels = torch.full((30,), 99)  # of classes that the network does not know
    return DataLoader(TensorDataset(noise, labels), 16)


def test_strange_inputs_of_a_loader_and_of_a_set() -> None:
    splits = scenes.load(train=80, validation=20, test=40, size=16)
    network = resnet(8, num_classes=10, width=4)
    options: dict[str, Any] = {"resamples": 10, "quiet": True}
    sets = {"loader": _stranger(splits.test), "set": {"name": "noise", "size": 16, "test": 25}}
    result = sfumato.evaluate(network, splits, ood=sets, **options)
    assert set(result["ood"]) - {"shrinkage"} == {"loader", "set"}
    found = result["ood"]["loader"]["nearest_neighbours"]
    low, high = found["auroc_interval"]
    assert 0 <= low <= found["auroc"] <= high <= 1
    assert result["test"] == sfumato.evaluate(network, splits, **options)["test"]
    # By loaders throughout, the same numbers.
    loaders = [
        DataLoader(TensorDataset(each.images / 255, each.labels[:]), 32)
        for each in (splits.train, splits.test)
    ]
    again = sfumato.evaluate(network, loaders[1], ood=sets["loader"], train=loaders[0], **options)
    for score in ("energy", "mahalanobis"):
        expected = result["ood"]["loader"][score]["auroc"]
        assert again["ood"]["strange"][score]["auroc"] == pytest.approx(expected, abs=0.01)


def test_strange_inputs_have_a_shape_of_the_test_images() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(3, 2)

        def forward(self, images: Tensor) -> Tensor:
            return self.last(images.float().flatten(2).mean(2))

    def batches(*sizes: int) -> list[tuple[Tensor, Tensor]]:
        return [(torch.rand(5, 3, size, size), torch.arange(5) % 2) for size in sizes]

    options: dict[str, Any] = {"resamples": 0, "quiet": True}
    found = sfumato.evaluate(Pooled(), batches(8, 12), ood=batches(12), **options)
    assert found["ood"]["strange"]
    with pytest.raises(ValueError, match=r"images of \(3, 12, 12\), and data of \(3, 8, 8\)"):
        sfumato.evaluate(Pooled(), batches(8), ood=batches(8, 12), **options)


def test_texts_may_have_any_length() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(50, 8), nn.Linear(8, 2)

        def forward(self, words: Tensor) -> Tensor:
            return self.last(self.table(words).mean(1))

    texts, others = (
        [(torch.randint(1, 50, (8, length)), torch.arange(8) % 2)] for length in (7, 9)
    )
    found = sfumato.evaluate(Words(), texts, ood=others, resamples=0, quiet=True)
    assert found["ood"]["strange"]


def test_strange_inputs_of_averages_and_of_a_function() -> None:
    data = scenes.generate(40, size=16)
    network = resnet(8, num_classes=10, width=4, dropout=0.2)
    options: dict[str, Any] = {"resamples": 0, "quiet": True, "ood": _stranger(data)}
    masks = sfumato.evaluate(network, data, ensemble=3, **options)
    assert "mutual_information" in masks["ood"]["strange"]
    members = sfumato.evaluate(
        network, data, ensemble=[resnet(8, num_classes=10, width=4)], **options
    )
    assert members["ood"]["strange"]["mutual_information"]["auroc"] > 0
    plain = sfumato.evaluate(network.eval().forward, data, **options)
    assert "mahalanobis" not in plain["ood"]["strange"]


def test_strange_inputs_that_can_not_be() -> None:
    data = scenes.generate(40, size=16)
    network = resnet(8, num_classes=10, width=4)
    options: dict[str, Any] = {"resamples": 0, "quiet": True}
    with pytest.raises(ValueError, match="no features found: ExternalNetwork has no linear"):
        sfumato.evaluate(network.eval().forward, data, ood=_stranger(data), train=data, **options)
    with pytest.raises(ValueError, match="pass ood= too"):
        sfumato.evaluate(network, data, train=data, **options)
    with pytest.raises(ValueError, match="pass ood= and train="):
        sfumato.evaluate(network, data, ood=_stranger(data), features="head", **options)
    with pytest.raises(ValueError, match="is empty: there is nothing to evaluate"):
        sfumato.evaluate(network, data, ood=data.subset(torch.arange(0)), **options)
    with pytest.raises(ValueError, match="'test' is the name of a part"):
        sfumato.evaluate(network, data, ood={"test": _stranger(data)}, **options)
    larger = DataLoader(torch.rand(6, 3, 20, 20), 3)
    for other in ({"name": "noise", "size": 20, "test": 6}, larger):
        with pytest.raises(ValueError, match=r"ood strange.*\(3, 20, 20\).*data.*\(3, 16, 16\)"):
            sfumato.evaluate(network, data, ood=other, **options)
    with pytest.raises(TypeError, match="ood strange must give batches of images"):
        sfumato.evaluate(network, data, ood=["image.png"], **options)


@pytest.mark.parametrize("form", ["tensor", "alone", "one-hot labels", "mapping"])
def test_labels_of_strange_inputs_are_not_read(form: str) -> None:
    data = scenes.generate(40, size=16)
    network = resnet(8, num_classes=10, width=4)
    images = _stranger(data).dataset[:][0]
    batches: dict[str, Any] = {
        "tensor": DataLoader(images, 16),
        "alone": DataLoader(TensorDataset(images), 16),
        "one-hot labels": DataLoader(TensorDataset(images, torch.rand(len(images), 5)), 16),
        "mapping": [{"image": part, "path": ["a.png"] * len(part)} for part in images.split(16)],
    }
    loader = DataLoader(TensorDataset(data.images / 255, data.labels[:]), 16)
    options: dict[str, Any] = {"resamples": 0, "quiet": True}
    expected = sfumato.evaluate(
        network,
        loader,
        ood=DataLoader(TensorDataset(images, torch.zeros(len(images)).long()), 16),
        **options,
    )
    found = sfumato.evaluate(network, loader, ood=batches[form], **options)
    assert found["ood"] == expected["ood"]
