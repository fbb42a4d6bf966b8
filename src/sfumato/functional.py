"""Every pure function of the leaves in one place: `import sfumato.functional as SF`.

The list follows from what the leaves export. Functions that draw figures, change a network or touch
files stay where they are; classes too.
"""

from inspect import isfunction as _isfunction
from typing import TYPE_CHECKING

from sfumato import augment, corruptions, features, inputs, labels, metrics, predictions

if TYPE_CHECKING:
    from sfumato.augment import *
    from sfumato.corruptions import *
    from sfumato.features import *
    from sfumato.inputs import *
    from sfumato.labels import *
    from sfumato.metrics import *
    from sfumato.predictions import *

_NOT_PURE = (
    "add_dropout",
    "add_smoothing",
    "model_summary",
    "read_corrupted",
    "write_corrupted",
)
_FUNCTIONS = {
    name: value
    for leaf in (augment, corruptions, features, inputs, labels, metrics, predictions)
    # Not `getattr`, which would load what a leaf loads on first use; those are classes.
    for name, value in vars(leaf).items()
    if _isfunction(value) and name in leaf.__all__ and name not in _NOT_PURE
    if not value.__module__.endswith(".figures")
}
globals().update(_FUNCTIONS)

__all__ = sorted(_FUNCTIONS)
