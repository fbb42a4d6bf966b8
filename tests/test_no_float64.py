"""Everything that may run on a device without float64 (Apple's) does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric.accelerators import CPUAccelerator
from lightning_fabric.strategies import SingleDeviceStrategy
from torch import Tensor, nn

import sfumato.metrics as m
import sfumato.predictions as p
from sfumato._core.checks import DEVICES_WITHOUT, KeepsPrecision, to_float64
from sfumato._core.seeds import sample_beta
from sfumato.analysis import frequency_response, localisation_scores
from sfumato.augment import AugMix, AutoAugment, RandAugment, TrivialAugment
from sfumato.augment.policies import PixelPolicy
from sfumato.corruptions import CORRUPTIONS, PERTURBATIONS, corrupt, frequency_noise, perturb
from sfumato.engine import RunConfig, parse, run
from sfumato.engine.fabric import Fabric
from sfumato.engine.tasks import execution
from sfumato.inputs import Mollify
from sfumato.integrations import trainer_loss, trainer_scores
from sfumato.labels import ACLSLoss, linear_head_loss
from tests.contracts.test_losses import LOSSES, MODULES, end_epoch
from tests.contracts.test_metrics import CLASSES, METRICS
from tests.no_float64 import DEVICE, NarrowTensor, no_float64


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    with no_float64(monkeypatch) as device:
        yield device


def _batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(CLASSES, (6,), generator=generator)
    return 3 * torch.randn(6, CLASSES, generator=generator), target


def test_apples_devices_are_known() -> None:
    assert {"mps"} == DEVICES_WITHOUT


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda x: x.double(),
        lambda x: x.to("cpu", torch.float64),
        lambda x: torch.zeros(2, dtype=torch.float64, device=x.device),
        lambda x: torch.zeros(2, dtype=torch.float64).to(x.device),
        lambda x: x + torch.zeros(2),
        lambda x: torch.zeros(2, dtype=torch.float64).copy_(x) + x,
    ],
)
def test_the_device_refuses_what_apples_do(
    forbidden: Callable[[Tensor], Tensor], device: torch.device
) -> None:
    with pytest.raises((TypeError, RuntimeError), match=r"float64|operands"):
        forbidden(torch.ones(2, device=device))


def test_conversion_goes_to_the_processor(device: torch.device) -> None:
    found = to_float64(torch.ones(2, device=device))
    assert found.dtype == torch.float64
    assert found.device.type == "cpu"


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, device: torch.device) -> None:
    logits, target = _batch()
    extra = torch.rand(6, generator=torch.Generator().manual_seed(1))
    found = []
    for where in ("cpu", device):
        rows = logits.to(where).requires_grad_()
        value = LOSSES[name].call(rows, target.to(where), extra.to(where))
        value.backward()
        found.append((value.detach().cpu(), rows.grad.cpu()))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", MODULES)
def test_loss_modules(name: str, device: torch.device) -> None:
    """Two epochs with what a loss remembers, and its state dict, are those of the processor."""
    found = []
    for where in ("cpu", device):
        loss = MODULES[name]().to(where).train()
        values = []
        for epoch in range(2):
            logits, target = (each.to(where) for each in _batch(epoch))
            index = {"index": torch.arange(6).to(where)} if _takes_index(loss) else {}
            logits.requires_grad_()
            value = loss(logits, target, **index)
            value.backward()
            values += [value.detach().cpu(), logits.grad.cpu()]
            end_epoch(loss, logits.detach(), target)
        state = {key: tensor.cpu() for key, tensor in loss.state_dict().items()}
        found.append((values, state))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weight", [None, torch.linspace(0.5, 2.0, CLASSES)])
def test_linear_head(weight: Tensor | None, reduction: Any, device: torch.device) -> None:
    (hidden, target), found = _batch(), []
    matrix = torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(2))
    for where in ("cpu", device):
        loss = ACLSLoss(margin=1.0, class_weight=weight, reduction=reduction).to(where)
        tensors = [each.clone().to(where).requires_grad_() for each in (hidden, matrix)]
        value = linear_head_loss(*tensors, target.to(where), loss=loss, chunk=4)
        value.sum().backward()
        found.append([each.detach().cpu() for each in (value, *(x.grad for x in tensors))])
    torch.testing.assert_close(found[1], found[0])


def test_tokens_of_a_trainer(device: torch.device) -> None:
    words, target = torch.randn(2, 5, 4), torch.randint(0, 4, (2, 5))
    target[0, 1] = -100
    here, there = (
        trainer_scores(causal=True)(words.to(where), target.to(where)) for where in ("cpu", device)
    )
    torch.testing.assert_close({name: x.cpu() for name, x in there.items()}, here)
    count = (target[:, 1:] != -100).sum()
    compute, expected = trainer_loss(ACLSLoss(), causal=True), ACLSLoss(class_dim=-1)
    value = compute({"logits": words.to(device)}, target.to(device), count.to(device))
    torch.testing.assert_close(value.cpu(), expected(words[:, :-1], target[:, 1:]))


def _takes_index(loss: nn.Module) -> bool:
    return hasattr(loss, "history") or hasattr(loss, "bins")


@pytest.mark.parametrize("name", METRICS)
def test_metrics(name: str, device: torch.device) -> None:
    logits, target = _batch()
    entry, probs = METRICS[name], logits.softmax(1)
    expected = entry.function(probs, target)
    found = entry.function(probs.to(device), target.to(device))
    torch.testing.assert_close(found, expected, equal_nan=True)
    if "sample_weight" in inspect.signature(entry.function).parameters:
        one = torch.ones(len(target), device=device)
        found = entry.function(probs.to(device), target.to(device), sample_weight=one)
        torch.testing.assert_close(found, expected, equal_nan=True)
    if entry.metric is not None:
        metric = entry.metric().to(device)
        metric.update(probs.to(device), target.to(device))
        metric.reset()
        for _ in range(2):
            metric.update(probs.to(device), target.to(device))
        same = entry.metric()
        for _ in range(2):
            same.update(probs, target)
        torch.testing.assert_close(metric.compute(), same.compute(), equal_nan=True)


@pytest.mark.parametrize(
    "make",
    [
        partial(m.StreamingEvaluation, from_logits=True),
        partial(m.StreamingScoreSplit, from_logits=True),
        partial(m.Reliability, from_logits=True),
        partial(m.SignedCalibrationError, from_logits=True),
        partial(m.ClasswiseCalibrationError, CLASSES, binning="mass", from_logits=True),
    ],
)
def test_streams_of_several_numbers(make: Callable[[], Any], device: torch.device) -> None:
    logits, target = _batch()
    here, there = make(), make().to(device)
    here.update(logits, target)
    there.update(logits.to(device), target.to(device))
    torch.testing.assert_close(there.compute(), here.compute(), equal_nan=True)


def test_detections(device: torch.device) -> None:
    metric = m.DetectionCalibrationError(num_bins=4).to(device)
    metric.update(torch.tensor([0.9, 0.6]).to(device), torch.tensor([True, False]).to(device))
    assert float(metric.compute()) == pytest.approx(0.35)


def test_metrics_against_what_is_known(device: torch.device) -> None:
    probs = _batch()[0].softmax(1).to(device)
    assert float(m.true_calibration_error(probs, probs)) == 0
    assert float(m.calibration_floor(probs)) > 0
    assert float(m.mean_objectness_deviation(probs, probs.amax(1))) == 0
    assert m.evaluate_predictions(probs=probs, target=_batch()[1].to(device))["accuracy"] >= 0


@pytest.mark.parametrize(
    "score",
    [
        p.maximum_probability_score,
        p.maximum_logit_score,
        p.energy_score,
        p.generalised_entropy_score,
        lambda features: p.NeighbourDistance(2).fit(features).score(features),
        lambda features: p.MahalanobisDistance(1).fit(features, [0] * 6).score(features),
    ],
)
@pytest.mark.filterwarnings("ignore:a class has")
def test_scores_of_strange_inputs(score: Callable[[Tensor], Tensor], device: torch.device) -> None:
    logits = _batch()[0]
    torch.testing.assert_close(score(logits.to(device)).cpu(), score(logits))


@pytest.mark.parametrize("labels", ["smooth", "temper"])
def test_mollification(labels: Any, device: torch.device) -> None:
    images = torch.rand(8, 3, 8, 8).to(device)
    target = torch.arange(8).remainder(CLASSES).to(device)
    blurred, soft = Mollify(CLASSES, modes=(0.0, 0.5, 0.5), labels=labels)(images, target)
    assert blurred.device == soft.device == device
    assert blurred.dtype == soft.dtype == torch.float32


class _DeviceGenerator(torch.Generator):
    """A generator on the device without float64."""

    device = DEVICE


def test_beta_numbers_from_a_generator_of_the_device(device: torch.device) -> None:
    drawn = [sample_beta(5, 1.0, 2.0, generator=_DeviceGenerator().manual_seed(s)) for s in (0, 1)]
    again = sample_beta(5, 1.0, 2.0, generator=_DeviceGenerator().manual_seed(0))
    assert torch.equal(drawn[0], again)
    assert not torch.equal(*drawn)


def test_buffers_keep_their_precision(device: torch.device) -> None:
    module = KeepsPrecision()
    module.register_buffer("sums", torch.full((2,), 0.1, dtype=torch.float64))
    module.register_buffer("means", torch.full((2,), 0.1))
    module.register_buffer("count", torch.zeros((), dtype=torch.int64))
    for convert in (nn.Module.half, nn.Module.bfloat16, nn.Module.double, nn.Module.float):
        module = convert(module)
        assert module.sums.dtype == torch.float64
        assert module.means.dtype == torch.float32
    module = module.to(device, torch.float16)
    assert isinstance(module.means, NarrowTensor)
    assert module.means.dtype == torch.float32
    assert isinstance(module.count, NarrowTensor)
    assert module.sums.device.type == "cpu"
    assert module.sums.dtype == torch.float64
    assert torch.equal(module.sums, torch.full((2,), 0.1, dtype=torch.float64))


class _Accelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        """Accept every device."""


def _fabric(train: Any) -> Fabric:
    return Fabric(strategy=SingleDeviceStrategy(device=DEVICE, accelerator=_Accelerator()))


TRAIN = {"epochs": 1, "batch_size": 32}
CLASSIFIER = {
    "data": {"name": "scenes", "train": 64, "validation": 40, "test": 50, "size": 16},
    "model": {"name": "resnet", "depth": 8, "width": 4, "dropout": 0.1},
    "inputs": "mollify",
    "augment": "fcr+cutmix",
    "train": TRAIN,
    "evaluate": {"resamples": 20, "ensemble_sizes": [1, 2]},
}
STRANGE = {
    **CLASSIFIER,
    "inputs": None,
    "predict": {"mc_dropout": 2},
    "evaluate": {"resamples": 20, "ood": {"noise": {"name": "noise", "size": 16, "test": 12}}},
}
SIZED = {
    **CLASSIFIER,
    "inputs": None,
    "augment": "resized_crop",
    "labels": {"name": "objectness", "beta": 0.75},
    "evaluate": {"resamples": 20, "context": True},
}
SEGMENTER = {
    "task": "segment",
    "data": {
        "name": "scene_streams",
        "train": 24,
        "validation": 4,
        "test": 3,
        "test_frames": 4,
        "size": 16,
        "figures": 1,
    },
    "model": {"name": "unet", "width": 2, "depth": 2},
    "train": TRAIN,
    "evaluate": {"resamples": 20},
}


@pytest.mark.parametrize(
    "content",
    [CLASSIFIER, {**CLASSIFIER, "inputs": None, "loss": "cals"}, STRANGE, SIZED, SEGMENTER],
)
def test_runs(
    content: dict[str, Any], device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training, validation and evaluation."""
    monkeypatch.setattr(execution, "build_fabric", _fabric)
    done = run(parse(RunConfig, content), tmp_path, show=False)
    assert done.metrics()["test"]["nll"] > 0
    assert done.log()[0]["train_loss"] > 0


@pytest.mark.parametrize("policy", [RandAugment(), AutoAugment(), TrivialAugment(), AugMix()])
def test_policies(policy: PixelPolicy, device: torch.device) -> None:
    """The images are those of the processor."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (24, 3, 12, 12), generator=generator, dtype=torch.uint8)
    uniforms = torch.rand(24, policy.draws, generator=generator)
    there, here = (policy.apply(images.to(where), uniforms).cpu() for where in (device, "cpu"))
    assert torch.equal(there, here)


CHANGES = {
    **{name: partial(corrupt, name=name, severity=3) for name in CORRUPTIONS},
    **{f"frames of {name}": partial(perturb, name=name) for name in PERTURBATIONS},
    "band": partial(frequency_noise, frequency=1.0, equal_energy=True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_corruptions(name: str, device: torch.device) -> None:
    images = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    there, here = (
        CHANGES[name](images.to(where), generator=torch.Generator().manual_seed(0)).cpu()
        for where in (device, "cpu")
    )
    torch.testing.assert_close(there, here)


def test_frequency_response(device: torch.device) -> None:
    there, here = (frequency_response(nn.PReLU().to(where), size=8) for where in (device, "cpu"))
    assert torch.equal(there.amplitude, here.amplitude)


def test_localisation(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(3, 8, 8, generator=generator)
    boxes = torch.tensor([[[1.0, 1.0, 6.0, 5.0]]]).repeat(3, 1, 1)
    there, here = (
        localisation_scores(maps.to(where), boxes.to(where), thresholds=(0.3, 0.7))
        for where in (device, "cpu")
    )
    assert (there.iou, there.box_accuracy, there.pointing) == (
        here.iou,
        here.box_accuracy,
        here.pointing,
    )
