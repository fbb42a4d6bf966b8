"""Deployment: a network with spatial smoothing, its temperature and the softmax, as one ONNX file.

Run: pip install "sfumato[export]" && python examples/deploy_onnx.py
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn
from torchvision.models import resnet18

from sfumato.features import add_dropout, add_smoothing, model_summary
from sfumato.predictions import TemperatureScaler

torch.manual_seed(0)
images = torch.rand(16, 3, 64, 64)
model = add_smoothing(add_dropout(resnet18(num_classes=10), 0.05), images)
print(model_summary(model, images))

# ... train as usual; then fit the temperature on images that were not trained on. As the network
# of this example is not trained, three of four labels are what it predicts.
model.eval()
with torch.no_grad():
    logits = model(images)
labels = logits.argmax(1)
labels[::4] = torch.randint(10, (4,))
scaler = TemperatureScaler().fit(logits=logits, target=labels)
shipped = nn.Sequential(model, scaler, nn.Softmax(1)).eval()

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.onnx"
    batch = torch.export.Dim("batch")
    torch.onnx.export(shipped, (images,), path, dynamo=True, dynamic_shapes=({0: batch},))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (probs,) = session.run(None, {session.get_inputs()[0].name: images[:3].numpy()})

with torch.no_grad():
    difference = np.abs(probs - shipped(images[:3]).numpy()).max()
print(f"temperature {scaler.temperature:.2f}")
print(f"largest difference between onnxruntime and PyTorch: {difference:.1e}")
if difference > 1e-4:
    raise SystemExit("the exported network predicts something else")
