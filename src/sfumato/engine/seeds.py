"""The shared derivation of seeds, under the name that the engine imports it by."""

from __future__ import annotations

from sfumato._core.seeds import fold_seed

__all__ = ["fold_seed"]
