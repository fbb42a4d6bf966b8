"""Seeds are what they have always been: results, data and corrupted sets depend on them."""

from __future__ import annotations

import torch

from sfumato._core.seeds import draw_seed, fold_seed, mix_seed
from sfumato.corruptions.random_numbers import seeded_generator
from sfumato.data.scenes.render import derive_seed


def test_seeds_never_change() -> None:
    assert fold_seed(0, "epoch", 1) == 123735704575244949
    assert derive_seed(0, "train") == 9143389568510306650
    assert seeded_generator(0, "fog", 3).initial_seed() == 3142660801577560198
    assert seeded_generator(1, "fog", 0.5).initial_seed() == 2044476185575146333
    assert mix_seed(1, 2, 3) == 3822189696
    assert draw_seed(torch.Generator().manual_seed(3)) == 937055941807507096


def test_seeds_are_torch_seeds() -> None:
    seeds = {fold_seed(0, name) for name in range(1000)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
