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
