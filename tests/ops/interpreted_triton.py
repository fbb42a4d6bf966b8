"""The kernels of a GPU in Triton's interpreter, on small shapes: `test_softmax_triton` runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato import labels
from sfumato.labels import _entries
from sfumato.ops import softmax, softmax_triton
from sfumato.ops.softmax import FusedSoftmax, PlainSoftmax, softmax_summary, valid_entries
from tests.contracts.test_losses import LOSSES

if os.environ.get("TRITON_INTERPRET") != "1":  # doctests are looked for in every file
    pytest.skip("set TRITON_INTERPRET=1 before Triton is imported", allow_module_level=True)

NAMES = ("label", "top", "total", "entropy", "highest")
OF_MARGIN = ("range", "excess", "squares")
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(11, 5),
    "long rows": lambda: torch.randn(3, 300),
    "rows of several blocks": lambda: torch.randn(2, 9000),
    "columns": lambda: torch.randn(5, 11).t(),
    "words": lambda: torch.randn(3, 7, 5).movedim(-1, 1),
    "maps": lambda: torch.randn(2, 5, 4, 9),
    "maps of several blocks": lambda: torch.randn(2, 40, 3, 2),
    "channels last": lambda: torch.randn(3, 5, 4, 3).to(memory_format=torch.channels_last),
    "every second pixel": lambda: torch.randn(3, 5, 4, 6)[..., ::2],
}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the processor take the way of a GPU's."""
    monkeypatch.setattr("sfumato.ops.library.library", lambda: None)

    def is_on_gpu(logits: Tensor, *constants: Any) -> bool:
        plain = softmax.is_traced() or softmax._needs_autograd(logits, *constants)
        return logits.numel() > 0 and not plain

    monkeypatch.setattr(softmax, "_is_on_gpu", is_on_gpu)


def _batch(layout: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    logits = (LAYOUTS[layout]() * 3).to(dtype)
    logits[0, 0] = logits[0, 1]  # a tie
    target = torch.randint(0, logits.shape[1], logits.shape[:1] + logits.shape[2:])
    target.view(-1)[1] = -100
    return logits.requires_grad_(), target, torch.rand_like(logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["hard", "soft", "both", "none"])
@pytest.mark.parametrize("margin", [None, 2.0, "each"])
def test_kernel_equals_definition(
    margin: Any, kind: str, layout: str, dtype: torch.dtype, on_gpu: None
) -> None:
    logits, target, soft = _batch(layout, dtype)
    label = target if kind in ("hard", "both") else None
    shares = soft.detach() if kind in ("soft", "both") else None
    if margin == "each":
        margin = torch.linspace(0, 3, logits.shape[1], dtype=dtype)
    found = softmax_summary(logits, label, shares, margin=margin, ignore_index=-100)
    assert isinstance(found, FusedSoftmax)
    safe, valid = valid_entries(label, logits.shape[1], -100)
    expected = PlainSoftmax(logits, safe, shares, margin=margin, valid=valid)
    names = (NAMES if kind != "none" else NAMES[1:]) + (() if margin is None else OF_MARGIN)
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    sums = []
    for softmax_ in (found, expected):
        numbers = [getattr(softmax_, name) for name in names]
        weights = [torch.linspace(1, 2, n.numel(), dtype=dtype).view(n.shape) for n in numbers]
        sums.append(sum((n * w).sum() for n, w in zip(numbers, weights, strict=True)))
    for name in names:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **near)
    slopes = [torch.autograd.grad(total, logits)[0] for total in sums]
    torch.testing.assert_close(*slopes, **near)


@pytest.mark.parametrize("shape", [(6, 5), (2, 4, 2, 3)])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, shape: tuple[int, ...], on_gpu: None) -> None:
    """Values, gradients and second derivatives are those of plain operations."""
    torch.manual_seed(1)
    logits = (torch.randn(shape, dtype=torch.float64) * 3).requires_grad_()
    target = torch.randint(0, shape[1], shape[:1] + shape[2:])
    target.view(-1)[0] = -100
    extra = torch.rand(target.shape, dtype=torch.float64)

    def evaluate() -> tuple[Tensor, Tensor, Tensor]:
        value = LOSSES[name].call(logits, target, extra)
        (slope,) = torch.autograd.grad(value, logits, retain_graph=True)
        (again,) = torch.autograd.grad(value, logits, create_graph=True)
        (curve,) = torch.autograd.grad(again.square().sum(), logits)
        return value.detach(), slope, curve

    found = evaluate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax, "_is_on_gpu", lambda *_: False)
        expected = evaluate()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_float32_inside(dtype: torch.dtype) -> None:
    logits, target, _ = _batch("long rows", torch.float32)
    half = logits.detach().to(dtype)
    found = softmax_triton.softmax_numbers(half, target, None, None, 2.0, -100)
    expected = softmax_triton.softmax_numbers(half.float(), target, None, None, 2.0, -100)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    upstream = torch.ones_like(found)
    slopes = [
        softmax_triton.softmax_gradient(upstream, found, z, target, None, None, 2.0, -100)
        for z in (half, half.float())
    ]
    assert slopes[0].dtype == dtype
    torch.testing.assert_close(slopes[0], slopes[1].to(dtype))


class _Copies(TorchDispatchMode):
    """Notes the sizes of what is converted to another type."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_in_half_precision(
    name: str, dtype: torch.dtype, on_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a copy in float32, up to the rounding of the gradient; and without that copy."""
    monkeypatch.setattr(_entries, "reads_half", lambda _: True)
    torch.manual_seed(1)
    half = (torch.randn(6, 5, 7) * 3).to(dtype).requires_grad_()
    target, extra = torch.randint(0, 5, (6, 7)), torch.rand(6, 7)
    target[0] = -100
    found = []
    for logits in (half, half.detach().float().requires_grad_()):
        value = LOSSES[name].call(logits, target, extra)
        (slope,) = torch.autograd.grad(value, logits, retain_graph=True)
        (again,) = torch.autograd.grad(value, logits, create_graph=True)
        (curve,) = torch.autograd.grad(again.float().square().sum(), logits)
        assert slope.dtype == curve.dtype == logits.dtype
        found.append((value.detach(), slope.float(), again.detach().float(), curve.float()))
    torch.testing.assert_close(found[0][0], found[1][0])
    near = {"rtol": 2**-6, "atol": 2**-9}
    torch.testing.assert_close(found[0][1:], found[1][1:], **near)


@pytest.mark.parametrize("is_soft", [False, True])
@pytest.mark.parametrize("weight", [None, torch.linspace(0.5, 2.0, 5)])
@pytest.mark.parametrize("layout", ["words", "maps"])
def test_options_in_half_precision(
    layout: str, weight: Tensor | None, is_soft: bool, on_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_entries, "reads_half", lambda _: True)
    monkeypatch.setattr(softmax, "is_traced", lambda: False)  # by what counts the copies
    logits, target, soft = _batch(layout, torch.bfloat16)
    given = soft.detach().float() if is_soft else target
    wide = logits.detach().float().requires_grad_()
    with _Copies() as copies:
        value = labels.mbls_loss(logits, given, margin=2.0, class_weight=weight)
        (slope,) = torch.autograd.grad(value, logits)
    expected = labels.mbls_loss(wide, given, margin=2.0, class_weight=weight)
    torch.testing.assert_close(value, expected)
    (exact,) = torch.autograd.grad(expected, wide)
    torch.testing.assert_close(slope, exact.to(slope.dtype), rtol=2**-7, atol=1e-5)
    assert logits.numel() not in copies.sizes


# opcheck itself looks at the gradients of its copies, which are no leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_registration(kind: str) -> None:
    """Schema, fake tensors, autograd and AOT dispatch, static and dynamic."""
    logits, target, soft = _batch("maps", torch.float64)
    pair = (target, None) if kind == "hard" else (None, soft.detach())
    torch.library.opcheck(softmax_triton.softmax_numbers, (logits, *pair, None, 2.0, -100))
    with torch.no_grad():
        numbers = softmax_triton.softmax_numbers(logits, *pair, None, 2.0, -100)
    inputs = (torch.ones_like(numbers), numbers, logits.detach(), *pair, None, 2.0, -100)
    torch.library.opcheck(softmax_triton.softmax_gradient, inputs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_in_one_graph(dynamic: bool) -> None:
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        found = softmax_triton.softmax_numbers(logits, target, None, None, 2.0, -100)
        return (found[10] - found[0]).sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (6, 4):
        logits, target = torch.randn(rows, 5, requires_grad=True), torch.arange(rows) % 5
        slopes = [torch.autograd.grad(f(logits, target), logits)[0] for f in (loss, compiled)]
        torch.testing.assert_close(*slopes)


def test_a_label_that_is_no_class_is_loud(on_gpu: None) -> None:
    values = labels.cross_entropy_loss(torch.zeros(2, 3), torch.tensor([0, 3]), reduction="none")
    assert values.isnan().tolist() == [False, True]


def test_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose kernels disagree gets plain operations, and one warning."""
    here, wrong = torch.device("cpu"), softmax_triton.read_numbers
    softmax._is_trusted.cache_clear()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        assert softmax._is_trusted(here, dtype)
    softmax._is_trusted.cache_clear()
    monkeypatch.setattr(
        softmax_triton,
        "read_numbers",
        lambda *inputs: {name: 1.01 * each for name, each in wrong(*inputs).items()},
    )
    with pytest.warns(UserWarning, match="the fused losses fail on cpu"):
        assert not softmax._is_trusted(here)
    assert not softmax._is_trusted(here)  # without a second warning, which would be an error
    softmax._is_trusted.cache_clear()
    monkeypatch.setenv("SFUMATO_NATIVE", "0")
    assert not softmax._is_trusted(here)
    softmax._is_trusted.cache_clear()


@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad,
        torch.inference_mode,
        partial(torch.device, "meta"),
        partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    ],
)
def test_trust_wherever_it_is_asked_first(around: Callable[[], Any]) -> None:
    """A validation before the training, or a default device, is no reason for plain operations."""
    softmax._is_trusted.cache_clear()
    with around():
        assert softmax._is_trusted(torch.device("cpu"))
    softmax._is_trusted.cache_clear()


def test_the_device_of_the_tensors_is_the_one_that_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton launches on the current device, which may be another."""
    seen = []

    @contextmanager
    def device_of(tensor: Tensor) -> Iterator[None]:
        seen.append(tensor)
        yield

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    logits, target, _ = _batch("rows", torch.float32)
    found = softmax_triton.softmax_numbers(logits, target, None, None, None, -100)
    found.sum().backward()
    assert [each.shape for each in seen] == 2 * [logits.shape]
