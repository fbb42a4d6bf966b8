"""CaPE-bin: hand-worked values, bins by hand, state, edges."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from sfumato.labels.cape import BinAccuracy, CaPELoss, cape_loss, cape_penalty


def batch(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    entries = (shape[0], *shape[2:])
    target = torch.randint(shape[1], entries)
    return torch.randn(shape, dtype=dtype), target, torch.rand(entries, dtype=dtype)


def test_by_hand() -> None:
    # confidences 3/4 and 2/3
    logits = torch.tensor([[math.log(3), 0.0], [0.0, math.log(2)]], dtype=torch.float64)
    accuracy = torch.tensor([0.9, 0.5], dtype=torch.float64)
    first = -0.9 * math.log(3 / 4) - 0.1 * math.log(1 / 4)
    second = -0.5 * math.log(2 / 3) - 0.5 * math.log(1 / 3)
    value = cape_penalty(logits, torch.tensor([0, 1]), accuracy)
    assert value.item() == pytest.approx((first + second) / 2, rel=1e-12)
    loss = cape_loss(logits, torch.tensor([0, 1]), accuracy, weight=2.0)
    fidelity = -(math.log(3 / 4) + math.log(2 / 3)) / 2
    assert loss.item() == pytest.approx(fidelity + first + second, rel=1e-12)


def test_equals_binary_cross_entropy_of_the_confidence() -> None:
    logits, target, accuracy = batch(7, 5)
    confidence = logits.softmax(1).amax(1)
    expected = F.binary_cross_entropy(confidence, accuracy, reduction="none")
    torch.testing.assert_close(cape_penalty(logits, target, accuracy, reduction="none"), expected)


def test_least_where_confidence_is_the_accuracy() -> None:
    logits = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64, requires_grad=True)
    value = cape_penalty(logits, torch.tensor([1]), torch.tensor([0.75]))
    (gradient,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


def test_limits() -> None:
    logits, target, accuracy = batch(6, 4)
    fidelity = F.cross_entropy(logits, target)
    torch.testing.assert_close(cape_loss(logits, target, accuracy, weight=0.0), fidelity)
    torch.testing.assert_close(cape_loss(logits, target, torch.full((6,), torch.nan)), fidelity)


def test_gradcheck() -> None:
    logits, target, accuracy = batch(6, 4)
    target[2], accuracy[3] = -100, torch.nan
    assert gradcheck(lambda z: cape_loss(z, target, accuracy), logits.requires_grad_())


@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (2, 4, 3, 5)])
def test_nothing_valid_gives_zero(shape: tuple[int, ...]) -> None:
    logits, target, accuracy = batch(*shape, dtype=torch.float32)
    logits.requires_grad_()
    value = cape_loss(logits, torch.full_like(target, -100), accuracy)
    value.backward()
    assert value.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_dense_with_ignored_is_the_flat_batch_without_them() -> None:
    logits, target, accuracy = batch(2, 4, 3, 5)
    target[0, 1] = 255
    dense = logits.clone().requires_grad_()
    cape_loss(dense, target, accuracy, ignore_index=255).backward()
    flat = logits.movedim(1, -1).reshape(-1, 4).clone().requires_grad_()
    keep = target.flatten() != 255
    cape_loss(flat[keep], target.flatten()[keep], accuracy.flatten()[keep]).backward()
    assert dense.grad is not None
    torch.testing.assert_close(dense.grad.movedim(1, -1).reshape(-1, 4), flat.grad)


def test_half_precision_is_computed_in_float32() -> None:
    logits, target, accuracy = batch(8, 5)
    half = logits.to(torch.bfloat16).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = cape_loss(half, target, accuracy)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, cape_loss(half.detach().float(), target, accuracy))


@pytest.mark.parametrize("classes", [2, 4])
def test_huge_logits_keep_a_gradient(classes: int) -> None:
    """Where the confidence rounds to 1, log(1 - p) is still the distance of the others."""
    logits = torch.full((1, classes), -1e4)
    logits[0, 0] = 1e4
    logits.requires_grad_()
    value = cape_penalty(logits, torch.tensor([0]), torch.tensor([0.5]))
    value.backward()
    assert value.item() == pytest.approx(0.5 * (2e4 - math.log(classes - 1)))
    assert logits.grad is not None
    assert logits.grad[0, 0].item() == pytest.approx(0.5)


def test_torch_func() -> None:
    logits, target, accuracy = batch(6, 4)
    gradient = torch.func.grad(cape_loss)(logits, target, accuracy)
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(cape_loss(logits, target, accuracy), logits)
    torch.testing.assert_close(gradient, expected)


def test_bins_by_hand() -> None:
    """Five samples in two bins: the two least confident, then the three most confident."""
    bins = BinAccuracy(7, num_bins=2)
    index = torch.tensor([0, 1, 2, 3, 4])
    confidence = torch.tensor([0.9, 0.3, 0.8, 0.5, 0.7])
    correct = torch.tensor([True, False, True, True, False])
    bins.record(index, confidence, correct)
    assert bins.accuracy(index).isnan().all()  # nothing by itself
    bins.refresh()
    # sorted: 1 (F), 3 (T), 4 (F) | 2 (T), 0 (T)
    expected = torch.tensor([1.0, 1 / 3, 1.0, 1 / 3, 1 / 3])
    torch.testing.assert_close(bins.accuracy(index), expected)
    assert bins.accuracy(torch.tensor([5, 6])).isnan().all()  # never recorded
    bins.record(torch.tensor([1]), torch.tensor([0.4]), torch.tensor([True]))
    torch.testing.assert_close(bins.accuracy(index), expected)  # until the next refresh
    bins.refresh()
    torch.testing.assert_close(bins.accuracy(torch.tensor([1, 3])), torch.tensor([2 / 3, 2 / 3]))


def test_fewer_samples_than_bins() -> None:
    bins = BinAccuracy(2, num_bins=10)
    bins.refresh()
    bins.record(torch.tensor([0, 1]), torch.tensor([0.6, 0.9]), torch.tensor([False, True]))
    bins.refresh()
    assert torch.equal(bins.accuracy(torch.tensor([0, 1])), torch.tensor([0.0, 1.0]))


def test_state_is_checkpointed() -> None:
    loss = CaPELoss(3, num_bins=1)
    loss.bins.record(torch.arange(3), torch.rand(3), torch.tensor([True, False, True]))
    loss.bins.refresh()
    copy = CaPELoss(3, num_bins=1)
    copy.load_state_dict(loss.state_dict())
    torch.testing.assert_close(copy.bins.accuracy(torch.arange(3)), torch.full((3,), 2 / 3))


def test_training_records_and_the_end_of_an_epoch_refreshes() -> None:
    logits, target = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 0, 1])
    loss, index = CaPELoss(4, num_bins=1, ignore_index=1), torch.tensor([3, 0, 1])
    first = loss(logits, target, index)
    torch.testing.assert_close(first, F.cross_entropy(logits[:2], target[:2]))
    confidence = logits.softmax(1).amax(1)
    # The third sample is ignored, the one at position 2 never met.
    expected = torch.stack([confidence[1], torch.nan * first, torch.nan * first, confidence[0]])
    torch.testing.assert_close(loss.bins.confidences, expected.detach(), equal_nan=True)
    assert torch.equal(loss(logits, target, index), first)  # until the epoch ends
    enders = [module for module in loss.modules() if hasattr(module, "end_epoch")]
    assert enders == [loss.bins]  # a training loop finds it there
    loss.bins.end_epoch()
    torch.testing.assert_close(
        loss(logits, target, index),
        cape_loss(logits, target, torch.full((3,), 0.5), ignore_index=1),
    )
    with pytest.raises(TypeError, match="target must hold class indices for this loss"):
        loss(logits, F.one_hot(target).float(), index)


def test_module_is_function_and_changes_nothing_in_evaluation() -> None:
    logits, target, _ = batch(3, 4)
    loss = CaPELoss(5, num_bins=1, weight=3.0, ignore_index=1, reduction="sum")
    loss.bins.record(torch.arange(5), torch.rand(5), torch.arange(5) < 2)
    loss.bins.refresh()
    loss.eval()
    before = {name: tensor.clone() for name, tensor in loss.state_dict().items()}
    value = loss(logits, target, torch.tensor([4, 0, 2]))
    expected = cape_loss(
        logits, target, torch.full((3,), 0.4), weight=3.0, ignore_index=1, reduction="sum"
    )
    torch.testing.assert_close(value, expected)
    for name, tensor in loss.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_bad_input() -> None:
    logits, target = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        cape_loss(logits, target, torch.rand(3))
    with pytest.raises(TypeError, match="accuracy must be a tensor, got float"):
        cape_loss(logits, target, 0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight must be in"):
        cape_loss(logits, target, torch.rand(2), weight=-1.0)
    with pytest.raises(ValueError, match="num_bins must be at least 1"):
        CaPELoss(4, num_bins=0)
    with pytest.raises(ValueError, match="confidence and correct must have the shape of index"):
        BinAccuracy(4).record(torch.tensor([0]), torch.rand(2), torch.tensor([True]))
    with pytest.raises(ValueError, match="index must be in"):
        BinAccuracy(4).accuracy(torch.tensor([4]))


def test_label_maps_have_no_index_each() -> None:
    logits, target = torch.randn(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"shape \(2, 4, 4\), got \(2,\): .*one entry per sample"):
        CaPELoss(2)(logits, target, torch.arange(2))


@pytest.mark.slow
def test_compiled_is_eager() -> None:
    logits, target, accuracy = batch(16, 5, dtype=torch.float32)
    logits.requires_grad_()
    value = torch.compile(cape_loss, fullgraph=True)(logits, target, accuracy)
    eager = cape_loss(logits, target, accuracy)
    torch.testing.assert_close(value, eager)
    (gradient,) = torch.autograd.grad(value, logits)
    (expected,) = torch.autograd.grad(eager, logits)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_module_converts(dtype: torch.dtype) -> None:
    samples = 9000  # in float16 a count would stop growing at 2,048
    index = torch.arange(samples)
    logits, target = torch.eye(3).repeat(samples // 3, 1), index % 3
    loss = CaPELoss(samples, num_bins=2).to(dtype)
    for _ in range(2):
        value = loss(logits.to(dtype), target, index)
        loss.bins.end_epoch()
    assert value.isfinite()
    assert torch.equal(loss.bins.accuracy(index), torch.ones(samples))


def test_an_ignored_sample_keeps_what_was_noted() -> None:
    loss = CaPELoss(2, num_bins=1)
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    loss(logits, torch.tensor([0, 1]), torch.tensor([0, 1]))
    before = loss.bins.confidences.clone()
    loss(2 * logits, torch.tensor([0, -100]), torch.tensor([0, 1]))
    assert loss.bins.confidences[1] == before[1]
    assert loss.bins.confidences[0] != before[0]
