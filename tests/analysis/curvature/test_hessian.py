"""Hessian spectra: exact Hessians, known spectra, dropout masks, convergence, densities."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.analysis import (
    hessian_density,
    hessian_max_spectrum,
    plot_hessian_densities,
    plot_hessian_spectra,
)
from sfumato.analysis.curvature import eigenvalue_outliers
from sfumato.analysis.lanczos import lanczos_eigenvalues, power_eigenvalues
from sfumato.labels import cross_entropy_loss, focal_loss, mbls_loss
from sfumato.models import text_transformer

Loss = Callable[[Tensor, Tensor], Tensor]


def exact_hessian(
    model: nn.Module, batch: tuple[Tensor, Tensor], loss: Loss, decay: float
) -> Tensor:
    names = [name for name, _ in model.named_parameters()]
    weights = [weight.detach() for weight in model.parameters()]

    def value(flat: Tensor) -> Tensor:
        pieces = flat.split([weight.numel() for weight in weights])
        state = {n: p.view_as(w) for n, p, w in zip(names, pieces, weights, strict=True)}
        logits = torch.func.functional_call(model, state, (batch[0],))
        return loss(logits, batch[1]) + decay / 2 * flat.square().sum()

    with warnings.catch_warnings():  # of torch.func's own, when it first loads
        warnings.simplefilter("ignore", FutureWarning)
        return torch.func.hessian(value)(torch.cat([weight.flatten() for weight in weights]))


def by_magnitude(values: Tensor) -> Tensor:
    return values[values.abs().argsort(descending=True)]


@pytest.fixture
def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    return [(2 * torch.randn(24, 5).double(), torch.randint(4, (24,))) for _ in range(2)]


@pytest.mark.parametrize("method", ["lanczos", "power"])
@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        partial(cross_entropy_loss, smoothing=0.1),
        partial(mbls_loss, margin=0.5),
        focal_loss,
    ],
    ids=["ce", "ls", "mbls", "focal"],
)
def test_exact_hessian_of_a_small_network(
    network: nn.Module, batches: list[tuple[Tensor, Tensor]], loss: Loss, method: str
) -> None:
    spectrum = hessian_max_spectrum(
        network, batches, loss, top=2, weight_decay=0.01, method=method, tolerance=1e-9,
        max_products=4000,
    )  # fmt: skip
    assert spectrum.eigenvalues.shape == (2, 2)
    assert spectrum.converged.all()
    for row, batch in zip(spectrum.eigenvalues, batches, strict=True):
        hessian = exact_hessian(network, batch, torch_loss(loss), 0.01)
        expected = by_magnitude(torch.linalg.eigvalsh(hessian))[:2]
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


def torch_loss(loss: Loss) -> Loss:
    """The same loss from plain operations, which functional transforms can go through."""
    if loss is F.cross_entropy:
        return loss
    if loss is focal_loss:

        def focal(logits: Tensor, target: Tensor) -> Tensor:
            log_probs = logits.log_softmax(1).gather(1, target[:, None])[:, 0]
            return -((1 - log_probs.exp()) ** 3 * log_probs).mean()

        return focal
    if loss.func is cross_entropy_loss:
        return partial(F.cross_entropy, label_smoothing=0.1)

    def mbls(logits: Tensor, target: Tensor) -> Tensor:
        distance = logits.amax(1, keepdim=True) - logits
        return F.cross_entropy(logits, target) + 0.1 * (distance - 0.5).relu().mean()

    return mbls


def test_quadratic_with_known_spectrum() -> None:
    values = torch.tensor([9.0, -7.0, 4.0, 1.0, 0.5, -0.25, 0.0, 3.0])
    turn = torch.linalg.qr(torch.randn(8, 8))[0]
    matrix = turn @ torch.diag(values) @ turn.T

    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))

        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * self.weight @ x @ self.weight

    def call(**options: object) -> Tensor:
        found = hessian_max_spectrum(
            Weights(), [(matrix, torch.zeros(1))], lambda value, target: value,
            weight_decay=0.0, tolerance=1e-6, **options,
        )  # fmt: skip
        return found.eigenvalues[0]

    def close(actual: Tensor, expected: list[float]) -> None:
        torch.testing.assert_close(actual.float(), torch.tensor(expected), rtol=1e-4, atol=1e-4)

    close(call(top=3), [9.0, -7.0, 4.0])  # signed, by magnitude
    close(call(top=3, which="largest"), [9.0, 4.0, 3.0])
    close(call(top=8), [9.0, -7.0, 4.0, 3.0, 1.0, 0.5, -0.25, 0.0])


def test_restarts_find_the_same_as_a_full_basis() -> None:
    values = torch.linspace(0, 1, 300).double() ** 3
    start = torch.randn(300, dtype=torch.float64)
    options = {"top": 3, "which": "largest", "tolerance": 1e-8, "max_products": 600}
    few = lanczos_eigenvalues(lambda v: values * v, start, capacity=12, **options)
    many = lanczos_eigenvalues(lambda v: values * v, start, capacity=300, **options)
    assert few.converged.all()
    torch.testing.assert_close(few.eigenvalues, values.flip(0)[:3], rtol=1e-7, atol=0)
    torch.testing.assert_close(many.eigenvalues, values.flip(0)[:3], rtol=1e-7, atol=0)
    assert many.products <= few.products < 600


def test_equal_eigenvalues_and_the_zero_operator() -> None:
    start = torch.randn(6)
    options = {"which": "magnitude", "tolerance": 1e-3, "max_products": 50, "capacity": 6}
    same = lanczos_eigenvalues(lambda v: 2 * v, start, top=3, **options)
    torch.testing.assert_close(same.eigenvalues, torch.full((3,), 2.0).double())
    nothing = lanczos_eigenvalues(torch.zeros_like, start, top=1, **options)
    assert nothing.eigenvalues.item() == 0.0
    assert nothing.converged.all()


def test_error_estimate_holds_and_beats_power_iteration() -> None:
    values = torch.cat([torch.randn(2000) * 0.3, torch.tensor([4.0, 3.7])]).double()
    start = torch.randn(2002, dtype=torch.float64)
    found = lanczos_eigenvalues(
        lambda v: values * v, start, top=1, which="magnitude", tolerance=1e-3, max_products=200,
        capacity=20,
    )  # fmt: skip
    assert abs(found.eigenvalues.item() - 4.0) < 4e-3
    assert abs(found.eigenvalues.item() - 4.0) <= found.errors.item()
    early, late = (
        power_eigenvalues(lambda v: values * v, start, top=1, tolerance=tolerance, max_products=200)
        for tolerance in (1e-3, 1e-4)
    )
    # small changes are no small error: power iteration believes itself too early
    assert early.converged.all()
    assert abs(early.eigenvalues.item() - 4.0) > 4e-3
    assert found.products <= late.products / 2


def test_what_has_not_converged_is_marked(network: nn.Module, batches: list) -> None:
    spectrum = hessian_max_spectrum(network, batches, top=2, tolerance=1e-9, max_products=3)
    assert not spectrum.converged.all()
    assert spectrum.products.tolist() == [3, 3]
    assert (spectrum.residuals > 0).any()


def test_weight_decay_shifts_the_spectrum(network: nn.Module, batches: list) -> None:
    first, second = (
        hessian_max_spectrum(
            network, batches, which="largest", weight_decay=decay, tolerance=1e-8
        ).eigenvalues
        for decay in (0.0, 0.25)
    )
    torch.testing.assert_close(second, first + 0.25, rtol=1e-6, atol=1e-6)


def test_dropout_mask_is_held_within_a_batch_and_drawn_by_the_generator() -> None:
    network = nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Dropout(0.5), nn.Linear(30, 3)).double()
    batch = (torch.randn(16, 5).double(), torch.randint(3, (16,)))
    before = torch.get_rng_state()

    def spectrum(seed: int, mode: str = "sample") -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        found = hessian_max_spectrum(
            network, [batch], mode=mode, tolerance=1e-8, generator=generator
        )
        assert found.converged.all()  # products with changing masks would not be of one operator
        return found.eigenvalues

    assert torch.equal(spectrum(1), spectrum(1))
    assert not torch.allclose(spectrum(1), spectrum(2))
    torch.testing.assert_close(spectrum(1, "eval"), spectrum(2, "eval"))
    assert torch.equal(before, torch.get_rng_state())


def test_model_is_left_as_it_was() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    network.append(nn.Linear(64, 2))
    network[1].eval()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    batch = {"image": torch.randn(4, 3, 6, 6), "label": torch.tensor([0, 1, 0, 1])}
    hessian_max_spectrum(network, [batch], mode="train", max_products=3)
    for name, value in network.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert network.training
    assert not network[1].training
    assert all(weight.grad is None for weight in network.parameters())


def test_batches_and_progress(network: nn.Module, batches: list) -> None:
    seen: list[int] = []
    found = hessian_max_spectrum(network, batches * 3, batches=3, progress=seen.append)
    assert found.eigenvalues.shape == (3, 1)
    assert seen == [1, 2, 3]


def test_density_has_the_moments_of_the_spectrum(network: nn.Module, batches: list) -> None:
    hessian = sum(exact_hessian(network, batch, F.cross_entropy, 0.1) for batch in batches) / 2
    values = torch.linalg.eigvalsh(hessian)
    found = hessian_density(network, batches, weight_decay=0.1, batches=2, probes=30, steps=10)
    torch.testing.assert_close(found.weights.sum(1), torch.ones(30).double())
    assert found.mean == pytest.approx(float(values.mean()), rel=0.15)
    assert found.nodes.max().item() == pytest.approx(float(values.max()), rel=1e-2)
    grid = torch.linspace(-3, 6, 2000).double()
    density = found.density(grid, width=0.05)
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-6)


def test_density_of_all_steps_is_exact(network: nn.Module, batches: list) -> None:
    size = sum(weight.numel() for weight in network.parameters())
    found = hessian_density(network, batches, weight_decay=0.0, probes=1, steps=size + 5)
    values = torch.linalg.eigvalsh(exact_hessian(network, batches[0], F.cross_entropy, 0.0))
    torch.testing.assert_close(found.nodes[0], values, rtol=1e-6, atol=1e-8)


def test_outliers_by_hand() -> None:
    values = torch.tensor([1.0, 1.1, 0.9, 1.0, 1.05, 9.0, -5.0])
    assert eigenvalue_outliers(values).tolist() == [False] * 5 + [True, True]


def test_figures(network: nn.Module, batches: list) -> None:
    spectrum = hessian_max_spectrum(network, batches * 4, top=2)
    figure = plot_hessian_spectra({"a": spectrum, "b": spectrum})
    figure.canvas.draw()
    assert figure.axes[0].get_title(loc="left").startswith("a: median")
    assert "eigenvalues" in figure.axes[-1].get_xlabel()
    density = hessian_density(network, batches, probes=1, steps=5)
    figure = plot_hessian_densities({"a": density})
    figure.canvas.draw()
    assert figure.axes[0].get_yscale() == "log"
    for plot in (plot_hessian_spectra, plot_hessian_densities):
        with pytest.raises(ValueError, match="must hold at least one"):
            plot({})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"top": 0}, ValueError, "top must be at least 1"),
        ({"top": 10**6}, ValueError, "at most 84"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay must be in"),
        ({"batches": 0}, ValueError, "batches must be at least 1"),
        ({"mode": "test"}, ValueError, "mode must be one of"),
        ({"which": "all"}, ValueError, "which must be one of"),
        ({"method": "qr"}, ValueError, "method must be one of"),
        ({"method": "power", "which": "largest"}, ValueError, "which='magnitude' only"),
        ({"tolerance": 0.0}, ValueError, "tolerance must be in"),
        ({"basis": 2}, ValueError, "basis must be at least 3"),
        ({"max_products": 0}, ValueError, "max_products must be at least 1"),
        ({"loader": []}, ValueError, "loader must give at least one batch"),
        ({"loader": [torch.ones(2)]}, TypeError, "dicts with 'image' and 'label'"),
        ({"loss": partial(F.cross_entropy, reduction="none")}, ValueError, "loss must return a sc"),
    ],
)
def test_bad_input(
    network: nn.Module, batches: list, change: dict, error: type[Exception], message: str
) -> None:
    arguments = {"loader": batches, "loss": F.cross_entropy, **change}
    with pytest.raises(error, match=message):
        hessian_max_spectrum(network, **arguments)


def test_nothing_to_differentiate(network: nn.Module, batches: list) -> None:
    with pytest.raises(ValueError, match="requires_grad_"):
        hessian_max_spectrum(network.requires_grad_(False), batches)
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        hessian_max_spectrum(F.relu, batches)


def test_attention_has_a_hessian() -> None:
    """The fused attention of a CPU has no second derivative."""
    network = text_transformer(num_classes=3, vocabulary_size=9, width=4, heads=2, depth=1)
    batch = (torch.randint(1, 9, (4, 5)), torch.tensor([0, 1, 2, 0]))
    found = hessian_max_spectrum(network, [batch], mode="eval")
    assert bool(found.eigenvalues.isfinite().all())
