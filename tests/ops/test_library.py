"""Which kernels are loaded, and how many threads they get."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sfumato.metrics.groups import score
from sfumato.ops import library as native
from sfumato.ops.library import can_deposit

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled kernels here")


def _refuse(path: str) -> None:
    raise OSError(path)


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFUMATO_NATIVE", "0")
    assert native.library.__wrapped__() is None


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "sources_id", lambda folder: "another")
    assert native.library.__wrapped__() is None


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.ctypes, "CDLL", _refuse)
    assert native.library.__wrapped__() is None


def test_a_lower_level_where_the_best_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = native.library()
    assert kernels is not None
    capability = torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(native, "_LEVELS", {capability: ("missing", native.kernel_level())})
    found = native.library.__wrapped__()
    assert found is not None
    assert found._name == kernels._name


def test_level_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = native.library()
    assert kernels is not None
    assert Path(kernels._name).name == f"kernels-{native.kernel_level()}.so"
    monkeypatch.setattr(native, "library", lambda: None)
    assert native.kernel_level() is None


def test_threads_are_woken_for_large_tensors_only() -> None:
    assert native.threads(100) == 1
    assert native.threads(1 << 30) == torch.get_num_threads()


def test_default_device() -> None:
    probs, target = torch.tensor([[0.2, 0.8]]), torch.tensor([1])
    with torch.device("meta"):
        found = score(probs, target)
    assert found.correct.device.type == "cpu"
    assert found.correct.tolist() == [True]


def test_sums_of_another_type() -> None:
    confidence = torch.ones(3)
    assert can_deposit(confidence, torch.zeros(5, 2, dtype=torch.float64))
    assert not can_deposit(confidence, torch.zeros(5, 2))


def test_labels_out_of_range_never_reach_the_kernels() -> None:
    probs = torch.full((2, 3), 1 / 3)
    for target in ([0, 3], [-1, 0]):
        with pytest.raises(ValueError, match="target"):
            score(probs, torch.tensor(target), validate=False)
