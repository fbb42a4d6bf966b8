"""The callback for Lightning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.metrics import evaluate_predictions

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of other libraries

IMAGES, LABELS = (
    torch.randn(10, 5, generator=torch.Generator().manual_seed(0)),
    torch.arange(10) % 4,
)


class Counting(nn.CrossEntropyLoss):
    ended = 0

    def end_epoch(self) -> None:
        self.ended += 1


def fitted(returned: str, batches: DataLoader[Any] | None = None) -> tuple[Any, Any]:
    """A module that trained for two epochs, and its trainer; its steps return what is said."""
    lightning = pytest.importorskip("lightning")
    from sfumato.integrations import EvaluationCallback

    class Classifier(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.loss = nn.Linear(5, 4), Counting()

        def forward(self, images: Tensor) -> Tensor:
            return self.linear(images)

        def training_step(self, batch: Any, _: int) -> Tensor:
            return self.loss(self(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> Any:
            if returned == "logits":
                return {"logits": self(batch[0]), "labels": batch[1]}
            return None

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[EvaluationCallback(num_bins=10)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Classifier()
    trainer.fit(module, loader, loader if batches is None else batches)
    return module, trainer


@pytest.mark.parametrize("returned", ["logits", "nothing"])
def test_logs_the_numbers_of_all_batches(returned: str) -> None:
    module, trainer = fitted(returned)
    with torch.no_grad():
        logits = module.linear(IMAGES)
    expected = evaluate_predictions(logits=logits, target=LABELS, num_bins=10)
    for name in ("accuracy", "nll", "ece"):
        found = float(trainer.callback_metrics[f"validation_{name}"])
        assert found == pytest.approx(expected[name], abs=1e-4)
    assert module.loss.ended == 2
    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=4)
    (tested,) = trainer.test(module, loader, verbose=False)
    assert tested["test_nll"] == pytest.approx(expected["nll"], abs=1e-4)


def test_batches_without_labels_are_named() -> None:
    unlabelled: DataLoader[Any] = DataLoader(TensorDataset(IMAGES), batch_size=4)
    with pytest.raises(TypeError, match="needs logits: return"):
        fitted("nothing", unlabelled)
