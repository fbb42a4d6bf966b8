"""Deployment: a torchvision network with spatial smoothing and dropout, exported to ONNX.

Run: pip install "sfumato[export]" && python examples/deploy_onnx.py
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torchvision.models import resnet18

from sfumato.features import add_dropout, add_smoothing, model_summary

torch.manual_seed(0)
images = torch.rand(4, 3, 64, 64)
model = add_smoothing(add_dropout(resnet18(num_classes=10), 0.05), images)
print(model_summary(model, images))

# ... train as usual; then:
model.eval()
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.onnx"
    batch = torch.export.Dim("batch")
    torch.onnx.export(model, (images,), path, dynamo=True, dynamic_shapes=({0: batch},))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: images[:3].numpy()})

with torch.no_grad():
    difference = np.abs(logits - model(images[:3]).numpy()).max()
print(f"largest difference between onnxruntime and PyTorch: {difference:.1e}")
