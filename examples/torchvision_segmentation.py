"""torchvision segmentation: a margin loss on per-pixel logits, and calibration over all pixels.

Run: python examples/torchvision_segmentation.py
"""

import torch
from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

from sfumato.labels import MbLSLoss
from sfumato.metrics import CalibrationError

VOID = 255
torch.manual_seed(0)

images = torch.rand(2, 3, 64, 64)
labels = (images.mean(1) > 0.5).long()  # a toy task: bright pixels against dark ones
labels[:, :4] = VOID  # pixels nobody labelled count for nothing

model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2)
loss = MbLSLoss(margin=10.0, ignore_index=VOID)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(5):
    optimizer.zero_grad()
    value = loss(model(images)["out"], labels)
    value.backward()
    optimizer.step()
    print(f"step {step}: loss {value.item():.3f}")

metric = CalibrationError(from_logits=True, ignore_index=VOID)
model.eval()
with torch.no_grad():
    metric.update(model(images)["out"], labels)
print(f"ECE over {int((labels != VOID).sum())} pixels: {metric.compute().item():.3f}")
