"""Fabric without what its import would load beside."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import sfumato.engine.tasks.classify
print("torchmetrics" in sys.modules, "torchvision" in sys.modules)
from sfumato.metrics import CalibrationError
import torchmetrics
print(issubclass(CalibrationError, torchmetrics.Metric))
from sfumato.engine.fabric import Fabric
Fabric(accelerator="cpu", precision="bf16-mixed")
"""


def test_a_worker_loads_no_torchmetrics_can_use_it_later_and_says_nothing_of_precision() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
    assert "Precision" not in done.stderr
