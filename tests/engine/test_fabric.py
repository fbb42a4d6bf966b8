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
"""


def test_a_worker_loads_no_torchmetrics_and_can_use_it_later() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


HALF = """
from sfumato.engine.fabric import Fabric
Fabric(accelerator="cpu", precision="bf16-mixed")
"""


def test_a_run_in_half_precision_says_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", HALF], capture_output=True, text=True, check=True)
    assert "Precision" not in done.stdout + done.stderr
