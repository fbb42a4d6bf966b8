"""Networks for texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.models import gpcn, text_transformer
from sfumato.models.text import GPCN, positions
from sfumato.predictions import MCDropout

Build = Callable[..., nn.Module]
both = pytest.mark.parametrize("build", [gpcn, text_transformer])


def _texts(*lengths: int, pad: int = 0) -> Tensor:
    """Random words, each row followed by padding."""
    tokens = torch.randint(2, 30, (len(lengths), max(lengths) + pad))
    tokens[torch.arange(tokens.shape[1]) >= torch.tensor(lengths)[:, None]] = 0
    return tokens


def _by_hand(network: GPCN, words: Tensor) -> Tensor:
    """Logits of one text, in one dimension and without anything past its end."""
    x = network.embedding.weight[words].T[None]  # (1, D, T)
    x = F.pad(x, (0, max(0, 21 - len(words))))
    weights = list(network.convolutions.parameters())
    for number in range(3):
        x = F.conv1d(x, weights[2 * number][:, :, 0], weights[2 * number + 1]).relu()
        if number < 2:
            x = F.max_pool1d(x, 5, stride=1)
    hidden = F.linear(x.amax(2), network.head[1].weight, network.head[1].bias).relu()
    return F.linear(hidden, network.head[4].weight, network.head[4].bias)[0]


def test_gpcn_is_three_convolutions_and_a_maximum_over_time() -> None:
    network = gpcn(num_classes=5, vocabulary_size=30, width=12, embedding_width=7).double().eval()
    lengths = (40, 1, 21, 22, 13)
    tokens = _texts(*lengths)
    expected = [
        _by_hand(network, row[:length]) for row, length in zip(tokens, lengths, strict=True)
    ]
    torch.testing.assert_close(network(tokens), torch.stack(expected))


@both
def test_padding_and_company_change_nothing(build: Build) -> None:
    network = build(num_classes=3, vocabulary_size=30).double().eval()
    tokens = _texts(30, 4, 17)
    padded = F.pad(tokens, (0, 25))
    torch.testing.assert_close(network(padded), network(tokens))
    torch.testing.assert_close(network(tokens[1:2, :4]), network(tokens)[1:2])


@both
def test_an_empty_text_has_logits(build: Build) -> None:
    logits = build(num_classes=3, vocabulary_size=30).eval()(torch.zeros(2, 4, dtype=torch.int64))
    assert bool(logits.isfinite().all())


@both
def test_given_vectors_stay_unless_they_are_tuned(build: Build) -> None:
    vectors = torch.randn(30, 6)
    vectors[0] = 0
    for fine_tune in (False, True):
        network: Any = build(
            num_classes=3, vocabulary_size=30, embeddings=vectors, fine_tune=fine_tune
        )
        assert torch.equal(network.embedding.weight, vectors)
        assert network.embedding.weight.requires_grad is fine_tune
        network(_texts(9, 5)).sum().backward()
        if fine_tune:
            assert not network.embedding.weight.grad[0].any()  # padding is not learnt
    assert vectors is not network.embedding.weight
    drawn: Any = build(num_classes=3, vocabulary_size=30)
    assert drawn.embedding.weight.requires_grad
    assert drawn.embedding.weight.shape == (30, 100)


@both
def test_dropout_is_what_mc_dropout_samples(build: Build) -> None:
    network = build(num_classes=3, vocabulary_size=30, dropout=0.5).eval()
    tokens = _texts(20, 8)
    assert torch.equal(network(tokens), network(tokens))
    sampler = MCDropout(network, samples=3)
    assert not torch.equal(sampler(tokens), sampler(tokens))


def test_positions_are_sines_of_many_speeds() -> None:
    found = positions(4, 6, torch.zeros(1, dtype=torch.float64))
    assert found.shape == (4, 6)
    assert found[2, 1].item() == pytest.approx(torch.tensor(2 / 10000 ** (2 / 6)).sin().item())
    assert found[3, 3].item() == pytest.approx(torch.tensor(3.0).cos().item())


def test_the_order_of_words_counts_for_a_transformer() -> None:
    network = text_transformer(num_classes=3, vocabulary_size=30).eval()
    tokens = torch.tensor([[2, 3, 4, 5]])
    assert (network(tokens) - network(tokens.flip(1))).abs().max() > 1e-3


@both
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embeddings": torch.zeros(9, 6)}, r"embeddings must be \(30, D\)"),
        (
            {"embeddings": torch.zeros(30, 6), "embedding_width": 100},
            "embedding_width is 100, but the data's word vectors have 6",
        ),
        ({"num_classes": 1}, "num_classes must be"),
        ({"dropout": 1.5}, "dropout must be"),
        ({"embedding_width": 0}, "embedding_width must be"),
    ],
)
def test_bad_options(build: Build, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**{"num_classes": 3, "vocabulary_size": 30, **options})


def test_heads_must_share_the_width() -> None:
    with pytest.raises(ValueError, match=r"a multiple of heads \(4\), got 30"):
        text_transformer(num_classes=3, vocabulary_size=30, width=30)


@both
def test_images_are_no_texts(build: Build) -> None:
    with pytest.raises(ValueError, match=r"takes tokens \(N, T\), int64, got torch.float32"):
        build(num_classes=3, vocabulary_size=30)(torch.zeros(2, 3, 32, 32))
