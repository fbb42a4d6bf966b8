"""What every loss keeps: one battery over all losses of the table of parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import Tensor, nn

from sfumato import labels
from sfumato.engine.config.components import components
from tools.endurance.loss_references import parts_of, reduced, stands_at_kink

Batch = tuple[
    Tensor, Tensor, Tensor
]  # logits (N, C, ...), target (N, ...), extra (N, ...) in [0, 1]


class Loss(NamedTuple):
    """A loss with its settings.

    Attributes:
        call: (logits, target, extra, **options); extra is correctness, accuracy, or not used.
        module: its module where that takes logits and target only.
        soft: defined for soft targets.
        is_shift_invariant: adding a number to all logits of an entry changes nothing.
        is_conservative: its gradient is that of its value.
        is_ordered: depends on the order of the entries.
        reads_neighbours: the labels around an entry matter.
        reference: its name in the oracle, and the options there.
    """

    call: Callable[..., Tensor]
    module: Callable[..., nn.Module] | None = None
    soft: bool = True
    is_shift_invariant: bool = True
    is_conservative: bool = True
    is_ordered: bool = False
    reads_neighbours: bool = False
    reference: tuple[str, dict[str, Any]] = ("", {})


def _simple(function: Callable[..., Tensor], **fixed: Any) -> Callable[..., Tensor]:
    def call(logits: Tensor, target: Tensor, extra: Tensor, **options: Any) -> Tensor:
        return function(logits, target, **fixed, **options)

    return call


def _from_table(name: str, **fixed: Any) -> Loss:
    """A loss as the table of parts and its class describe it; its function is `NAME_loss`."""
    part, function = components("loss")[name], getattr(labels, f"{name}_loss")
    is_conservative = getattr(part.build, "is_conservative", True)
    if part.remembers_samples({}):
        # Its function takes what its module remembers of each sample, and so needs no labels.
        call = partial(function, **fixed)
        return Loss(call, is_conservative=is_conservative, reference=(name, fixed))
    return Loss(
        _simple(function, **fixed),
        None if part.takes("num_classes") else partial(part.build, **fixed),
        soft=part.takes_soft_targets,
        is_shift_invariant=getattr(part.build, "is_shift_invariant", True),
        is_conservative=is_conservative,
        reads_neighbours=getattr(part.build, "reads_neighbours", False),
        reference=(name, fixed),
    )


def _ranked_acls(logits: Tensor, target: Tensor, extra: Tensor, **options: Any) -> Tensor:
    return labels.acls_loss(
        logits, target, margin=2.0, condition="ranking", correctness=extra, **options
    )


NAMES = [name for name, part in components("loss").items() if not part.is_composite]
# Settings under which a loss has more to do on small logits than with its defaults.
SETTINGS: dict[str, dict[str, Any]] = {key: {"margin": 2.0} for key in ("mbls", "acls", "cals")}
NEIGHBOURS = ("crl",)  # compares each entry with the next
LOSSES: dict[str, Loss] = {
    name: _from_table(name, **SETTINGS.get(name, {}))._replace(is_ordered=name in NEIGHBOURS)
    for name in NAMES
}
# More settings of those.
LOSSES |= {
    "label smoothing": _from_table("cross_entropy", smoothing=0.1),
    "label smoothing, others": _from_table("cross_entropy", smoothing=0.1, smoothing_over="others"),
    "flsd, released": _from_table("flsd", rule="released"),
    "bsce, whole": _from_table("bsce", stop_gradient=False),
    "mmce, weighted": _from_table("mmce", weighted=True),
    "crl, margin": _from_table("crl", confidence="margin")._replace(is_ordered=True),
    "crl, entropy": _from_table("crl", confidence="entropy")._replace(is_ordered=True),
    "acls, gradient": _from_table("acls", margin=2.0, form="gradient"),
    "acls, released": _from_table("acls", margin=2.0, form="released")._replace(
        is_shift_invariant=False
    ),
    "acls, adaptive only": _from_table("acls", margin=2.0, condition="always"),
    "acls, conditional only": _from_table("acls", margin=2.0, smoothing="constant"),
    "acls, ranking": Loss(
        _ranked_acls,
        is_conservative=False,
        is_ordered=True,
        reference=("acls", {"margin": 2.0, "condition": "ranking"}),
    ),
}

# All losses as modules, with what a study would tell them.
TOLD = {"num_classes": 4, "num_samples": 6, "epochs": 3}
MODULES: dict[str, Callable[[], nn.Module]] = {
    name: partial(part.build, **{key: value for key, value in TOLD.items() if part.takes(key)})
    for name, part in components("loss").items()
    if not part.is_composite
}

# Each loss is cross entropy plus a number of times its penalty.
PENALTIES: dict[str, tuple[float, Callable[..., Tensor]]] = {
    "ecp": (0.1, _simple(labels.entropy_penalty)),
    "mmce": (1.0, _simple(labels.mmce_penalty)),
    "mmce, weighted": (1.0, _simple(labels.mmce_penalty, weighted=True)),
    "mdca": (1.0, _simple(labels.mdca_penalty)),
    "maxsup": (0.1, _simple(labels.maxsup_penalty)),
    "cals": (1.0, _simple(labels.cals_penalty, margin=2.0)),
    "nacl": (0.1, _simple(labels.neighbour_penalty)),
    "crl": (1.0, labels.ranking_penalty),
    "cape": (1.0, labels.cape_penalty),
    "mbls": (0.1, _simple(labels.margin_penalty, margin=2.0)),
    "acls": (1.0, _simple(labels.acls_penalty, margin=2.0)),
    "acls, released": (1.0, _simple(labels.acls_penalty, margin=2.0, form="released")),
    "normalised_cross_entropy": (1.0, lambda z, y, extra: labels.log_normaliser(z).mean()),
}

every_loss = pytest.mark.parametrize("name", LOSSES)
a_few = settings(max_examples=12)


@st.composite
def batches(draw: st.DrawFn, *, ignored: bool = True) -> Batch:
    """Small batches: (N, C), (N, C, L), (N, C, H, W), confident or not, some entries ignored."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    samples, classes = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    scale = draw(st.sampled_from([0.1, 1.0, 5.0]))
    logits = scale * torch.randn(samples, classes, *shape, generator=generator, dtype=torch.float64)
    target = torch.randint(0, classes, (samples, *shape), generator=generator)
    extra = torch.rand(samples, *shape, generator=generator, dtype=torch.float64)
    if ignored and draw(st.booleans()):
        target[torch.rand(target.shape, generator=generator) < 0.4] = -100
    return logits, target, extra


def _value_and_gradient(loss: Loss, batch: Batch, **options: Any) -> tuple[Tensor, Tensor]:
    logits, target, extra = batch
    logits = logits.detach().clone().requires_grad_()
    value = loss.call(logits, target, extra, **options)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return value.detach(), gradient


def _rows(tensor: Tensor, classes: int | None = None) -> Tensor:
    return tensor.flatten() if classes is None else tensor.movedim(1, -1).reshape(-1, classes)


@every_loss
@a_few
@given(batch=batches())
def test_value_and_gradient_are_those_of_the_oracle(name: str, batch: Batch) -> None:
    known, fixed = LOSSES[name].reference
    logits, target, extra = batch
    logits = logits.clone().requires_grad_()
    parts, valid = parts_of(known, logits, target, extra=extra, **fixed)
    assume(not stands_at_kink(parts, 1e-7))
    for reduction in ("mean", "none"):
        expected = reduced(parts, reduction, valid)
        (slope,) = torch.autograd.grad(expected.sum(), logits, retain_graph=True)
        value, gradient = _value_and_gradient(LOSSES[name], batch, reduction=reduction)
        torch.testing.assert_close(value, expected.detach())
        torch.testing.assert_close(gradient, slope)


@every_loss
@a_few
@given(batch=batches())
def test_reductions_agree(name: str, batch: Batch) -> None:
    loss, valid = LOSSES[name], batch[1] != -100
    each, _ = _value_and_gradient(loss, batch, reduction="none")
    assert each.shape == batch[1].shape
    assert not each[~valid].any()
    total, sum_gradient = _value_and_gradient(loss, batch, reduction="sum")
    mean, mean_gradient = _value_and_gradient(loss, batch, reduction="mean")
    torch.testing.assert_close(each.sum(), total)
    torch.testing.assert_close(mean * valid.sum().clamp(min=1), total)
    torch.testing.assert_close(mean_gradient * valid.sum().clamp(min=1), sum_gradient)


@every_loss
@a_few
@given(batch=batches())
def test_ignoring_is_leaving_out(name: str, batch: Batch) -> None:
    if LOSSES[name].reads_neighbours:
        return
    logits, target, extra = batch
    value, gradient = _value_and_gradient(LOSSES[name], batch)
    valid = _rows(target) != -100
    classes = logits.shape[1]
    kept = (_rows(logits, classes)[valid], _rows(target)[valid], _rows(extra)[valid])
    kept_value, kept_gradient = _value_and_gradient(LOSSES[name], kept)
    torch.testing.assert_close(value, kept_value)
    torch.testing.assert_close(_rows(gradient, classes)[valid], kept_gradient)
    assert not _rows(gradient, classes)[~valid].any()


@every_loss
@a_few
@given(batch=batches(), seed=st.integers(0, 99))
def test_order_of_entries_does_not_matter(name: str, batch: Batch, seed: int) -> None:
    if LOSSES[name].is_ordered:
        return
    logits, target, extra = batch
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(seed))
    value, gradient = _value_and_gradient(LOSSES[name], batch)
    shuffled = (logits[order], target[order], extra[order])
    new_value, new_gradient = _value_and_gradient(LOSSES[name], shuffled)
    torch.testing.assert_close(new_value, value)
    torch.testing.assert_close(new_gradient, gradient[order])


@every_loss
@a_few
@given(batch=batches(), shift=st.floats(-50, 50))
def test_a_common_shift_does_not_matter(name: str, batch: Batch, shift: float) -> None:
    logits, target, extra = batch
    loss = LOSSES[name]
    value, gradient = _value_and_gradient(loss, batch)
    if loss.is_shift_invariant:
        moved, _ = _value_and_gradient(loss, (logits + shift, target, extra))
        torch.testing.assert_close(moved, value, rtol=1e-9, atol=1e-9)
    if loss.is_shift_invariant and loss.is_conservative:
        sums = gradient.sum(1)
        torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-10)


@every_loss
@a_few
@given(batch=batches())
def test_layout_does_not_matter(name: str, batch: Batch) -> None:
    logits, target, extra = batch
    value, gradient = _value_and_gradient(LOSSES[name], batch)
    layouts = [torch.stack([logits, logits], -1)[..., 0]]
    if logits.ndim == 4:
        layouts.append(logits.to(memory_format=torch.channels_last))
    for other in layouts:
        new_value, new_gradient = _value_and_gradient(LOSSES[name], (other, target, extra))
        torch.testing.assert_close(new_value, value)
        torch.testing.assert_close(new_gradient, gradient)


@every_loss
@a_few
@given(batch=batches(), at=st.integers(0, 3))
def test_classes_may_be_any_dimension(name: str, batch: Batch, at: int) -> None:
    """(B, T, V) as language models have it, with `class_dim=-1`, and soft targets like it."""
    logits, target, extra = batch
    value, gradient = _value_and_gradient(LOSSES[name], batch)
    for dim in (-1, at % logits.ndim):
        moved = logits.movedim(1, dim).contiguous()
        new_value, slope = _value_and_gradient(LOSSES[name], (moved, target, extra), class_dim=dim)
        torch.testing.assert_close(new_value, value)
        torch.testing.assert_close(slope.movedim(dim, 1), gradient)
    if LOSSES[name].soft:
        soft = logits.softmax(1)
        expected = LOSSES[name].call(logits, soft, extra)
        last = (logits.movedim(1, -1), soft.movedim(1, -1), extra)
        torch.testing.assert_close(LOSSES[name].call(*last, class_dim=-1), expected)


@every_loss
@a_few
@given(batch=batches(), dtype=st.sampled_from([torch.float16, torch.bfloat16]))
def test_half_precision_is_computed_in_single(name: str, batch: Batch, dtype: torch.dtype) -> None:
    logits, target, extra = batch
    half, extra = logits.to(dtype), extra.float()
    expected, slope = _value_and_gradient(LOSSES[name], (half.float(), target, extra))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, gradient = _value_and_gradient(LOSSES[name], (half, target, extra))
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, slope.to(dtype))


@every_loss
@pytest.mark.parametrize("shape", [(1, 2), (1, 5), (3, 2), (2, 3, 2, 2)])
def test_huge_logits_stay_finite(name: str, shape: tuple[int, ...]) -> None:
    for fill in (1e4, -1e4):
        logits = torch.zeros(shape)
        logits[:, 0] = fill
        entries = shape[:1] + shape[2:]
        for label in (0, 1):
            target = torch.full(entries, label)
            batch = (logits, target, torch.linspace(0, 1, target.numel()).view(entries))
            value, gradient = _value_and_gradient(LOSSES[name], batch)
            assert value.isfinite()
            assert gradient.isfinite().all()


@every_loss
@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3), (0, 4), (2, 4, 0), (0, 4, 2, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nothing_valid_gives_zero(name: str, shape: tuple[int, ...], reduction: str) -> None:
    target = torch.full(shape[:1] + shape[2:], -100)
    batch = (torch.randn(shape), target, torch.rand(target.shape))
    value, gradient = _value_and_gradient(LOSSES[name], batch, reduction=reduction)
    assert not value.any()
    assert not gradient.any()
    assert gradient.shape == shape


@every_loss
@a_few
@given(batch=batches())
def test_torch_func_agrees(name: str, batch: Batch) -> None:
    logits, target, extra = batch
    loss = LOSSES[name].call
    _, gradient = _value_and_gradient(LOSSES[name], batch)
    torch.testing.assert_close(torch.func.grad(loss)(logits, target, extra), gradient)


@every_loss
def test_vmap_over_batches(name: str) -> None:
    logits = torch.randn(3, 5, 4, dtype=torch.float64) * 3
    target, extra = torch.randint(0, 4, (3, 5)), torch.rand(3, 5, dtype=torch.float64)
    loss = torch.func.grad(LOSSES[name].call)
    together = torch.func.vmap(loss)(logits, target, extra)
    one_by_one = [loss(*batch) for batch in zip(logits, target, extra, strict=True)]
    torch.testing.assert_close(together, torch.stack(one_by_one))


@every_loss
def test_second_derivatives_agree(name: str) -> None:
    loss = LOSSES[name]
    logits = (torch.randn(6, 5, dtype=torch.float64) * 3).requires_grad_()
    target, extra = torch.randint(0, 5, (6,)), torch.rand(6, dtype=torch.float64)
    vector = torch.randn_like(logits)
    value = loss.call(logits, target, extra)
    (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
    (product,) = torch.autograd.grad(gradient, logits, vector)

    def slope(z: Tensor) -> Tensor:
        return (torch.func.grad(loss.call)(z, target, extra) * vector).sum()

    torch.testing.assert_close(product, torch.func.grad(slope)(logits.detach()))


@every_loss
@a_few
@given(batch=batches())
def test_module_is_the_function(name: str, batch: Batch) -> None:
    loss = LOSSES[name]
    if loss.module is None:
        return
    for reduction in ("mean", "none"):
        module = loss.module(reduction=reduction)
        expected = loss.call(*batch, reduction=reduction)
        assert torch.equal(module(*batch[:2]), expected)


@pytest.mark.parametrize("name", PENALTIES)
@a_few
@given(batch=batches(ignored=False))
def test_loss_is_cross_entropy_plus_penalty(name: str, batch: Batch) -> None:
    weight, penalty = PENALTIES[name]
    expected = labels.cross_entropy_loss(*batch[:2]) + weight * penalty(*batch)
    torch.testing.assert_close(LOSSES[name].call(*batch), expected)


@every_loss
def test_soft_targets_or_a_clear_error(name: str) -> None:
    loss = LOSSES[name]
    logits, extra = torch.randn(5, 3, dtype=torch.float64), torch.rand(5)
    target = torch.randint(0, 3, (5,))
    soft = torch.nn.functional.one_hot(target, 3).double()
    if loss.soft:
        torch.testing.assert_close(loss.call(logits, soft, extra), loss.call(logits, target, extra))
    else:
        with pytest.raises(TypeError, match="target must hold class indices for this loss"):
            loss.call(logits, soft, extra)


@every_loss
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_integer_labels_of_any_kind(name: str, dtype: torch.dtype) -> None:
    logits, extra = torch.randn(4, 3, 2), torch.rand(4, 2)
    target = torch.randint(0, 3, (4, 2))
    target[0] = 255 if dtype == torch.uint8 else -1
    ignore = int(target[0, 0])
    expected = LOSSES[name].call(logits, target, extra, ignore_index=ignore)
    small = LOSSES[name].call(logits, target.to(dtype), extra, ignore_index=ignore)
    assert torch.equal(small, expected)


@every_loss
def test_silent_without_gradient(name: str) -> None:
    batch = (torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0]), torch.rand(4))
    with torch.no_grad():
        assert not LOSSES[name].call(*batch).requires_grad
    assert LOSSES[name].call(*batch).requires_grad


@every_loss
@pytest.mark.parametrize(
    ("logits", "target", "options", "error", "message"),
    [
        (torch.ones(4, 3).long(), torch.zeros(4).long(), {}, TypeError, "logits must be floating"),
        (torch.randn(4), torch.zeros(4).long(), {}, ValueError, "logits must have shape"),
        (torch.randn(4, 1), torch.zeros(4).long(), {}, ValueError, "at least 2 classes"),
        (torch.randn(4, 3), torch.zeros(5).long(), {}, ValueError, "target must have shape"),
        (torch.randn(2, 4, 3), torch.zeros(2, 4).long(), {}, ValueError, "Pass class_dim=-1"),
        (
            torch.randn(2, 4, 3),
            torch.zeros(2, 3).long(),
            {"class_dim": -1},
            ValueError,
            r"shape \(2, 4\) .* classes in dimension -1, got \(2, 3\)",
        ),
        (torch.randn(4, 3), torch.zeros(4).long(), {"class_dim": 2}, ValueError, "class_dim must"),
        (torch.randn(4, 3), torch.full((4,), 3), {}, ValueError, "target must be class indices"),
        (
            torch.randn(4, 3),
            torch.zeros(4).long(),
            {"reduction": "average"},
            ValueError,
            "reduction must be one of",
        ),
    ],
)
def test_bad_input(
    name: str,
    logits: Tensor,
    target: Tensor,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        LOSSES[name].call(logits, target, torch.rand(4), **options)


def test_every_exported_loss_is_in_the_table() -> None:
    functions = {name for name in labels.__all__ if name.endswith("_loss")}
    assert functions - {"combined_loss", "linear_head_loss"} == {f"{name}_loss" for name in NAMES}
    classes = {getattr(labels, name) for name in labels.__all__ if name.endswith("Loss")}
    of_others = {labels.CombinedLoss, labels.LinearHeadLoss}
    assert classes - of_others == {components("loss")[name].build for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_single_entries_are_what_the_class_says(name: str) -> None:
    """The value of an entry changes with the others exactly where the class doesn't promise."""
    part, call = components("loss")[name], LOSSES[name].call
    logits = 3 * torch.randn(6, 5, dtype=torch.float64)
    target, extra = torch.randint(0, 5, (6,)), torch.rand(6, dtype=torch.float64)
    changed = torch.cat([logits[:1], 3 * torch.randn_like(logits[1:])])
    before, after = (call(z, target, extra, reduction="none")[0] for z in (logits, changed))
    # A history of each sample is no single entry, whatever its function does with it.
    if part.is_of_single_entries or not part.remembers_samples({}):
        assert torch.equal(before, after) == part.is_of_single_entries


@pytest.mark.slow
@every_loss
def test_compiled_is_eager(name: str) -> None:
    loss = LOSSES[name]
    torch.compiler.reset()  # the adaptors above share one code object and so one recompile limit
    compiled = Loss(torch.compile(loss.call, fullgraph=True))
    for shape in [(6, 4), (2, 4, 3, 3)]:
        target = torch.randint(0, 4, shape[:1] + shape[2:])
        target.view(-1)[0] = -100
        batch = (torch.randn(shape) * 3, target, torch.rand(target.shape))
        value, gradient = _value_and_gradient(loss, batch)
        new_value, new_gradient = _value_and_gradient(compiled, batch)
        torch.testing.assert_close(new_value, value)
        torch.testing.assert_close(new_gradient, gradient)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_compiled_modules_are_eager(name: str, dynamic: bool) -> None:
    """In one graph, over epochs of which some losses remember something."""
    torch.compiler.reset()
    plain, other = MODULES[name]().train(), MODULES[name]().train()
    compiled = torch.compile(other, fullgraph=True, dynamic=dynamic)
    for samples in (6, 6, 5 if dynamic else 6):
        logits, target = 3 * torch.randn(samples, 4), torch.randint(0, 4, (samples,))
        target[0] = -100
        extra = (torch.arange(samples),) if components("loss")[name].remembers_samples({}) else ()
        found = []
        for loss, call in ((plain, plain), (other, compiled)):
            rows = logits.clone().requires_grad_()
            value = call(rows, target, *extra)
            found.append((value.detach(), *torch.autograd.grad(value, rows)))
            end_epoch(loss, logits, target)
        torch.testing.assert_close(found[1], found[0])
    # NaN is what CaPE knows of a sample that was always ignored.
    torch.testing.assert_close(other.state_dict(), plain.state_dict(), equal_nan=True)


def end_epoch(loss: Any, logits: Tensor, target: Tensor) -> None:
    """End an epoch of every part of a loss, after the validation that some of them need."""
    for module in loss.modules():
        if hasattr(module, "note_validation"):
            module.note_validation(logits, target)
        if hasattr(module, "end_epoch"):
            module.end_epoch()
