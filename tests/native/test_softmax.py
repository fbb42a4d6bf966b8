"""The compiled passes over logits, against the same in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sfumato._native as native
import sfumato.functional as SF
from sfumato._native.deposit import can_deposit
from sfumato._native.softmax import (
    Coefficients,
    can_pass_over,
    softmax_gradient,
    softmax_summary,
)
from sfumato.metrics.samples import score

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled kernels here")

SHAPES = [(1, 2, 1), (5, 7, 3), (3, 1000, 1), (130, 33, 1), (2, 21, 300), (3, 40, 129)]
LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross entropy": SF.cross_entropy_loss,
    "label smoothing": partial(SF.cross_entropy_loss, smoothing=0.1),
    "focal": SF.focal_loss,
    "flsd": SF.flsd_loss,
    "ecp": SF.ecp_loss,
    "mbls": partial(SF.mbls_loss, margin=2.0),
    "acls": partial(SF.acls_loss, margin=2.0),
    "acls gradient": partial(SF.acls_loss, margin=2.0, form="gradient"),
    "acls released": partial(SF.acls_loss, margin=2.0, form="released"),
    "mdca": SF.mdca_loss,
    "mmce": SF.mmce_loss,
}


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr("sfumato._native.library", lambda: None)


def draw(
    shape: tuple[int, int, int], dtype: torch.dtype, *, is_last: bool = False
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, dtype=dtype, generator=generator) * 5
    if is_last:
        logits = logits.transpose(1, 2).contiguous().transpose(1, 2)
    label = torch.randint(0, shape[1], (shape[0], 1, shape[2]), generator=generator)
    return logits, label


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
class TestAgainstPyTorch:
    def test_summary(self, shape: tuple[int, int, int], dtype: torch.dtype, is_last: bool) -> None:
        logits, label = draw(shape, dtype, is_last=is_last)
        predicted = torch.empty_like(label)
        found = softmax_summary(logits, label, 6.0, predicted=predicted)
        top = logits.amax(1, keepdim=True)
        x = logits - top
        over = (x + 6).clamp(max=0)
        expected = {
            "top": top,
            "low": x.amin(1, keepdim=True),
            "normaliser": x.exp().sum(1, keepdim=True),
            "entropy": (x * x.exp()).sum(1, keepdim=True),
            "sum": x.sum(1, keepdim=True),
            "label": x.gather(1, label),
            "top_ties": (x == 0).sum(1, keepdim=True).to(dtype),
            "low_ties": (x == x.amin(1, keepdim=True)).sum(1, keepdim=True).to(dtype),
            "number": (x < -6).sum(1, keepdim=True).to(dtype),
            "excess": over.sum(1, keepdim=True),
            "squares": over.square().sum(1, keepdim=True),
        }
        assert found.beyond is not None
        values = {**found._asdict(), **found.beyond._asdict()}
        for name, value in expected.items():
            torch.testing.assert_close(values[name], value, msg=name)
        assert torch.equal(predicted, logits.argmax(1, keepdim=True))

    def test_gradient(self, shape: tuple[int, int, int], dtype: torch.dtype, is_last: bool) -> None:
        logits, label = draw(shape, dtype, is_last=is_last)
        summary = softmax_summary(logits, label, 6.0)
        made = Coefficients(*torch.randn(8, *label.shape, dtype=dtype).unbind(0))
        out = torch.empty_like(logits)
        softmax_gradient(logits, label, summary.top, made, low=summary.low, margin=6.0, out=out)
        x = logits - logits.amax(1, keepdim=True)
        expected = (made.factor + made.entropic * x) * x.exp() + made.shift
        expected = expected + (x < -6) * (made.beyond + made.excess * (x + 6))
        expected = expected + (x == 0) * made.at_top + (x == summary.low) * made.at_low
        expected = expected.scatter_add(1, label, made.at_label)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(6, 9), (4, 50), (3, 5, 4, 6)])
def test_losses_are_the_same_with_and_without(
    name: str, shape: tuple[int, ...], without_kernels: Callable[[], None]
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(shape, dtype=torch.float64, generator=generator) * 4
    logits[0, :2] = 9.0  # a tie at the top
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)
    target.view(-1)[1] = -100

    def evaluate() -> tuple[Tensor, Tensor]:
        leaf = logits.clone().requires_grad_()
        loss = LOSSES[name](leaf, target)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    with_kernels = evaluate()
    without_kernels()
    for found, expected in zip(with_kernels, evaluate(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=70),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_row_of_logits(row: list[float], dtype: torch.dtype) -> None:
    logits = torch.tensor([row], dtype=dtype, requires_grad=True)
    loss = SF.cross_entropy_loss(logits, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([0]))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0])


class TestSpecialValues:
    @pytest.mark.parametrize("shape", [(3, 5), (3, 70), (3, 5, 2, 2)])
    def test_nan_stays_nan(self, shape: tuple[int, ...]) -> None:
        logits = torch.zeros(shape)
        logits.view(-1)[1] = float("nan")
        target = torch.zeros(shape[0], *shape[2:], dtype=torch.long)
        assert SF.cross_entropy_loss(logits, target).isnan()
        assert SF.acls_loss(logits, target).isnan()
        assert SF.acls_penalty(logits, target).isnan()
        assert SF.margin_penalty(logits, target).isnan()

    def test_classes_masked_by_minus_infinity(self) -> None:
        logits = torch.tensor([[1.0, float("-inf"), 2.0]], requires_grad=True)
        loss = SF.ecp_loss(logits, torch.tensor([0]))
        loss.backward()
        assert loss.isfinite()
        assert logits.grad is not None
        assert logits.grad[0, 1] == 0

    @pytest.mark.parametrize("classes", [5, 70])
    def test_ignored_entries_with_minus_infinity_get_no_gradient(self, classes: int) -> None:
        logits = torch.zeros(2, classes)
        logits[1, 1] = float("-inf")
        logits.requires_grad_()
        SF.mbls_loss(logits, torch.tensor([0, -100])).backward()
        assert logits.grad is not None
        assert not logits.grad[1].any()

    def test_tiny_probabilities_are_flushed_and_the_mode_is_restored(self) -> None:
        logits = torch.tensor([[0.0, -100.0]], requires_grad=True)
        SF.cross_entropy_loss(logits, torch.tensor([0])).backward()
        assert logits.grad is not None
        assert logits.grad.tolist() == [[0.0, 0.0]]
        assert torch.tensor(1e-40).mul(1.0).item() > 0  # denormals work outside


class TestLayouts:
    def test_rows_with_gaps(self) -> None:
        wide = torch.randn(40, 50, dtype=torch.float64)
        target = torch.randint(0, 20, (40,))
        view = wide[:, :20].detach().requires_grad_()
        copy = wide[:, :20].contiguous().requires_grad_()
        for loss in (SF.acls_loss, SF.mdca_loss, SF.mmce_loss):
            first = torch.autograd.grad(loss(view, target), view)[0]
            second = torch.autograd.grad(loss(copy, target), copy)[0]
            torch.testing.assert_close(first, second)

    def test_strange_strides_are_left_to_pytorch(self) -> None:
        logits, label = torch.randn(4, 6, 8)[:, ::2, ::2], torch.zeros(4, 1, 4, dtype=torch.long)
        assert not can_pass_over(logits, label)
        assert can_pass_over(logits.contiguous(), label)

    def test_half_precision_is_left_to_pytorch(self) -> None:
        label = torch.zeros(2, 1, 1, dtype=torch.long)
        assert not can_pass_over(torch.zeros(2, 3, 1, dtype=torch.bfloat16), label)

    @pytest.mark.parametrize("name", LOSSES)
    def test_labels_with_gaps(self, name: str) -> None:
        logits = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
        table = torch.stack([torch.arange(8) % 5, torch.full((8,), 10**6)], 1)
        first, second = (
            torch.autograd.grad(LOSSES[name](logits, target), logits)[0]
            for target in (table[:, 0], table[:, 0].contiguous())
        )
        assert torch.equal(first, second)

    def test_out_of_another_layout(self) -> None:
        logits, label = draw((2, 3, 4), torch.float32)
        summary = softmax_summary(logits, label)
        out = torch.empty(2, 4, 3).transpose(1, 2)
        with pytest.raises(ValueError, match="out has strides"):
            softmax_gradient(logits, label, summary.top, Coefficients(), out=out)


class TestOtherTypesAndDevices:
    def test_labels_on_another_device(self) -> None:
        target = torch.zeros(2, dtype=torch.long, device="meta")
        assert not can_pass_over(torch.zeros(2, 3, 1), target.view(2, 1, 1))
        with pytest.raises(RuntimeError, match="meta"):
            SF.acls_loss(torch.zeros(2, 3), target)

    def test_default_device(self) -> None:
        probs, target = torch.tensor([[0.2, 0.8]]), torch.tensor([1])
        with torch.device("meta"):
            found = score(probs, target)
        assert found.correct.device.type == "cpu"
        assert found.correct.tolist() == [True]

    def test_sums_of_another_type(self) -> None:
        confidence = torch.ones(3)
        assert can_deposit(confidence, torch.zeros(5, 2, dtype=torch.float64))
        assert not can_deposit(confidence, torch.zeros(5, 2))

    def test_coefficients_of_another_type(self) -> None:
        logits, label = draw((2, 3, 4), torch.float32)
        top = softmax_summary(logits, label).top
        found, expected = torch.empty_like(logits), torch.empty_like(logits)
        factor = torch.rand(top.shape, dtype=torch.float64)
        softmax_gradient(logits, label, top, Coefficients(factor), out=found)
        softmax_gradient(logits, label, top, Coefficients(factor.float()), out=expected)
        assert torch.equal(found, expected)


class TestLibrary:
    def test_the_environment_turns_it_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_NATIVE", "0")
        assert native.library.__wrapped__() is None

    def test_a_library_of_other_sources_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native, "sources_id", lambda folder: "another")
        assert native.library.__wrapped__() is None

    def test_a_missing_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native.ctypes, "CDLL", _refuse)
        assert native.library.__wrapped__() is None

    def test_a_lower_level_where_the_best_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernels = native.library()
        assert kernels is not None
        level = Path(kernels._name).stem.removeprefix("kernels-")
        capability = torch.backends.cpu.get_cpu_capability()
        monkeypatch.setattr(native, "_LEVELS", {capability: ("missing", level)})
        found = native.library.__wrapped__()
        assert found is not None
        assert found._name == kernels._name

    def test_threads_are_woken_for_large_tensors_only(self) -> None:
        assert native.threads(100) == 1
        assert native.threads(1 << 30) == torch.get_num_threads()


def _refuse(path: str) -> None:
    raise OSError(path)


def test_labels_out_of_range_never_reach_the_kernels() -> None:
    probs = torch.full((2, 3), 1 / 3)
    for target in ([0, 3], [-1, 0]):
        with pytest.raises(ValueError, match="target"):
            score(probs, torch.tensor(target), validate=False)
        with pytest.raises(ValueError, match="target"):
            SF.acls_loss(probs, torch.tensor(target))
