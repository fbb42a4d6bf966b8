"""What a run ran on: versions and machine, for whoever reads its results later."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sfumato.engine.fabric import Fabric
from sfumato.ops.library import kernel_level

PACKAGES = ("sfumato", "torch", "torchvision", "torchmetrics", "lightning-fabric", "numpy")


def environment_facts(fabric: Fabric) -> dict[str, Any]:
    """Versions, processor, cores, threads, devices and compiled kernels, as plain data.

    Example:
        >>> sorted(environment_facts(Fabric(accelerator="cpu")))[:3]
        ['accelerator', 'cores', 'devices']
    """
    device = fabric.device
    graphics = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": graphics or _processor(),
        "accelerator": device.type,
        "devices": fabric.world_size,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "kernels": kernel_level(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        for line in cpu.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
