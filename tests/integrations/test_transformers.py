"""Hugging Face's `Trainer` with our losses and numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.integrations import (
    end_epoch_callback,
    trainer_loss,
    trainer_metrics,
    trainer_scores,
)
from sfumato.labels import ACLSLoss, CRLLoss, MbLSLoss, acls_loss
from sfumato.metrics import evaluate_predictions

LOGITS, LABELS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4


@pytest.mark.parametrize(
    "outputs", [SimpleNamespace(logits=LOGITS), {"logits": LOGITS}, (LOGITS, torch.zeros(6))]
)
def test_loss_finds_the_logits(outputs: Any) -> None:
    value = trainer_loss(ACLSLoss(margin=1.0))(outputs, LABELS)
    torch.testing.assert_close(value, acls_loss(LOGITS, LABELS, margin=1.0))


def test_accumulated_batches_add_up_to_the_whole() -> None:
    """Two batches with 2 and 3 labels that count, of a step with 5."""
    labels = LABELS.clone()
    labels[1] = -100
    compute = trainer_loss(MbLSLoss(margin=1.0))
    parts = [
        compute({"logits": LOGITS[rows]}, labels[rows], num_items_in_batch=torch.tensor(5))
        for rows in (slice(0, 3), slice(3, 6))
    ]
    torch.testing.assert_close(sum(parts), MbLSLoss(margin=1.0)(LOGITS, labels))


WORDS = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(1))
TOKENS = torch.arange(20).view(4, 5) % 7


@pytest.mark.parametrize("causal", [False, True])
def test_accumulated_batches_of_tokens_are_one_large_batch(causal: bool) -> None:
    """Values and gradients, with sequences of different lengths."""
    labels = TOKENS.clone()
    labels[0, 2:] = -100
    expected = (WORDS[:, :-1], labels[:, 1:]) if causal else (WORDS, labels)
    whole = WORDS.clone().requires_grad_()
    moved = whole[:, :-1] if causal else whole
    one = acls_loss(moved, expected[1], margin=1.0, class_dim=-1)
    one.backward()
    compute = trainer_loss(ACLSLoss(margin=1.0), class_dim=-1, causal=causal)
    count = (expected[1] != -100).sum()
    batches = WORDS.clone().requires_grad_()
    for rows in (slice(0, 1), slice(1, 4)):
        compute({"logits": batches[rows]}, labels[rows], num_items_in_batch=count).backward()
    torch.testing.assert_close(batches.grad, whole.grad)
    value = trainer_loss(ACLSLoss(margin=1.0), class_dim=-1, causal=causal)((WORDS,), labels)
    torch.testing.assert_close(value, one)


def test_tokens_are_measured_without_their_logits() -> None:
    """Batches of different lengths, filled up as the Trainer does, are the whole set."""
    labels = TOKENS.clone()
    labels[1, 3:] = -100
    first = trainer_scores(causal=True)((WORDS[:1], None), labels[:1])
    second = trainer_scores(causal=True)(WORDS[1:2, :3], labels[1:2, :3])
    filled = {
        name: torch.cat([first[name], nn.functional.pad(second[name], (0, 2), value=-100)]).numpy()
        for name in first
    }
    found = trainer_metrics(SimpleNamespace(predictions=filled, label_ids=labels.numpy()))
    expected = evaluate_predictions(logits=WORDS[:2, :-1], target=labels[:2, 1:], class_dim=-1)
    assert found.keys() == {*found} & expected.keys()
    assert {"ece", "nll", "aurc"} <= found.keys()
    assert found == pytest.approx({name: expected[name] for name in found})


def test_metrics_are_those_of_the_predictions() -> None:
    given = SimpleNamespace(predictions=(LOGITS.numpy(), np.zeros(6)), label_ids=LABELS.numpy())
    assert trainer_metrics(given) == pytest.approx(
        evaluate_predictions(logits=LOGITS, target=LABELS)
    )


def test_refusals() -> None:
    with pytest.raises(TypeError, match="such as ACLSLoss"):
        trainer_loss(ACLSLoss)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"needs \['index'\] beside logits and labels"):
        trainer_loss(CRLLoss(num_samples=6))
    with pytest.raises(ValueError, match="reduction 'mean', got 'sum'"):
        trainer_loss(ACLSLoss(reduction="sum"))
    with pytest.raises(TypeError, match="holds no logits: dict"):
        trainer_loss(ACLSLoss())({"scores": LOGITS}, LABELS)
    with pytest.raises(ValueError, match="has no 'labels'"):
        trainer_loss(ACLSLoss())({"logits": LOGITS}, None)
    with pytest.raises(ValueError, match="give class_dim to trainer_loss"):
        trainer_loss(ACLSLoss(class_dim=-1))
    with pytest.raises(ValueError, match="Pass class_dim=-1"):
        trainer_loss(ACLSLoss())({"logits": WORDS}, TOKENS)
    with pytest.raises(ValueError, match=r"what trainer_scores makes, got \['logits'\]"):
        trainer_metrics(SimpleNamespace(predictions={"logits": WORDS}, label_ids=TOKENS))
    with pytest.raises(ValueError, match=r"got \(6,\) and \(6,\)"):
        trainer_metrics(SimpleNamespace(predictions=np.zeros(6), label_ids=np.zeros(6)))


class Counting(nn.Module):
    """A loss that counts epochs."""

    ended = 0

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, target)

    def end_epoch(self) -> None:
        self.ended += 1


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.linear(x)}


def train(folder: Path, loss: nn.Module, *, batch: int, accumulate: int, epochs: int = 1) -> Linear:
    from transformers import Trainer, TrainingArguments

    samples = [{"x": LOGITS[place], "labels": LABELS[place]} for place in range(6)]
    settings = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        num_train_epochs=epochs,
        learning_rate=0.1,
        optim="sgd",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,  # `forward` takes no labels
        label_names=["labels"],
        seed=3,
    )
    model = Linear()
    trainer = Trainer(
        model=model,
        args=settings,
        train_dataset=samples,
        eval_dataset=samples,
        compute_loss_func=trainer_loss(loss),
        compute_metrics=trainer_metrics,
        callbacks=[end_epoch_callback(loss)],
    )
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] >= 0
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of other libraries
def test_trainer(tmp_path: Path) -> None:
    loss = Counting()
    whole = train(tmp_path, loss, batch=6, accumulate=1, epochs=2)
    assert loss.ended == 2
    parts = train(tmp_path, Counting(), batch=2, accumulate=3, epochs=2)
    torch.testing.assert_close(whole.linear.weight, parts.linear.weight)
