"""One pass over blocks equals autograd, whatever the layout, and behaves like autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sfumato.labels import _blocks
from sfumato.labels._acls import ACLSTerm
from sfumato.labels._block import Block
from sfumato.labels._entries import prepare_entries
from sfumato.labels._fused import Term, Weighted, evaluate_terms
from sfumato.labels.cross_entropy import CrossEntropyTerm
from sfumato.labels.ecp import EntropyTerm
from sfumato.labels.focal import FocalTerm
from sfumato.labels.mbls import MarginTerm

WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0], dtype=torch.float64)
TERMS: dict[str, Term] = {
    "cross entropy": CrossEntropyTerm(),
    "smoothed": CrossEntropyTerm(0.1),
    "weighted": CrossEntropyTerm(0.1, "others", WEIGHT),
    "focal": FocalTerm(3.0, None, WEIGHT),
    "flsd": FocalTerm(3.0, "paper"),
    "flsd released": FocalTerm(2.0, "released"),
    "entropy": EntropyTerm(),
    "margin": MarginTerm(2.0),
    "acls": ACLSTerm(2.0, 0.1, 0.01),
    "acls gradient": ACLSTerm(2.0, 0.1, 0.01, "gradient"),
    "acls released": ACLSTerm(2.0, 0.1, 0.01, "released"),
}
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(11, 5),
    "columns": lambda: torch.randn(5, 11).t(),
    "sequence": lambda: torch.randn(3, 5, 7),
    "maps": lambda: torch.randn(3, 5, 4, 3),
    "channels last": lambda: torch.randn(3, 5, 4, 3).to(memory_format=torch.channels_last),
    "every second pixel": lambda: torch.randn(3, 5, 4, 6)[..., ::2],
    "volumes": lambda: torch.randn(2, 5, 3, 2, 2),
    "one pixel": lambda: torch.randn(1, 5, 1, 1),
    "repeated": lambda: torch.randn(1, 5, 3).expand(4, 5, 3),
}


@pytest.fixture(params=[1, 40, 1 << 20], ids=["tiny blocks", "small blocks", "one block"])
def _block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "BLOCK_ELEMENTS", request.param)


def _labels(logits: Tensor) -> Tensor:
    target = torch.randint(0, logits.shape[1], logits.shape[:1] + logits.shape[2:])
    if target.numel() > 1:
        target.view(-1)[1] = -100
    return target


def _evaluate(logits: Tensor, target: Tensor, terms: list[Weighted], **options: Any) -> Tensor:
    return evaluate_terms(prepare_entries(logits, target), terms, **options)


@pytest.mark.usefixtures("_block_size")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TERMS)
def test_fused_equals_autograd(name: str, layout: str) -> None:
    logits = (LAYOUTS[layout]() * 3).double().requires_grad_()
    target = _labels(logits)
    gate = torch.rand(target.shape, dtype=torch.float64)
    terms = [Weighted(TERMS[name], gate), Weighted(CrossEntropyTerm(), 0.3)]
    for reduction in ("mean", "none"):
        fused = _evaluate(logits, target, terms, reduction=reduction)
        plain = _evaluate(logits, target, terms, reduction=reduction, fused=False)
        torch.testing.assert_close(fused, plain)
        direction = torch.randn_like(plain)
        (slope,) = torch.autograd.grad(fused, logits, direction)
        torch.testing.assert_close(slope, torch.autograd.grad(plain, logits, direction)[0])
        if logits.is_contiguous(memory_format=torch.preserve_format):
            assert slope.stride() == logits.stride()


@pytest.mark.usefixtures("_block_size")
@pytest.mark.parametrize("layout", ["rows", "maps", "channels last"])
def test_soft_targets(layout: str) -> None:
    logits = LAYOUTS[layout]().double().requires_grad_()
    target = torch.rand(logits.shape, dtype=torch.float64)
    terms = [Weighted(CrossEntropyTerm(0.1, "others", WEIGHT)), Weighted(MarginTerm(1.0), 0.1)]
    fused = _evaluate(logits, target, terms, reduction="mean")
    plain = _evaluate(logits, target, terms, reduction="mean", fused=False)
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(
        torch.autograd.grad(fused, logits), torch.autograd.grad(plain, logits)
    )


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_hessian_vector_product(name: str, reduction: Any) -> None:
    logits = (torch.randn(6, 5, dtype=torch.float64) * 3).requires_grad_()
    target, vector = _labels(logits), torch.randn(6, 5, dtype=torch.float64)
    terms = [Weighted(TERMS[name]), Weighted(CrossEntropyTerm())]
    products = []
    for fused in (True, False):
        loss = _evaluate(logits, target, terms, reduction=reduction, fused=fused)
        weighted = (loss * torch.arange(loss.numel()).view_as(loss)).sum() + loss.sum()
        (slope,) = torch.autograd.grad(weighted, logits, create_graph=True)
        products.append(torch.autograd.grad(slope, logits, vector)[0])
    torch.testing.assert_close(products[0], products[1])
    assert products[0].any()


def test_hessian_reaches_parameters_below() -> None:
    layer = torch.nn.Linear(4, 5).double()
    images, target = torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 5, (8,))
    products = []
    for fused in (True, False):
        terms = [Weighted(CrossEntropyTerm()), Weighted(ACLSTerm(0.5, 0.1, 0.01))]
        loss = _evaluate(layer(images), target, terms, reduction="mean", fused=fused)
        slopes = torch.autograd.grad(loss, tuple(layer.parameters()), create_graph=True)
        norm = sum(slope.square().sum() for slope in slopes)
        products.append(torch.autograd.grad(norm, tuple(layer.parameters())))
    torch.testing.assert_close(products[0], products[1])


def _loss_of(logits: Tensor) -> Tensor:
    terms = [Weighted(CrossEntropyTerm()), Weighted(MarginTerm(1.0))]
    return _evaluate(logits, torch.tensor([0, 1, 2]), terms, reduction="mean")


def test_backward_twice_and_scaled() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    loss = _loss_of(logits)
    (once,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (thrice,) = torch.autograd.grad(3 * loss, logits, retain_graph=True)
    torch.testing.assert_close(thrice, 3 * once)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(logits.grad, 2 * once)


def test_gradient_of_a_kept_graph_belongs_to_the_caller() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    loss = _loss_of(logits)
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    expected = first.clone()
    first.zero_()
    (second,) = torch.autograd.grad(loss, logits)
    assert torch.equal(second, expected)


def test_gradients_of_two_losses_add_up() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    first, second = _loss_of(logits), _loss_of(logits.flip(0))
    alone = [torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (first, second)]
    (first + second).backward()
    torch.testing.assert_close(logits.grad, alone[0] + alone[1])


def test_batched_gradients() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    loss = _loss_of(logits)
    (slopes,) = torch.autograd.grad(
        loss, logits, torch.tensor([1.0, 2.0]), is_grads_batched=True, retain_graph=True
    )
    (once,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(slopes, torch.stack([once, 2 * once]))


def test_no_gradient_no_graph() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    with torch.no_grad():
        silent = _loss_of(logits)
    with torch.inference_mode():
        inferred = _loss_of(logits)
    assert not silent.requires_grad
    assert not _loss_of(logits.detach()).requires_grad
    torch.testing.assert_close(silent, _loss_of(logits).detach())
    torch.testing.assert_close(inferred.clone(), silent)


# torch itself scripts its decompositions at the first use of forward mode.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")
def test_forward_mode() -> None:
    logits, tangent = torch.randn(3, 5), torch.randn(3, 5)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(logits, tangent)
        slope = torch.autograd.forward_ad.unpack_dual(_loss_of(dual)).tangent
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(_loss_of(logits), logits)
    torch.testing.assert_close(slope, (gradient * tangent).sum())


class _MeanSquare:
    """The example in the module's docstring."""

    def values(self, logits: Tensor, target: Tensor | None) -> Tensor:
        return logits.square().mean(1)

    def accumulate(self, block: Block, scale: Tensor) -> tuple[Tensor, ...]:
        height = block.take().copy_(block.logits)
        squares = block.sum_of_products(height, height)
        if block.gradient is not None:
            block.add(height, scale, factor=2 / block.num_classes)
        return (squares,)

    def finish(self, statistics: Sequence[Tensor], num_classes: int) -> Tensor:
        return statistics[0] / num_classes


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_term_of_ones_own(reduction: Any) -> None:
    logits = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    entries = prepare_entries(logits, torch.randint(0, 3, (4, 5)))
    loss = evaluate_terms(entries, [Weighted(_MeanSquare())], reduction)
    torch.testing.assert_close(loss.mean(), logits.square().mean())
    (slope,) = torch.autograd.grad(loss.mean(), logits)
    torch.testing.assert_close(slope, 2 * logits.detach() / logits.numel())


def _tied_logits() -> Tensor:
    """Ties of the largest and of the smallest logit, equal logits, and the nearest of misses."""
    logits = torch.randn(5, 5) * 9
    logits[0, 1] = logits[0].max()
    logits[1, 3] = logits[1].min()
    logits[2] = 1.0
    logits[3, 0] = 40.0
    logits[3, 1] = torch.nextafter(logits[3, 0], torch.tensor(0.0))
    return logits


@pytest.mark.parametrize("name", ["margin", "acls", "acls gradient", "acls released"])
@pytest.mark.parametrize("rows", [slice(0, 5), slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 5)])
def test_ties_are_shared_as_by_autograd(name: str, rows: slice) -> None:
    logits = _tied_logits()[rows].requires_grad_()
    terms, target = [Weighted(TERMS[name])], torch.zeros(len(logits), dtype=torch.long)
    slopes = [
        torch.autograd.grad(_evaluate(logits, target, terms, reduction="mean", fused=fused), logits)
        for fused in (True, False)
    ]
    torch.testing.assert_close(slopes[0], slopes[1])


def test_logits_equally_far_from_the_top_share() -> None:
    # 20 - 1e-9 and 20 - 0 are the same number in float32, so both are farthest from the top.
    logits = torch.tensor([[20.0, 3.0, 1e-9, 0.0, 2.0]], requires_grad=True)
    term = ACLSTerm(2.0, 0.1, 0.0)
    _evaluate(logits, torch.tensor([0]), [Weighted(term)], reduction="mean").backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[3.6, 0.0, -1.8, -1.8, 0.0]]))


def test_infinite_loss_of_an_ignored_entry_does_not_count() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0]])
    for rows in (1, 2):
        terms, target = [Weighted(CrossEntropyTerm())], torch.full((rows,), -100)
        loss = _evaluate(logits.expand(rows, 3), target, terms, reduction="mean")
        assert loss.item() == 0.0


def test_inputs_are_left_alone() -> None:
    logits, target = torch.randn(3, 5, requires_grad=True), torch.tensor([0, -100, 2])
    before, labels = logits.detach().clone(), target.clone()
    terms = [Weighted(term) for term in (CrossEntropyTerm(), EntropyTerm(), MarginTerm(0.1))]
    _evaluate(logits, target, terms, reduction="mean").backward()
    assert torch.equal(logits.detach(), before)
    assert torch.equal(target, labels)


def test_blocks_cover_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (1, 7, 60, 10_000):
        monkeypatch.setattr(_blocks, "BLOCK_ELEMENTS", limit)
        for shape in [(5, 3, 1), (2, 3, 11), (1, 200, 4), (0, 3, 1), (2, 3, 0)]:
            count = torch.zeros(shape[0], shape[2])
            for samples, positions in _blocks.block_slices(torch.empty(shape)):
                count[samples, positions] += 1
            assert bool((count == 1).all())
