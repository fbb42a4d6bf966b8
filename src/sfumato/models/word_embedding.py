"""The first layer of a network for texts: from tokens to vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_integer
from sfumato._core.tokens import PADDING

_WIDTH = 100


def word_embedding(
    vocabulary_size: int,
    embeddings: Tensor | None,
    *,
    width: int | None = None,
    fine_tune: bool = False,
) -> nn.Embedding:
    """An embedding of tokens whose padding is, and stays, a vector of zeros.

    Args:
        vocabulary_size: number of tokens, padding and the unknown word included.
        embeddings: (vocabulary_size, D), the vectors to start from, or None to draw them.
        width: numbers of each vector; 100 by default where they are drawn.
        fine_tune: whether given vectors are trained too; drawn ones always are.

    Raises:
        ValueError: vectors of another number or width.
    """
    check_integer("vocabulary_size", vocabulary_size, low=1)
    if embeddings is None:
        width = _WIDTH if width is None else width
        check_integer("embedding_width", width, low=1)
        return nn.Embedding(vocabulary_size, width, padding_idx=PADDING)
    if embeddings.ndim != 2 or len(embeddings) != vocabulary_size:
        raise ValueError(
            f"embeddings must be ({vocabulary_size}, D), a vector for each token, got "
            f"{tuple(embeddings.shape)}"
        )
    if width not in (None, embeddings.shape[1]):
        raise ValueError(
            f"embedding_width is {width}, but the data's word vectors have {embeddings.shape[1]} "
            "numbers each: leave it out, or take another file of vectors"
        )
    return nn.Embedding.from_pretrained(
        embeddings.clone(), freeze=not fine_tune, padding_idx=PADDING
    )


def is_word(tokens: Tensor) -> Tensor:
    """True where a token is not padding, (N, T).

    Raises:
        ValueError: no tokens (N, T).
    """
    if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"a network for texts takes tokens (N, T), int64, got {tokens.dtype} "
            f"{tuple(tokens.shape)}"
        )
    return tokens != PADDING
