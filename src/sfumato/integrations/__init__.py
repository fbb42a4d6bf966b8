"""Where training already lives: Lightning and Hugging Face's `Trainer`.

Names load when they are first used, and with them the library that they are for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.integrations.lightning import EvaluationCallback
    from sfumato.integrations.transformers import end_epoch_callback, trainer_loss, trainer_metrics

__all__ = ["EvaluationCallback", "end_epoch_callback", "trainer_loss", "trainer_metrics"]

_HOMES = {
    "EvaluationCallback": "lightning",
    "end_epoch_callback": "transformers",
    "trainer_loss": "transformers",
    "trainer_metrics": "transformers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sfumato.integrations' has no attribute {name!r}")
    return getattr(import_module(f"sfumato.integrations.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
