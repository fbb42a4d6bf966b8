"""Two processes, each with its part of the stream, give the numbers of one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sfumato.metrics import (
    brier_score,
    classwise_calibration_error,
    evaluate_predictions,
    mean_iou,
)

Make = Callable[..., tuple[Tensor, Tensor]]

WORKER = """
import json, sys
import torch
import torch.distributed as dist
from torchmetrics import MetricCollection
from sfumato.metrics import (
    BrierScore, CalibrationError, ClasswiseCalibrationError, MeanIoU, StreamingEvaluation
)

folder, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
data = torch.load(f"{folder}/data.pt", weights_only=True)
probs, target = data["probs"], data["target"]
mine = slice(0, 130) if rank == 0 else slice(130, None)
metrics = MetricCollection([
    StreamingEvaluation(), BrierScore(), ClasswiseCalibrationError(4), MeanIoU(4),
    CalibrationError(num_bins=7),
])
for part, labels in zip(probs[mine].split(50), target[mine].split(50)):
    metrics.update(part, labels)
values = {name: float(value) for name, value in metrics.compute().items()}
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(values, file)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes(make: Make, tmp_path: Path) -> None:
    probs, target = make(400, 4, temperature=0.5)
    target[::9] = -100
    torch.save({"probs": probs, "target": target}, tmp_path / "data.pt")
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for worker in workers:
            output, _ = worker.communicate(timeout=240)
            assert worker.returncode == 0, output
    finally:
        for worker in workers:
            worker.kill()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert results[0] == results[1]
    exact = evaluate_predictions(probs=probs, target=target)
    for name in ("accuracy", "nll", "ece", "mce", "overconfidence", "underconfidence"):
        assert results[0][name] == pytest.approx(exact[name]), name
    assert results[0]["aece"] == pytest.approx(exact["aece"], abs=1e-3)
    assert results[0]["BrierScore"] == pytest.approx(float(brier_score(probs, target)))
    classwise = float(classwise_calibration_error(probs, target))
    assert results[0]["ClasswiseCalibrationError"] == pytest.approx(classwise)
    assert results[0]["MeanIoU"] == pytest.approx(float(mean_iou(probs, target)))
