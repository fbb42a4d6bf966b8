"""Hugging Face's Trainer: our losses and numbers for images, sequences, tokens and next tokens.

Run: pip install transformers accelerate && python examples/transformers_trainer.py
     python examples/transformers_trainer.py --epochs 1 --samples 64    # a quick try

Small networks from scratch: a ViT, two BERTs and a GPT-2.
"""

import argparse
import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import sfumato
from sfumato.data import scenes
from sfumato.integrations import (
    end_epoch_callback,
    trainer_loss,
    trainer_metrics,
    trainer_scores,
)
from sfumato.labels import ACLSLoss, MbLSLoss

TOKENS, STEPS, LENGTH = 40, 4, 16


class Samples(Dataset[dict[str, Tensor]]):
    """Tensors under the names that the model takes."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors["labels"])

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {name: values[place] for name, values in self.tensors.items()}


def pictures(count: int, seed: int) -> Samples:
    """Built-in images and their classes."""
    data = scenes.generate(count, seed=seed)
    return Samples(pixel_values=data.images / 255, labels=data.labels)


def texts(labels: str, count: int, seed: int) -> Samples:
    """Tokens that go up in steps of 1 to 4, one in five of them replaced by another.

    Labels are the step of each sequence, what each token was before it was replaced (modulo 4, the
    first of them ignored), or the tokens themselves.
    """
    generator = torch.Generator().manual_seed(seed)
    step = torch.randint(STEPS, (count, 1), generator=generator)
    start = torch.randint(TOKENS, (count, 1), generator=generator)
    clean = (start + (step + 1) * torch.arange(LENGTH)) % TOKENS
    other = torch.randint(TOKENS, clean.shape, generator=generator)
    is_other = torch.rand(clean.shape, generator=generator) < 0.2
    tokens = torch.where(is_other, other, clean)
    by_token = (clean % STEPS).index_fill(1, torch.tensor([0]), -100)
    found = {"sequence": step[:, 0], "token": by_token, "causal": tokens}[labels]
    return Samples(input_ids=tokens, labels=found)


def network(task: str) -> PreTrainedModel:
    """A network from scratch for images, sequences, tokens or next tokens."""
    if task == "causal":
        shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=TOKENS, bos_token_id=0, eos_token_id=0, **shape)
        )
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    size["intermediate_size"] = 64
    if task == "image":
        return ViTForImageClassification(
            ViTConfig(image_size=32, patch_size=8, num_labels=10, **size)
        )
    config = BertConfig(vocab_size=TOKENS, num_labels=STEPS, **size)
    if task == "token":
        return BertForTokenClassification(config)
    return BertForSequenceClassification(config)


def train(task: str, options: argparse.Namespace, **settings: Any) -> Trainer:
    """Train the network of a task."""
    first, second = (
        pictures(options.samples, seed) if task == "image" else texts(task, options.samples, seed)
        for seed in (0, 1)
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=network(task),
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
            train_dataset=first,
            eval_dataset=second,
            compute_metrics=trainer_metrics,
            **settings,
        )
        trainer.train()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=1000, help="to train on, and to validate on")
    options = parser.parse_args()
    # Logits (B, C): a sequence has one label.
    loss = MbLSLoss(margin=6.0)
    epochs = [end_epoch_callback(loss)]
    sequence = train("sequence", options, compute_loss_func=trainer_loss(loss), callbacks=epochs)
    # Logits (B, T, C): the classes are last, and only three numbers a token are kept.
    token = train(
        "token",
        options,
        compute_loss_func=trainer_loss(loss, class_dim=-1),
        preprocess_logits_for_metrics=trainer_scores(class_dim=-1),
    )
    # Logits (B, T, V) of which each predicts the next token.
    causal = train(
        "causal",
        options,
        compute_loss_func=trainer_loss(ACLSLoss(margin=10.0), causal=True),
        preprocess_logits_for_metrics=trainer_scores(causal=True),
    )
    for name, trainer in (("sequence", sequence), ("token", token), ("causal", causal)):
        found = trainer.evaluate()
        numbers = ", ".join(
            f"{key} {found[f'eval_{key}']:.3f}" for key in ("accuracy", "nll", "ece")
        )
        print(f"{name}: {numbers}")
    image = train("image", options, compute_loss_func=trainer_loss(loss))
    found, loader = image.evaluate(), image.get_eval_dataloader()
    # The same numbers with intervals: the model's output holds the logits.
    result = sfumato.evaluate(lambda images: image.model(images).logits, loader, quiet=True)["test"]
    low, high = result["ece_interval"]
    print(f"ECE of the Trainer {found['eval_ece']:.3f}, with its interval [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
