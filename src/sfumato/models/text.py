"""Networks for texts: the global pooling convolutional network and a transformer encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_integer, check_number
from sfumato._core.tokens import PADDING
from sfumato.models.layers import check_sizes

_WIDTH = 100
_KERNEL = 5
_POOL = 5
_SLOWEST = 10_000.0


def word_embedding(
    vocabulary_size: int,
    embeddings: Tensor | None,
    *,
    width: int | None = None,
    fine_tune: bool = False,
) -> nn.Embedding:
    """An embedding of tokens whose padding is, and stays, a vector of zeros."""
    check_sizes(vocabulary_size=vocabulary_size)
    if embeddings is None:
        width = _WIDTH if width is None else width
        check_sizes(embedding_width=width)
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
    """True where a token is not padding, (N, T)."""
    if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"a network for texts takes tokens (N, T), int64, got {tokens.dtype} "
            f"{tuple(tokens.shape)}"
        )
    return tokens != PADDING


def gpcn(
    *,
    num_classes: int,
    vocabulary_size: int,
    embeddings: Tensor | None = None,
    width: int = 128,
    dropout: float = 0.0,
    embedding_width: int | None = None,
    fine_tune: bool = False,
) -> GPCN:
    """Three convolutions over the words of a text, and the maximum of each feature over time.

    Global pooling makes the features of a text those of its strongest passage, wherever it stands,
    so that texts of any length go through one classifier of two linear layers.

    Args:
        num_classes: number of logits.
        vocabulary_size: number of tokens, padding and the unknown word included.
        embeddings: (vocabulary_size, D) word vectors, or None to learn them.
        width: channels of each convolution and of the hidden layer.
        dropout: rate before each linear layer; above 0 for MC dropout.
        embedding_width: numbers of a learnt vector (100 by default); given ones have their own.
        fine_tune: whether given vectors are trained too.

    Shape:
        tokens: (N, T), int64, 0 after the end of a text; logits (N, num_classes).

    Reference:
        Liu et al., The Devil is in the Margin, CVPR 2022, appendix B; the name is that of
        Lin et al., Network in Network, ICLR 2014.

    Differs: the released network pools over 1,000 positions, whatever the length of the text, so
    that padding takes part in the maximum. Here what is past the end of a text never counts, and
    the logits of a text don't depend on the texts beside it. Its dropout is commented out.

    Example:
        >>> import torch
        >>> network = gpcn(num_classes=20, vocabulary_size=50)
        >>> network(torch.randint(2, 50, (4, 30))).shape
        torch.Size([4, 20])
    """
    check_integer("num_classes", num_classes, low=2)
    check_sizes(width=width)
    check_number("dropout", dropout, low=0.0, high=1.0)
    embedding = word_embedding(
        vocabulary_size, embeddings, width=embedding_width, fine_tune=fine_tune
    )
    return GPCN(embedding, num_classes, width=width, dropout=dropout)


class GPCN(nn.Module):
    """The network of `gpcn`."""

    def __init__(
        self, embedding: nn.Embedding, num_classes: int, *, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = embedding
        # Two dimensions, since channels-last convolutions and pooling are twice as fast on a CPU
        # as those of one dimension, which have no such layout.
        inputs = (embedding.embedding_dim, width, width)
        self.convolutions = nn.ModuleList(nn.Conv2d(each, width, (1, _KERNEL)) for each in inputs)
        self.pool = nn.MaxPool2d((1, _POOL), stride=1)
        self.head = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, num_classes),
        )

    @property
    def window(self) -> int:
        """Words that a feature sees before the last pooling."""
        layers = len(self.convolutions)
        return 1 + layers * (_KERNEL - 1) + (layers - 1) * (_POOL - 1)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = F.pad(tokens, (0, max(0, self.window - tokens.shape[1])))
        lengths = is_word(tokens).sum(1)  # (N,)
        features = self.embedding(tokens).transpose(1, 2).unsqueeze(2)  # (N, D, 1, T)
        for number, convolution in enumerate(self.convolutions):
            features = F.relu(convolution(features))
            if number < len(self.convolutions) - 1:
                features = self.pool(features)
        return self.head(self._strongest(features, lengths))

    def _strongest(self, features: Tensor, lengths: Tensor) -> Tensor:
        """The maximum over the windows that lie within each text, (N, C); a short text has one."""
        windows = (lengths - self.window).clamp(min=0) + 1
        place = windows.new_ones(features.shape[3]).cumsum(0)  # of any length, also exported
        outside = place > windows[:, None]  # (N, T)
        # Features are not negative: 0 in place of what is outside leaves every maximum as it is.
        return features.masked_fill(outside[:, None, None], 0.0).amax((2, 3))


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

    Tokens, logits, and the arguments that are not explained here are those of `gpcn`.

    Args:
        depth: number of blocks of attention and a hidden layer of four times the width.
        width: numbers that a word has inside; a multiple of `heads`, and even.
        heads: of each attention.
        dropout: rate after the embedding and in each block; above 0 for MC dropout.

    Reference:
        Vaswani et al., Attention Is All You Need, NeurIPS 2017; norms first as in Xiong et al.,
        On Layer Normalization in the Transformer Architecture, ICML 2020.

    Example:
        >>> network = text_transformer(num_classes=20, vocabulary_size=50, width=32)
        >>> network(torch.randint(2, 50, (4, 30))).shape
        torch.Size([4, 20])
    """
    check_integer("num_classes", num_classes, low=2)
    check_sizes(depth=depth, width=width, heads=heads)
    check_number("dropout", dropout, low=0.0, high=1.0)
    if width % heads or width % 2:
        raise ValueError(f"width must be even and a multiple of heads ({heads}), got {width}")
    embedding = word_embedding(
        vocabulary_size, embeddings, width=embedding_width, fine_tune=fine_tune
    )
    blocks = [EncoderBlock(width, heads, dropout) for _ in range(depth)]
    return TextTransformer(embedding, blocks, num_classes, width=width, dropout=dropout)


class EncoderBlock(nn.Module):
    """Attention over all words of a text, then a hidden layer, each added to what came in."""

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
        return x + self.dropout(self.hidden(self.hidden_norm(x)))

    def _attend(self, x: Tensor, seen: Tensor) -> Tensor:
        n, t, width = x.shape
        split = self.keys(x).view(n, t, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (N, heads, T, width / heads)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return self.attended(mixed.transpose(1, 2).reshape(n, t, width))


class TextTransformer(nn.Module):
    """The network of `text_transformer`."""

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
        return self.head((self.norm(x) * weight).sum(1) / weight.sum(1))


def positions(length: int, width: int, like: Tensor) -> Tensor:
    """Sines and cosines of each position at `width` / 2 speeds, (length, width)."""
    place = torch.arange(length, device=like.device, dtype=torch.float32)
    speed = _SLOWEST ** (-torch.arange(0, width, 2, device=like.device) / width)
    angle = place[:, None] * speed
    return torch.cat([angle.sin(), angle.cos()], 1).to(like.dtype)
