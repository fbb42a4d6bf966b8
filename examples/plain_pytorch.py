"""Plain PyTorch: change one line, the loss, and look at the confidences.

Run: python examples/plain_pytorch.py
     python examples/plain_pytorch.py --epochs 1 --images 200    # a quick try
"""

import argparse

import torch

from sfumato.data import TensorLoader, channel_statistics, scenes
from sfumato.labels import ACLSLoss
from sfumato.metrics import evaluate_predictions
from sfumato.models import resnet

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--images", type=int, default=2000, help="for training, and for testing")
options = parser.parse_args()

data = scenes.load(train=options.images, validation=200, test=options.images)
mean, std = channel_statistics(data.train.images)
train_loader = TensorLoader(data.train, 64, shuffle=True, mean=mean, std=std)
test_loader = TensorLoader(data.test, 256, mean=mean, std=std)

for name, loss in (("cross entropy", torch.nn.CrossEntropyLoss()), ("ACLS", ACLSLoss(margin=6.0))):
    torch.manual_seed(0)
    model = resnet(8, num_classes=10, width=16).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = options.epochs * len(train_loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    for epoch in range(options.epochs):
        train_loader.set_epoch(epoch)
        for batch in train_loader:
            optimizer.zero_grad()
            loss(model(batch["image"]), batch["label"]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(batch["image"]) for batch in test_loader])
    found = evaluate_predictions(logits=logits, target=data.test.labels)
    print(f"{name:14s} accuracy {found['accuracy']:.3f}  ECE {found['ece']:.3f}")
