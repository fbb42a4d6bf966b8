"""Lightning: the loss and the metrics are ordinary modules, so they live in a LightningModule.

Run: pip install lightning && python examples/lightning_module.py
     python examples/lightning_module.py --epochs 1 --images 100    # a quick try
"""

import argparse

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

from sfumato.data import scenes
from sfumato.labels import ACLSLoss
from sfumato.metrics import CalibrationError, NegativeLogLikelihood
from sfumato.models import resnet


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = resnet(8, num_classes=10, width=16)
        self.loss = ACLSLoss(margin=6.0)
        self.metrics = MetricCollection(
            {
                "ece": CalibrationError(from_logits=True),
                "nll": NegativeLogLikelihood(from_logits=True),
            }
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return self.loss(self.model(images), labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        images, labels = batch
        self.metrics.update(self.model(images), labels)

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.metrics.compute(), prog_bar=True)
        self.metrics.reset()

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
        logger=False,
        enable_checkpointing=False,
    )
    training, validation = loader(options.images, 0, True), loader(options.images, 1, False)
    trainer.fit(Classifier(), training, validation)
    for name, value in trainer.callback_metrics.items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
