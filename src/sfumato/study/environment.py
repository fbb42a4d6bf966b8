"""Where a study ran: versions and hardware, for its report."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

from sfumato import __version__
from sfumato._files import write_json

PACKAGES = ("torch", "torchvision", "torchmetrics", "lightning-fabric", "numpy", "ray")


def environment() -> dict[str, str | int]:
    """Versions of what decides the numbers, and what they were computed on."""
    found: dict[str, str | int] = {
        "sfumato": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def write_environment(folder: Path) -> None:
    """Write `environment.json`."""
    write_json(folder / "environment.json", environment())
