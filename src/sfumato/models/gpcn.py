"""The global pooling convolutional network for texts (Liu et al. 2022, Appendix B)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from sfumato._core.checks import check_integer, check_number
from sfumato.models.word_embedding import is_word, word_embedding

_KERNEL = 5
_POOL = 5


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
    check_integer("width", width, low=1)
    check_number("dropout", dropout, low=0.0, high=1.0)
    embedding = word_embedding(
        vocabulary_size, embeddings, width=embedding_width, fine_tune=fine_tune
    )
    return GPCN(embedding, num_classes, width=width, dropout=dropout)


class GPCN(nn.Module):
    """The network of `gpcn`.

    Args:
        embedding: of tokens.
        num_classes: number of logits.
        width: channels of each convolution and of the hidden layer.
        dropout: rate before each linear layer.
    """

    def __init__(
        self, embedding: nn.Embedding, num_classes: int, *, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = embedding
        # Two dimensions, since channels-last convolutions and pooling are twice as fast on a CPU
        # as those of one dimension, which have no such layout.
        widths = (embedding.embedding_dim, width, width)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, width, (1, _KERNEL)) for inputs in widths
        )
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
        missing = self.window - tokens.shape[1]
        if missing > 0:
            tokens = F.pad(tokens, (0, missing))
        lengths = is_word(tokens).sum(1)  # (N,)
        features = self.embedding(tokens).transpose(1, 2).unsqueeze(2)  # (N, D, 1, T)
        for number, convolution in enumerate(self.convolutions):
            features = F.relu(convolution(features))
            if number < len(self.convolutions) - 1:
                features = self.pool(features)
        logits: Tensor = self.head(self._strongest(features, lengths))
        return logits

    def _strongest(self, features: Tensor, lengths: Tensor) -> Tensor:
        """The maximum over the windows that lie within each text, (N, C); a short text has one."""
        windows = (lengths - self.window + 1).clamp(min=1)
        place = windows.new_ones(features.shape[3]).cumsum(0) - 1
        outside = place >= windows[:, None]  # (N, T)
        # Features are not negative: 0 in place of what is outside leaves every maximum as it is.
        return features.masked_fill(outside[:, None, None], 0.0).amax((2, 3))
