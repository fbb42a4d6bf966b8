"""Lightning: the loss and the metrics are ordinary modules, so they live in a LightningModule.

Run: pip install lightning && python examples/lightning_module.py
"""

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


def loader(part: str, shuffle: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
    data = scenes.generate(1000, seed=0 if part == "train" else 1)
    return DataLoader(TensorDataset(data.images / 255, data.labels), batch_size=64, shuffle=shuffle)


if __name__ == "__main__":
    trainer = lightning.Trainer(max_epochs=2, gradient_clip_val=2.0, logger=False)
    trainer.fit(Classifier(), loader("train", shuffle=True), loader("validation", shuffle=False))
