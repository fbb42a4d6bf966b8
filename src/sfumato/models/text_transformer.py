"""A small transformer encoder for texts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_integer, check_number
from sfumato.models.word_embedding import is_word, word_embedding

_SLOWEST = 10_000.0


def text_transformer(
    *,
    num_classes: int,
    vocabulary_size: int,
    embeddings: Tensor | None = None,
    depth: int = 2,
    width: int = 128,
    heads: int = 4,
    dropout: float = 0.1,
    embedding_width: int | None = None,
    fine_tune: bool = False,
) -> TextTransformer:
    """A pre-norm encoder over the words of a text, their mean, and a linear layer.

    Args:
        num_classes: number of logits.
        vocabulary_size: number of tokens, padding and the unknown word included.
        embeddings: (vocabulary_size, D) word vectors, or None to learn them.
        depth: number of blocks of attention and a hidden layer of four times the width.
        width: numbers that a word has inside; a multiple of `heads`, and even.
        heads: of each attention.
        dropout: rate after the embedding and in each block; above 0 for MC dropout.
        embedding_width: numbers of a learnt vector (100 by default); given ones have their own.
        fine_tune: whether given vectors are trained too.

    Shape:
        tokens: (N, T), int64, 0 after the end of a text; logits (N, num_classes).

    Reference:
        Vaswani et al., Attention Is All You Need, NeurIPS 2017; norms first as in Xiong et al.,
        On Layer Normalization in the Transformer Architecture, ICML 2020.

    Example:
        >>> network = text_transformer(num_classes=20, vocabulary_size=50, width=32)
        >>> network(torch.randint(2, 50, (4, 30))).shape
        torch.Size([4, 20])
    """
    check_integer("num_classes", num_classes, low=2)
    for name, value in (("depth", depth), ("width", width), ("heads", heads)):
        check_integer(name, value, low=1)
    check_number("dropout", dropout, low=0.0, high=1.0)
    if width % heads or width % 2:
        raise ValueError(f"width must be even and a multiple of heads ({heads}), got {width}")
    embedding = word_embedding(
        vocabulary_size, embeddings, width=embedding_width, fine_tune=fine_tune
    )
    blocks = [EncoderBlock(width, heads, dropout) for _ in range(depth)]
    return TextTransformer(embedding, blocks, num_classes, width=width, dropout=dropout)


class EncoderBlock(nn.Module):
    """Attention over all words of a text, then a hidden layer, each added to what came in.

    Args:
        width: numbers of each word.
        heads: of the attention.
        dropout: rate at the end of both branches.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.keys = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.hidden_norm = nn.LayerNorm(width)
        self.hidden = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """`x` (N, T, width) after the block; `seen` (N, 1, 1, T) is true for words."""
        x = x + self.dropout(self._attend(self.attention_norm(x), seen))
        added: Tensor = x + self.dropout(self.hidden(self.hidden_norm(x)))
        return added

    def _attend(self, x: Tensor, seen: Tensor) -> Tensor:
        n, t, width = x.shape
        split = self.keys(x).view(n, t, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (N, heads, T, width / heads)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        attended: Tensor = self.attended(mixed.transpose(1, 2).reshape(n, t, width))
        return attended


class TextTransformer(nn.Module):
    """The network of `text_transformer`.

    Args:
        embedding: of tokens.
        blocks: of the encoder.
        num_classes: number of logits.
        width: numbers that a word has inside.
        dropout: rate after the embedding.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        blocks: list[EncoderBlock],
        num_classes: int,
        *,
        width: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.projection = nn.Linear(embedding.embedding_dim, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        words = is_word(tokens)  # (N, T)
        # A text without words attends to its padding: a mean over nothing is not a number.
        words = words | ~words.any(1, keepdim=True)
        x = self.projection(self.embedding(tokens))
        x = self.dropout(x + positions(x.shape[1], x.shape[2], x))
        for block in self.blocks:
            x = block(x, words[:, None, None])
        weight = words[..., None].to(x.dtype)
        logits: Tensor = self.head((self.norm(x) * weight).sum(1) / weight.sum(1))
        return logits


def positions(length: int, width: int, like: Tensor) -> Tensor:
    """Sines and cosines of each position at `width` / 2 speeds, (length, width)."""
    place = torch.arange(length, device=like.device, dtype=torch.float32)
    speed = _SLOWEST ** (-torch.arange(0, width, 2, device=like.device) / width)
    angle = place[:, None] * speed
    return torch.cat([angle.sin(), angle.cos()], 1).to(like.dtype)
