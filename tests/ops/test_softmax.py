"""The differentiable operation under the losses: the kernel against its definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import sfumato.functional as SF
from sfumato.ops import library
from sfumato.ops.softmax import (
    Also,
    PlainSoftmax,
    ReadSoftmax,
    SoftmaxSummary,
    softmax_summary,
    valid_entries,
)

with_kernels = pytest.mark.skipif(library.library() is None, reason="no compiled kernels here")

NUMBERS = ("label", "top", "total", "entropy", "highest", "range", "excess", "squares", "totals")
CONSTANTS = ("top_ties", "number")
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0], dtype=torch.float64)
LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross entropy": SF.cross_entropy_loss,
    "label smoothing": partial(SF.cross_entropy_loss, smoothing=0.1),
    "label smoothing, others": partial(
        SF.cross_entropy_loss, smoothing=0.1, smoothing_over="others"
    ),
    "focal": SF.focal_loss,
    "focal, small exponent": partial(SF.focal_loss, gamma=0.5),
    "flsd": SF.flsd_loss,
    "flsd, released": partial(SF.flsd_loss, rule="released"),
    "ecp": SF.ecp_loss,
    "mbls": partial(SF.mbls_loss, margin=2.0),
    "acls": partial(SF.acls_loss, margin=2.0),
    "acls, gradient": partial(SF.acls_loss, margin=2.0, form="gradient"),
    "acls, released": partial(SF.acls_loss, margin=2.0, form="released"),
    "acls, always": partial(SF.acls_loss, margin=2.0, condition="always"),
    "acls, constant": partial(SF.acls_loss, margin=2.0, smoothing="constant"),
    "mdca": SF.mdca_loss,
    "mmce": SF.mmce_loss,
    "dual focal": partial(SF.dual_focal_loss, gamma=2.3),
    "bsce": SF.bsce_loss,
    "bsce, with its gradient": partial(SF.bsce_loss, stop_gradient=False),
    "nacl": SF.nacl_loss,
    "cals": lambda z, *rest, **options: SF.cals_loss(
        z, *rest, multipliers=torch.linspace(0, 2, z.shape[1]), margin=3.0, **options
    ),
    "online label smoothing": lambda z, *rest, **options: SF.online_label_smoothing_loss(
        z, *rest, soft_labels=_table(z), **options
    ),
}
HARD = ("focal", "focal, small exponent", "flsd", "flsd, released", "mmce", "dual focal")
SOFT = [name for name in LOSSES if name not in (*HARD, "online label smoothing")]
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(11, 5),
    "long rows": lambda: torch.randn(3, 1000),
    "many rows": lambda: torch.randn(300, 40),
    "columns": lambda: torch.randn(5, 11).t(),
    "sequence": lambda: torch.randn(3, 5, 7),
    "words": lambda: torch.randn(3, 7, 5).movedim(-1, 1),
    "words of a vocabulary": lambda: torch.randn(2, 3, 600).movedim(-1, 1),
    "maps": lambda: torch.randn(3, 5, 4, 33),
    "large maps": lambda: torch.randn(2, 21, 13, 29),
    "channels last": lambda: torch.randn(3, 5, 4, 3).to(memory_format=torch.channels_last),
    "long channels last": lambda: torch.randn(2, 40, 9, 8).to(memory_format=torch.channels_last),
    "every second pixel": lambda: torch.randn(3, 5, 4, 6)[..., ::2],
    "rows with gaps": lambda: torch.randn(8, 50)[:, :5],
    "volumes": lambda: torch.randn(2, 5, 3, 2, 2),
    "one pixel": lambda: torch.randn(1, 5, 1, 1),
    "repeated": lambda: torch.randn(1, 5, 3).expand(4, 5, 3),
}


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr("sfumato.ops.library.library", lambda: None)


def _labels(logits: Tensor) -> Tensor:
    target = torch.randint(0, logits.shape[1], logits.shape[:1] + logits.shape[2:])
    if target.numel() > 1:
        target.view(-1)[1] = -100
    return target


def _table(logits: Tensor) -> Tensor:
    """A soft target for each class, (C, C)."""
    classes = logits.shape[1]
    generator = torch.Generator().manual_seed(2)
    return torch.randn(classes, classes, generator=generator).softmax(1).to(logits.dtype)


def _read(logits: Tensor, target: Tensor | None, soft: Tensor | None = None) -> SoftmaxSummary:
    options = {"margin": 2.0, "ignore_index": -100, "wants_predicted": True, "wants_totals": True}
    return softmax_summary(logits, target, soft, **options)


def _plain(logits: Tensor, target: Tensor | None, soft: Tensor | None = None) -> PlainSoftmax:
    target, valid = valid_entries(target, logits.shape[1], -100)
    return PlainSoftmax(logits, target, soft, margin=2.0, valid=valid)


def test_numbers_by_hand() -> None:
    logits = torch.tensor([[5.0, 5.0, 2.0, 0.0]], dtype=torch.float64)
    found = _read(logits, torch.tensor([2]))
    normaliser = 2 + torch.tensor([-3.0, -5.0], dtype=torch.float64).exp().sum()
    assert found.label.item() == pytest.approx(-3 - normaliser.log().item())
    assert found.top.item() == pytest.approx(-normaliser.log().item())
    assert found.total.item() == pytest.approx(-8 - 4 * normaliser.log().item())
    assert found.entropy.item() == pytest.approx(
        (logits.softmax(1) * logits.log_softmax(1)).sum().item()
    )
    assert (found.highest.item(), found.range.item(), found.top_ties.item()) == (5, 5, 2)
    assert (found.number.item(), found.excess.item(), found.squares.item()) == (2, 4, 10)
    assert found.predicted.item() == 0
    torch.testing.assert_close(found.totals, logits.softmax(1)[0])


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["hard", "soft", "both", "none"])
def test_kernel_equals_definition(kind: str, layout: str, dtype: torch.dtype) -> None:
    logits = (LAYOUTS[layout]() * 3).to(dtype).requires_grad_()
    target = _labels(logits) if kind in ("hard", "both") else None
    soft = torch.rand(logits.shape, dtype=dtype) if kind in ("soft", "both") else None
    read, plain = _read(logits, target, soft), _plain(logits, target, soft)
    names = NUMBERS if kind != "none" else NUMBERS[1:]
    _assert_same(logits, read, plain, names, CONSTANTS)
    valid = torch.ones(read.top.shape, dtype=torch.bool) if plain.valid is None else plain.valid
    assert torch.equal(read.predicted[valid], plain.predicted[valid])
    assert read.count == int(plain.count)


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("also", ["brier", "following", "distance"])
def test_further_numbers_equal_their_definition(
    also: Also, layout: str, dtype: torch.dtype
) -> None:
    if (also, layout) == ("distance", "volumes"):
        pytest.skip("PyTorch's own operations serve more than two dimensions")
    # Whole numbers, so that classes tie; not those of shares, where a distance has no slope.
    logits = ((LAYOUTS[layout]() * 3).round() + 0.25).to(dtype).requires_grad_()
    target = _labels(logits)
    target.view(-1)[0] = int(
        logits.detach().movedim(1, -1).reshape(-1, logits.shape[1])[0].argmin()
    )
    read = softmax_summary(logits, target, also=also, ignore_index=-100)
    _assert_same(logits, read, _plain(logits, target), (also, "label", "top"))


@with_kernels
@pytest.mark.parametrize("only", [("label",), ("top", "label"), ("entropy", "label", "total")])
def test_only_what_is_asked_for_is_handed_out(only: tuple[str, ...]) -> None:
    logits = (LAYOUTS["rows"]() * 3).double().requires_grad_()
    target = _labels(logits)
    read = softmax_summary(logits, target, only=only, ignore_index=-100, wants_totals=True)
    _assert_same(logits, read, _plain(logits, target), (*only, "totals"))
    assert not hasattr(read, "highest")


@with_kernels
@pytest.mark.parametrize("layout", LAYOUTS)
def test_targets_from_a_table_and_margins_of_classes(layout: str) -> None:
    logits = (LAYOUTS[layout]() * 3).double().requires_grad_()
    target, table = _labels(logits), _table(logits)
    margins = torch.linspace(-1, 4, logits.shape[1], dtype=torch.float64)
    read = softmax_summary(logits, target, table=table, margin=margins, ignore_index=-100)
    safe, valid = valid_entries(target, logits.shape[1], -100)
    assert safe is not None
    soft = table[safe].movedim(-1, 1)
    plain = PlainSoftmax(logits, safe, soft, margin=margins, valid=valid)
    _assert_same(logits, read, plain, NUMBERS[:-1], CONSTANTS)


def _assert_same(
    logits: Tensor,
    read: SoftmaxSummary,
    plain: PlainSoftmax,
    names: tuple[str, ...],
    constants: tuple[str, ...] = (),
) -> None:
    """The same numbers, and the same gradient of a random sum of them."""
    assert isinstance(read, ReadSoftmax)
    scale = 1e-9 if logits.dtype == torch.float64 else 2e-5
    sums = []
    for summary in (read, plain):
        generator = torch.Generator().manual_seed(0)
        parts = [getattr(summary, name) for name in names]
        factors = [torch.randn(part.shape, generator=generator).to(logits) for part in parts]
        sums.append(sum((a * b).sum() for a, b in zip(parts, factors, strict=True)))
    for name in (*names, *constants):
        torch.testing.assert_close(
            getattr(read, name), getattr(plain, name), rtol=scale, atol=scale, msg=name
        )
    slopes = [torch.autograd.grad(each, logits)[0] for each in sums]
    largest = slopes[1].abs().max().item()
    torch.testing.assert_close(slopes[0], slopes[1], rtol=10 * scale, atol=scale * largest)


@pytest.mark.parametrize("also", ["brier", "following", "distance"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 40), (2, 4, 3, 3)])
def test_further_numbers_by_differences(also: Also, shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, shape[1], shape[:1] + shape[2:])
    assert torch.autograd.gradcheck(
        lambda z: getattr(softmax_summary(z, target, also=also), also), logits
    )


def test_further_numbers_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0, 1.0, 3.0]], dtype=torch.float64)
    p, label = logits.softmax(1)[0], torch.tensor([2])
    brier = softmax_summary(logits, label, also="brier").brier.item()
    assert brier == pytest.approx((p[0] ** 2 + p[1] ** 2 + (1 - p[2]) ** 2 + p[3] ** 2).item())
    following = softmax_summary(logits, label, also="following").following
    assert following.item() == pytest.approx(p[0].log().item())
    last = softmax_summary(logits, torch.tensor([0]), also="following").following
    assert last.item() == -1000
    distance = softmax_summary(logits, label, also="distance").distance
    assert distance.item() == 0 + 0 + 0 + 3


@with_kernels
def test_a_sure_prediction_keeps_its_last_places() -> None:
    logits = torch.tensor([[12.0, 0.0, -1.0]])
    expected = logits.double().softmax(1) - torch.tensor([[1.0, 0.0, 0.0]])
    found = softmax_summary(logits, torch.tensor([0]), also="brier").brier
    assert found.item() == pytest.approx(expected.square().sum().item(), rel=1e-5)


@with_kernels
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(6, 9), (4, 50), (3, 5, 4, 6)])
@pytest.mark.parametrize("is_soft", [False, True])
def test_losses_are_the_same_with_and_without(
    name: str, shape: tuple[int, ...], is_soft: bool, without_kernels: Callable[[], None]
) -> None:
    if is_soft and name not in SOFT:
        pytest.skip("no soft targets")
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(shape, dtype=torch.float64, generator=generator) * 4
    logits[0, :2] = 9.0  # a tie at the top
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)
    target.view(-1)[1] = -100
    if is_soft:
        target = torch.rand(shape, dtype=torch.float64, generator=generator)

    def evaluate() -> tuple[Tensor, Tensor]:
        leaf = logits.clone().requires_grad_()
        loss = LOSSES[name](leaf, target)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    first = evaluate()
    without_kernels()
    for found, expected in zip(first, evaluate(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@settings(max_examples=60)
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


class TestAutograd:
    @pytest.mark.parametrize("name", LOSSES)
    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_hessian_vector_product(
        self, name: str, reduction: str, without_kernels: Callable[[], None]
    ) -> None:
        logits = (torch.randn(6, 5, dtype=torch.float64) * 3).requires_grad_()
        target, vector = _labels(logits), torch.randn(6, 5, dtype=torch.float64)

        def product() -> Tensor:
            loss = LOSSES[name](logits, target, reduction=reduction)
            weighted = (loss * torch.arange(loss.numel()).view_as(loss)).sum() + loss.sum()
            (slope,) = torch.autograd.grad(weighted, logits, create_graph=True)
            return torch.autograd.grad(slope, logits, vector)[0]

        first = product()
        without_kernels()
        torch.testing.assert_close(first, product())
        assert first.any()

    def test_hessian_reaches_parameters_below(self, without_kernels: Callable[[], None]) -> None:
        layer = torch.nn.Linear(4, 5).double()
        images, target = torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 5, (8,))
        products = []
        for _ in range(2):
            loss = SF.acls_loss(layer(images), target, margin=0.5)
            slopes = torch.autograd.grad(loss, tuple(layer.parameters()), create_graph=True)
            norm = sum(slope.square().sum() for slope in slopes)
            products.append(torch.autograd.grad(norm, tuple(layer.parameters())))
            without_kernels()
        torch.testing.assert_close(products[0], products[1])

    def test_backward_twice_and_scaled(self) -> None:
        logits = torch.randn(3, 5, requires_grad=True)
        loss = _loss_of(logits)
        (once,) = torch.autograd.grad(loss, logits, retain_graph=True)
        (thrice,) = torch.autograd.grad(3 * loss, logits, retain_graph=True)
        torch.testing.assert_close(thrice, 3 * once)
        loss.backward(retain_graph=True)
        loss.backward()
        torch.testing.assert_close(logits.grad, 2 * once)

    def test_gradients_of_two_losses_add_up(self) -> None:
        logits = torch.randn(3, 5, requires_grad=True)
        first, second = _loss_of(logits), _loss_of(logits.flip(0))
        alone = [torch.autograd.grad(one, logits, retain_graph=True)[0] for one in (first, second)]
        (first + second).backward()
        torch.testing.assert_close(logits.grad, alone[0] + alone[1])

    def test_batched_gradients(self) -> None:
        logits = torch.randn(3, 5, requires_grad=True)
        loss = _loss_of(logits)
        (slopes,) = torch.autograd.grad(
            loss, logits, torch.tensor([1.0, 2.0]), is_grads_batched=True, retain_graph=True
        )
        (once,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(slopes, torch.stack([once, 2 * once]))

    def test_no_gradient_no_graph(self) -> None:
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
    def test_forward_mode(self) -> None:
        logits, tangent = torch.randn(3, 5), torch.randn(3, 5)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(logits, tangent)
            slope = torch.autograd.forward_ad.unpack_dual(_loss_of(dual)).tangent
        logits.requires_grad_()
        (gradient,) = torch.autograd.grad(_loss_of(logits), logits)
        torch.testing.assert_close(slope, (gradient * tangent).sum())

    @with_kernels
    def test_inputs_changed_in_place_before_backward_are_noticed(self) -> None:
        logits = torch.randn(3, 5, requires_grad=True)
        scaled = logits * 2
        loss = _loss_of(scaled)
        scaled.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_learned_soft_targets(self) -> None:
        logits = torch.randn(3, 5, dtype=torch.float64)
        target = torch.zeros(3, 5, dtype=torch.float64).requires_grad_()
        (slope,) = torch.autograd.grad(SF.cross_entropy_loss(logits, target), target)
        torch.testing.assert_close(slope, -logits.log_softmax(1) / 3)


def _loss_of(logits: Tensor) -> Tensor:
    return SF.mbls_loss(logits, torch.tensor([0, 1, 2]), margin=1.0, weight=1.0)


class TestTies:
    def _logits(self) -> Tensor:
        """Ties of the largest and smallest logit, equal logits, and the nearest of misses."""
        logits = torch.randn(5, 5) * 9
        logits[0, 1] = logits[0].max()
        logits[1, 3] = logits[1].min()
        logits[2] = 1.0
        logits[3, 0] = 40.0
        logits[3, 1] = torch.nextafter(logits[3, 0], torch.tensor(0.0))
        return logits

    @pytest.mark.parametrize("name", ["mbls", "acls", "acls, gradient", "acls, released", "mmce"])
    def test_shared_as_by_autograd(self, name: str, without_kernels: Callable[[], None]) -> None:
        logits, target = self._logits().requires_grad_(), torch.zeros(5, dtype=torch.long)
        (first,) = torch.autograd.grad(LOSSES[name](logits, target), logits)
        without_kernels()
        (second,) = torch.autograd.grad(LOSSES[name](logits, target), logits)
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)

    def test_logits_equally_far_from_the_top_share(self) -> None:
        # 20 - 1e-9 and 20 - 0 are the same number in float32, so both are farthest from the top.
        logits = torch.tensor([[20.0, 3.0, 1e-9, 0.0, 2.0]], requires_grad=True)
        SF.acls_penalty(logits, margin=2.0, other_weight=0.0).backward()
        torch.testing.assert_close(logits.grad, torch.tensor([[3.6, 0.0, -1.8, -1.8, 0.0]]))


class TestSpecialValues:
    @pytest.mark.parametrize("shape", [(3, 5), (3, 70), (3, 5, 2, 2)])
    def test_nan_stays_nan(self, shape: tuple[int, ...]) -> None:
        logits = torch.zeros(shape)
        logits.view(-1)[1] = float("nan")
        target = torch.zeros(shape[0], *shape[2:], dtype=torch.long)
        for name, loss in LOSSES.items():
            assert loss(logits, target).isnan(), name
        assert SF.acls_penalty(logits, target).isnan()
        assert SF.margin_penalty(logits, target).isnan()

    @pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
    @pytest.mark.parametrize("shape", [(3, 5), (3, 70), (3, 5, 2, 2)])
    @pytest.mark.parametrize("name", LOSSES)
    def test_what_is_ignored_may_hold_anything(
        self, name: str, shape: tuple[int, ...], bad: float, without_kernels: Callable[[], None]
    ) -> None:
        logits = torch.randn(shape, dtype=torch.float64) * 3
        logits[1, 0] = bad
        target = torch.ones(shape[0], *shape[2:], dtype=torch.long)
        target[1] = -100
        keep = [0, 2]
        for _ in range(2):
            leaf = logits.clone().requires_grad_()
            loss = LOSSES[name](leaf, target)
            (slope,) = torch.autograd.grad(loss, leaf)
            torch.testing.assert_close(loss, LOSSES[name](logits[keep], target[keep]))
            assert slope.isfinite().all()
            assert not slope[1].any()
            without_kernels()

    @pytest.mark.parametrize("is_soft", [False, True])
    def test_classes_masked_by_minus_infinity(
        self, is_soft: bool, without_kernels: Callable[[], None]
    ) -> None:
        logits = torch.tensor([[1.0, float("-inf"), 2.0]], dtype=torch.float64)
        target = torch.tensor([[0.5, 0.0, 0.5]], dtype=torch.float64)
        target = target if is_soft else torch.tensor([0])
        weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        for _ in range(2):
            for loss in (SF.ecp_loss, SF.cross_entropy_loss):
                leaf = logits.clone().requires_grad_()
                value = loss(leaf, target, class_weight=weight)
                value.backward()
                assert value.isfinite()
                assert leaf.grad is not None
                assert leaf.grad[0, 1] == 0
            without_kernels()

    @pytest.mark.parametrize("name", ["mbls", "acls", "acls, gradient", "acls, released"])
    def test_infinitely_far_classes(self, name: str, without_kernels: Callable[[], None]) -> None:
        slopes = []
        for _ in range(2):
            logits = torch.tensor([[3.0, float("-inf"), 2.0, 9.0]], requires_grad=True)
            loss = LOSSES[name](logits, torch.tensor([0]))
            assert loss.item() == torch.inf
            slopes.append(torch.autograd.grad(loss, logits)[0])
            without_kernels()
        torch.testing.assert_close(slopes[0], slopes[1])

    def test_a_label_that_cannot_be(self, without_kernels: Callable[[], None]) -> None:
        for _ in range(2):
            for loss in (SF.cross_entropy_loss, SF.focal_loss, SF.flsd_loss):
                logits = torch.tensor([[float("-inf"), 1.0, 1.0]], requires_grad=True)
                value = loss(logits, torch.tensor([0]))
                (slope,) = torch.autograd.grad(value, logits)
                assert value.item() == torch.inf
                torch.testing.assert_close(slope, torch.tensor([[-1.0, 0.5, 0.5]]))
            without_kernels()

    def test_tiny_probabilities_leave_the_mode_as_it_was(self) -> None:
        logits = torch.tensor([[0.0, -100.0]], requires_grad=True)
        SF.cross_entropy_loss(logits, torch.tensor([0])).backward()
        assert torch.tensor(1e-40).mul(1.0).item() > 0  # denormals work outside


class TestReach:
    """What has no values at its address goes to PyTorch."""

    def _expect(self, logits: Tensor, target: Tensor) -> None:
        assert not isinstance(softmax_summary(logits, target), ReadSoftmax)
        torch.testing.assert_close(
            SF.cross_entropy_loss(logits, target),
            torch.nn.functional.cross_entropy(logits, target),
        )

    def test_negated_views(self) -> None:
        logits = torch.randn(4, 3, dtype=torch.complex64).conj().imag
        assert logits.is_neg()
        self._expect(logits, torch.tensor([0, 1, 2, 0]))

    def test_zero_tensors(self) -> None:
        self._expect(torch._efficientzerotensor((2, 3)), torch.tensor([0, 1]))

    def test_half_precision(self) -> None:
        target = torch.tensor([0, 1])
        assert not isinstance(softmax_summary(torch.zeros(2, 3).bfloat16(), target), ReadSoftmax)

    def test_labels_on_another_device(self) -> None:
        target = torch.zeros(2, dtype=torch.long, device="meta")
        with pytest.raises(RuntimeError, match="meta"):
            SF.acls_loss(torch.zeros(2, 3), target)

    def test_default_device(self) -> None:
        logits, target = torch.zeros(2, 3), torch.tensor([0, 1])
        with torch.device("meta"):
            found = SF.mmce_loss(logits, target)
        assert found.device.type == "cpu"

    def test_watching_modes(self) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        logits, target = torch.randn(3, 4), torch.tensor([0, 1, 2])
        traced = make_fx(lambda z: SF.cross_entropy_loss(z, target))(torch.zeros(3, 4))
        torch.testing.assert_close(traced(logits), SF.cross_entropy_loss(logits, target))

    def test_transforms(self) -> None:
        logits = torch.randn(3, 4, dtype=torch.float64)
        slope = torch.func.grad(lambda z: SF.acls_loss(z, torch.tensor([0, 1, 2])))(logits)
        leaf = logits.clone().requires_grad_()
        SF.acls_loss(leaf, torch.tensor([0, 1, 2])).backward()
        torch.testing.assert_close(slope, leaf.grad)


@pytest.mark.parametrize("name", LOSSES)
def test_labels_with_gaps(name: str) -> None:
    logits = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    table = torch.stack([torch.arange(8) % 5, torch.full((8,), 10**6)], 1)
    first, second = (
        torch.autograd.grad(LOSSES[name](logits, target), logits)[0]
        for target in (table[:, 0], table[:, 0].contiguous())
    )
    assert torch.equal(first, second)


def test_inputs_are_left_alone() -> None:
    logits, target = torch.randn(3, 5, requires_grad=True), torch.tensor([0, -100, 2])
    before, labels = logits.detach().clone(), target.clone()
    for loss in LOSSES.values():
        loss(logits, target).backward()
    assert torch.equal(logits.detach(), before)
    assert torch.equal(target, labels)


def test_labels_out_of_range_are_never_addresses() -> None:
    for target in ([0, 3], [-1, 0], [2**40, 0]):
        with pytest.raises(ValueError, match="target"):
            SF.acls_loss(torch.zeros(2, 3), torch.tensor(target))
