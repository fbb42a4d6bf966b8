"""A linear layer and its loss in chunks, against the loss of all logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato import labels
from sfumato.engine.config.components import components
from sfumato.labels import ACLSLoss, CrossEntropyLoss, LinearHeadLoss, linear_head_loss
from sfumato.labels._entries import LossModule

CLASSES, WIDTH = 7, 5
WEIGHTS = torch.linspace(0.2, 2.0, CLASSES, dtype=torch.float64)
TOLD = {"num_classes": CLASSES, "num_samples": 9, "epochs": 3}
COUPLED = ("mmce", "mdca", "crl", "cape", "nacl")
NAMES = [
    name
    for name, part in components("loss").items()
    if not part.is_composite and name not in COUPLED
]


def _made(name: str, **options: Any) -> Any:
    part = components("loss")[name]
    told = {key: value for key, value in TOLD.items() if part.takes(key)}
    margin = {"margin": 1.0} if name in ("acls", "mbls", "cals") else {}
    return part.build(**told, **margin, **options)


def _batch(
    *shape: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*shape, WIDTH, generator=generator, dtype=dtype)
    weight = torch.randn(CLASSES, WIDTH, generator=generator, dtype=dtype)
    bias = torch.randn(CLASSES, generator=generator, dtype=dtype)
    target = torch.randint(0, CLASSES, shape, generator=generator)
    target.view(-1)[1] = -100
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), target


def _compare(
    loss: LossModule, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, chunk: Any
) -> None:
    """Value and gradients equal those of all logits at once, in a first and in a second walk."""
    tensors, width = (hidden, weight, bias), target.shape[-1] if target.is_floating_point() else 0
    found = linear_head_loss(hidden, weight, target, bias, loss=loss, chunk=chunk)
    loss.eval()  # gathers nothing
    logits = F.linear(hidden, weight, bias).reshape(-1, len(weight))
    expected = loss(logits, target.reshape(-1, width) if width else target.reshape(-1))
    expected = expected.reshape(found.shape)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    upstream = torch.linspace(0.5, 3.0, found.numel(), dtype=found.dtype).view(found.shape)
    slopes = torch.autograd.grad(expected, tensors, upstream)
    for _ in range(2):
        again = torch.autograd.grad(found, tensors, upstream, retain_graph=True)
        torch.testing.assert_close(again, slopes, rtol=1e-10, atol=1e-10)


def test_by_hand() -> None:
    """Two entries, one a chunk: logits (2, 0) and (0, 0) with labels 0 and 1."""
    hidden = torch.tensor([[1.0], [0.0]], requires_grad=True)
    weight = torch.tensor([[2.0], [0.0]], requires_grad=True)
    value = linear_head_loss(hidden, weight, torch.tensor([0, 1]), loss=CrossEntropyLoss(), chunk=1)
    value.backward()
    miss = 1 / (1 + torch.tensor(2.0).exp())
    torch.testing.assert_close(
        value, (torch.tensor(-2.0).exp().log1p() + torch.tensor(2.0).log()) / 2
    )
    torch.testing.assert_close(weight.grad, torch.stack([-miss / 2, miss / 2]).view(2, 1))
    torch.testing.assert_close(hidden.grad, torch.stack([-miss, torch.tensor(0.5)]).view(2, 1))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_every_loss_of_single_entries(name: str, reduction: str) -> None:
    _compare(_made(name, reduction=reduction), *_batch(3, 4), 5)


def test_the_others_are_refused() -> None:
    for name in COUPLED:
        with pytest.raises(ValueError, match=r"mean over single entries, but .* compares entries"):
            LinearHeadLoss(_made(name))
    with pytest.raises(ValueError, match="ACLSLoss compares entries"):
        LinearHeadLoss(ACLSLoss(condition="ranking"))


@pytest.mark.parametrize("chunk", [1, 4, 100, "auto"])
@pytest.mark.parametrize("name", ["cross_entropy", "acls", "focal", "cals"])
def test_class_weights(name: str, chunk: Any) -> None:
    """The cross entropy and the penalty of a mean have denominators of their own."""
    _compare(_made(name, class_weight=WEIGHTS), *_batch(11), chunk)
    _compare(_made(name, class_weight=WEIGHTS, reduction="none"), *_batch(11), chunk)


@pytest.mark.parametrize("name", ["cross_entropy", "mbls", "acls"])
@pytest.mark.parametrize("options", [{}, {"class_weight": WEIGHTS}])
def test_soft_targets(name: str, options: dict[str, Any]) -> None:
    hidden, weight, bias, _ = _batch(2, 5)
    soft = torch.rand(2, 5, CLASSES, dtype=torch.float64).softmax(-1)
    _compare(_made(name, **options), hidden, weight, bias, soft, 3)


@pytest.mark.parametrize("classes", [200, 300])
def test_integer_labels_of_any_kind(classes: int) -> None:
    """In uint8, -100 is 156 and 300 is 44: neither may be compared with such labels."""
    hidden = torch.randn(5, WIDTH, dtype=torch.float64)
    weight = torch.randn(classes, WIDTH, dtype=torch.float64)
    target = torch.tensor([156, 0, 44, 155, 199])
    for reduction in ("mean", "none"):
        loss = CrossEntropyLoss(reduction=reduction)
        expected = loss(hidden @ weight.T, target)
        for dtype in (torch.uint8, torch.int32):
            found = linear_head_loss(hidden, weight, target.to(dtype), loss=loss, chunk=2)
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("class_dim", [0, -1, 2])
def test_classes_are_the_last_dimension_whatever_the_loss_says(class_dim: int) -> None:
    hidden, weight, bias, target = _batch(3, 4)
    found = linear_head_loss(hidden, weight, target, bias, loss=ACLSLoss(class_dim=class_dim))
    expected = linear_head_loss(hidden, weight, target, bias, loss=ACLSLoss())
    assert torch.equal(found, expected)


def test_another_ignored_label_and_nothing_valid() -> None:
    hidden, weight, bias, target = _batch(6)
    _compare(_made("acls", ignore_index=3), hidden, weight, bias, target.clamp(min=0), 2)
    for rows in (6, 0):
        nothing = torch.full((rows,), -100)
        value = linear_head_loss(hidden[:rows], weight, nothing, bias, loss=_made("acls"), chunk=4)
        assert value.item() == 0
        assert not any(each.any() for each in torch.autograd.grad(value, (weight, bias)))


def test_what_is_frozen_gets_no_gradient() -> None:
    hidden, weight, bias, target = _batch(6)
    frozen = (weight.detach(), target, bias.detach())
    linear_head_loss(hidden, *frozen, loss=ACLSLoss(), chunk=4).backward()
    expected = ACLSLoss()(F.linear(hidden, *frozen[::2]), target)
    torch.testing.assert_close(hidden.grad, torch.autograd.grad(expected, hidden)[0])


def test_without_gradients_none_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias, target = _batch(6)
    expected = linear_head_loss(hidden, weight, target, bias, loss=ACLSLoss())

    def never(*_: Any) -> None:
        raise AssertionError("a gradient is computed")

    monkeypatch.setattr(torch.autograd, "grad", never)
    with torch.no_grad():
        value = linear_head_loss(hidden, weight, target, bias, loss=ACLSLoss())
    torch.testing.assert_close(value, expected.detach())
    assert not value.requires_grad


def test_tied_embedding() -> None:
    """The weight's gradient is that of the embedding and of the head."""
    slopes = []
    for is_chunked in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(CLASSES, WIDTH, dtype=torch.float64)
        hidden, target = table(torch.arange(6).view(2, 3)).tanh(), torch.arange(6).view(2, 3)
        loss = ACLSLoss(margin=0.5, class_dim=1 if is_chunked else -1)
        value = (
            LinearHeadLoss(loss, chunk=4)(hidden, table.weight, target)
            if is_chunked
            else loss(hidden @ table.weight.T, target)
        )
        slopes.append(torch.autograd.grad(value, table.weight)[0])
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-10)


def _in_half(call: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
    tensors = [each.detach().to(dtype).requires_grad_() for each in _batch(16, 8)[:3]]
    value = call(*tensors)
    assert value.dtype == torch.float32
    slopes = torch.autograd.grad(value, tensors)
    assert all(each.dtype == dtype for each in slopes)
    return [value.detach(), *slopes]


def test_bfloat16_weights_and_autocast() -> None:
    target = _batch(16, 8)[3]
    loss, last = ACLSLoss(margin=1.0), ACLSLoss(margin=1.0, class_dim=-1)

    def chunked(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_head_loss(hidden, weight, target, bias, loss=loss, chunk=32)

    def plain(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return last(F.linear(hidden, weight, bias), target)

    # Sums over four chunks are rounded four times, each to 8 bits.
    near = {"rtol": 2**-6, "atol": 2**-9}
    for found, expected in zip(
        _in_half(chunked, torch.bfloat16), _in_half(plain, torch.bfloat16), strict=True
    ):
        torch.testing.assert_close(found, expected, **near)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pairs = zip(_in_half(chunked, torch.float32), _in_half(plain, torch.float32), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, **near)


def test_what_a_loss_gathers_it_gathers_once() -> None:
    hidden, weight, bias, target = _batch(3, 4)
    here, there = (_made("online_label_smoothing", reduction="none") for _ in range(2))
    value = linear_head_loss(hidden, weight, target, bias, loss=here, chunk=5)
    value.sum().backward()  # walks again
    there(F.linear(hidden, weight, bias).flatten(0, 1), target.flatten())
    torch.testing.assert_close(here.state_dict(), there.state_dict())


def test_logits_are_never_whole() -> None:
    """No operation sees more than a chunk of rows as wide as the vocabulary."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            found = func(*args, **(kwargs or {}))
            if isinstance(found, Tensor) and found.ndim == 2 and CLASSES in found.shape:
                largest = max(largest, found.numel())
            return found

    hidden, weight, bias, target = _batch(50)
    with Watch():
        linear_head_loss(hidden, weight, target, bias, loss=ACLSLoss(), chunk=6).backward()
    assert largest == max(6 * CLASSES, weight.numel())  # logits of a chunk, or weights


def test_few_classes_are_few_chunks() -> None:
    """Where all logits are small, chunks of a twentieth are all overhead."""
    hidden, weight, bias, target = _batch(4000)
    loss, sizes = ACLSLoss(), []
    loss.register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    linear_head_loss(hidden, weight, target, bias, loss=loss)
    assert sum(sizes) == 4000
    assert len(sizes) <= 8


def test_second_derivatives_are_refused() -> None:
    hidden, weight, bias, target = _batch(6)
    value = linear_head_loss(hidden, weight, target, bias, loss=ACLSLoss())
    with pytest.raises(RuntimeError, match=r"first derivatives only.*compute the logits"):
        torch.autograd.grad(value, hidden, create_graph=True)


# PyTorch itself looks at the gradient of what the first graph gives.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_around_it() -> None:
    """What comes before is compiled; the chunks run as they are, without a graph each."""
    hidden, weight, _, target = _batch(40)
    head, first = LinearHeadLoss(ACLSLoss(), chunk=6), []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        first.append(next(node.name for node in graph.graph.nodes if node.op != "placeholder"))
        return graph

    def step(x: Tensor) -> Tensor:
        return head(x.tanh(), weight, target)

    torch.compiler.reset()
    found, expected = torch.compile(step, backend=keep)(hidden), step(hidden)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(each, (hidden, weight)) for each in (found, expected)]
    torch.testing.assert_close(*slopes)
    assert first == ["tanh"]


def test_module_is_the_function() -> None:
    hidden, weight, bias, target = _batch(6)
    loss = CrossEntropyLoss(smoothing=0.1)
    expected = linear_head_loss(hidden, weight, target, bias, loss=loss, chunk=4)
    module = LinearHeadLoss(loss, chunk=4)
    assert torch.equal(module(hidden, weight, target, bias), expected)
    assert loss in list(module.modules())
    assert "chunk=4" in repr(module)


HIDDEN, WEIGHT, TARGET = torch.zeros(2, 3, 4), torch.zeros(5, 4), torch.zeros(2, 3).long()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((HIDDEN.long(), WEIGHT, TARGET), {}, TypeError, "hidden must be floating point"),
        ((HIDDEN, WEIGHT.T, TARGET), {}, ValueError, r"same D, got \(2, 3, 4\) and \(4, 5\)"),
        ((HIDDEN, WEIGHT, TARGET, torch.zeros(4)), {}, ValueError, r"bias must have shape \(5,\)"),
        ((HIDDEN, WEIGHT.double(), TARGET), {}, TypeError, "must have one dtype"),
        ((HIDDEN, WEIGHT, TARGET[0]), {}, ValueError, r"shape \(2, 3\) \(class indices\)"),
        ((HIDDEN, WEIGHT, torch.zeros(2, 3)), {}, ValueError, r"shape \(2, 3, 5\) \(soft targets"),
        ((HIDDEN, WEIGHT, TARGET + 5), {}, ValueError, r"class indices in \[0, 5\), got 5"),
        (
            (HIDDEN, WEIGHT, TARGET),
            {"loss": ACLSLoss(class_weight=torch.ones(4))},
            ValueError,
            r"class_weight must have shape \(5,\)",
        ),
        ((HIDDEN, WEIGHT, TARGET), {"chunk": 0}, ValueError, "chunk must be at least 1"),
        ((HIDDEN, WEIGHT, TARGET), {"chunk": "all"}, TypeError, "chunk must be an integer"),
        ((HIDDEN, WEIGHT, TARGET), {"loss": labels.acls_loss}, TypeError, "loss must be a module"),
        (
            (HIDDEN, WEIGHT, TARGET),
            {"loss": nn.CrossEntropyLoss()},
            TypeError,
            "loss must be a mod",
        ),
        (
            (HIDDEN, WEIGHT, TARGET),
            {"loss": labels.CombinedLoss(CrossEntropyLoss(), {})},
            TypeError,
            "no sum of several, got CombinedLoss",
        ),
        ((HIDDEN, WEIGHT, TARGET > 0), {}, TypeError, "integer class indices, got torch.bool"),
    ],
)
def test_bad_input(
    arguments: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        linear_head_loss(*arguments, **{"loss": ACLSLoss(), **options})


def test_constants_are_constants() -> None:
    soft = torch.zeros(2, 3, 5, requires_grad=True)
    with pytest.raises(ValueError, match=r"target\.detach\(\)"):
        linear_head_loss(HIDDEN, WEIGHT, soft, loss=ACLSLoss())

    loss = ACLSLoss()
    loss.learnt = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match="no parameters to train"):
        LinearHeadLoss(loss)
