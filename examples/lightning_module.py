"""Lightning: the loss is an ordinary module, and a callback logs accuracy, NLL, ECE, AURC, ...

Run: pip install lightning && python examples/lightning_module.py
     python examples/lightning_module.py --epochs 1 --images 100    # a quick try
"""

import argparse

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from sfumato.data import scenes
from sfumato.integrations import EvaluationCallback
from sfumato.labels import ACLSLoss
from sfumato.models import resnet


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = resnet(8, num_classes=10, width=16)
        self.loss = ACLSLoss(margin=6.0)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return self.loss(self.model(images), labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> dict[str, torch.Tensor]:
        images, labels = batch
        return {"logits": self.model(images), "labels": labels}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def loader(images: int, seed: int, shuffle: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
    data = scenes.generate(images, seed=seed)
    return DataLoader(TensorDataset(data.images / 255, data.labels), batch_size=64, shuffle=shuffle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=1000, help="for training, and for validation")
    options = parser.parse_args()
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        gradient_clip_val=2.0,
        callbacks=[EvaluationCallback()],
        logger=False,
        enable_checkpointing=False,
    )
    training, validation = loader(options.images, 0, True), loader(options.images, 1, False)
    trainer.fit(Classifier(), training, validation)
    for name in ("validation_accuracy", "validation_ece", "validation_nll"):
        print(f"{name}: {trainer.callback_metrics[name]:.3f}")


if __name__ == "__main__":
    main()
