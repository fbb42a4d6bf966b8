"""Hugging Face's Trainer: a loss of ours, our numbers after each epoch; a small ViT from scratch.

Run: pip install transformers accelerate && python examples/transformers_trainer.py
     python examples/transformers_trainer.py --epochs 1 --images 64    # a quick try
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import sfumato
from sfumato.data import scenes
from sfumato.integrations import end_epoch_callback, trainer_loss, trainer_metrics
from sfumato.labels import MbLSLoss


class Pictures(Dataset[dict[str, torch.Tensor]]):
    """Built-in images under the names that the model takes."""

    def __init__(self, images: int, seed: int) -> None:
        self.data = scenes.generate(images, seed=seed)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        images = self.data.images[place] / 255
        return {"pixel_values": images, "labels": self.data.labels[place]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=1000, help="for training, and for validation")
    options = parser.parse_args()
    shape = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2}
    sizes = {"num_attention_heads": 2, "intermediate_size": 64, "num_labels": 10}
    model = ViTForImageClassification(ViTConfig(**shape, **sizes))
    loss = MbLSLoss(margin=6.0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                num_train_epochs=options.epochs,
                per_device_train_batch_size=32,
                learning_rate=1e-3,
                eval_strategy="epoch",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Pictures(options.images, 0),
            eval_dataset=Pictures(options.images, 1),
            compute_loss_func=trainer_loss(loss),
            compute_metrics=trainer_metrics,
            callbacks=[end_epoch_callback(loss)],
        )
        trainer.train()
        found = trainer.evaluate()
        loader = trainer.get_eval_dataloader()
    # The same numbers with intervals: the model's output holds the logits.
    result = sfumato.evaluate(lambda images: model(images).logits, loader, quiet=True)["test"]
    low, high = result["ece_interval"]
    print(f"ECE of the Trainer {found['eval_ece']:.3f}, with its interval [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
