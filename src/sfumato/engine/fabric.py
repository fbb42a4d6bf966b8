"""Lightning's Fabric, without the seconds that its import would take.

Only to read its version it imports torchmetrics, and with it much of torchvision and SciPy.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import ModuleType


@contextmanager
def _only_its_version(package: str) -> Iterator[None]:
    """Within, importing a package that is not loaded yet gives its version and nothing else."""
    if package in sys.modules:
        yield
        return
    stand_in = ModuleType(package)
    stand_in.__dict__["__version__"] = version(package)
    sys.modules[package] = stand_in
    try:
        yield
    finally:
        del sys.modules[package]


with _only_its_version("torchmetrics"):
    from lightning_fabric import Fabric as Fabric

# Every worker would say once a run which precision it takes, between the lines of the progress bar.
logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
