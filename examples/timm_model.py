"""timm: any of its models with any of our losses.

Run: pip install timm && python examples/timm_model.py
"""

import timm
import torch
from timm.optim import create_optimizer_v2

from sfumato.labels import MbLSLoss

torch.manual_seed(0)
model = timm.create_model("resnet10t", pretrained=False, num_classes=10)
loss = MbLSLoss(margin=10.0, weight=0.1)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9)

images, labels = torch.rand(16, 3, 64, 64), torch.randint(10, (16,))
for step in range(5):
    optimizer.zero_grad()
    value = loss(model(images), labels)
    value.backward()
    optimizer.step()
    print(f"step {step}: loss {value.item():.3f}")
