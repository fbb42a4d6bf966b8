"""Monte Carlo dropout: an ensemble over weights from one network.

Dropout as a Bayesian Approximation, Gal and Ghahramani, ICML 2016; as used in Blurs Behave Like
Ensembles, Park and Kim, ICML 2022, Eq. (2).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato._core.checks import check_integer
from sfumato._core.evaluation_mode import keeping_modes
from sfumato._core.seeds import draw_seed
from sfumato.predictions.sampling import FoldedSampling, FoldingError


@dataclass(frozen=True)
class SampledPrediction:
    """What N stochastic passes say, each of shape (B, ...) or (B, C, ...) for probabilities.

    Attributes:
        probs: mean probabilities, Eq. (2).
        entropy: entropy of the mean, the total uncertainty.
        mutual_information: entropy of the mean minus mean entropy; what the passes disagree on.
        variance: of the passes' probabilities, (B, C, ...).
    """

    probs: Tensor
    entropy: Tensor
    mutual_information: Tensor
    variance: Tensor


class MCDropout(nn.Module):
    """Averages the probabilities of a network over random dropout masks.

    Dropout is on, everything else is in evaluation mode; dropout called as a function counts too.
    What comes before the first dropout is computed once for each image, and the samples are folded
    into the batch, `max_batch` at a time, so that memory does not grow with their number. A model
    that can't be folded (the batch is not the first axis, dropout on weights, a batch size kept
    from before the dropout) is sampled pass by pass.

    Dropout inside fused calls stays off: that of the attention weights in `nn.MultiheadAttention`
    and `F.scaled_dot_product_attention`, between the layers of `nn.LSTM`, stochastic depth, and
    all that a scripted model does.

    Args:
        model: a network with dropout, giving logits (B, C) or (B, C, ...).
        samples: number N of passes.
        max_batch: largest folded batch. On a CPU larger ones were slower where dropout comes early;
            a GPU may want 1024.

    Raises:
        ValueError: the network has no active dropout, or gives more than logits.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        >>> mc = MCDropout(net, samples=10)
        >>> mc(torch.zeros(4, 2)).shape
        torch.Size([4, 3])

    Reference:
        Park and Kim 2022, Eq. (2). Differs: the released code keeps dropout of its MLP heads off
        at test time; here every dropout is on.
    """

    def __init__(self, model: nn.Module, samples: int = 30, *, max_batch: int = 256) -> None:
        super().__init__()
        check_integer("samples", samples, low=1)
        check_integer("max_batch", max_batch, low=1)
        self.model = model
        self.samples = samples
        self.max_batch = max_batch
        self._folds = True

    def forward(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Mean probabilities over the samples."""
        return self.curve(x, [self.samples], generator=generator)[self.samples]

    def predict(self, x: Tensor, *, generator: torch.Generator | None = None) -> SampledPrediction:
        """Mean probabilities with their uncertainties."""
        parts = []
        with self._sampling(generator):
            for images in self._slices(x):
                mean = square = entropy = torch.zeros(())
                for probs in self._passes(images, self.samples):  # (S, B, C, ...)
                    share = len(probs) / self.samples
                    mean = mean + share * probs.mean(0)
                    square = square + share * probs.square().mean(0)
                    entropy = entropy + share * _entropy(probs, dim=2).mean(0)
                total = _entropy(mean, dim=1)
                gained = (total - entropy).clamp_min(0)
                spread = (square - mean.square()).clamp_min(0)
                parts.append(SampledPrediction(mean, total, gained, spread))
        fields = ("probs", "entropy", "mutual_information", "variance")
        return SampledPrediction(*(torch.cat([getattr(p, f) for p in parts]) for f in fields))

    def curve(
        self, x: Tensor, sizes: Sequence[int], *, generator: torch.Generator | None = None
    ) -> dict[int, Tensor]:
        """Mean probabilities of ensembles of several sizes, from one set of max(sizes) passes."""
        if not sizes:
            raise ValueError("sizes must name at least one ensemble size, got none")
        for size in sizes:
            check_integer("sizes", size, low=1)
        wanted = sorted(set(sizes))
        parts: dict[int, list[Tensor]] = {size: [] for size in wanted}
        with self._sampling(generator):
            for images in self._slices(x):
                total, done = torch.zeros(()), 0
                for probs in self._passes(images, wanted[-1]):
                    for size in wanted:
                        if done < size <= done + len(probs):
                            parts[size].append((total + probs[: size - done].sum(0)) / size)
                    total, done = total + probs.sum(0), done + len(probs)
        return {size: torch.cat(parts[size]) for size in sizes}

    def _slices(self, x: Tensor) -> Iterator[Tensor]:
        """The batch in parts whose folded size is at most `max_batch`."""
        return iter(x.split(max(1, self.max_batch // self.samples)))

    def _passes(self, images: Tensor, samples: int) -> Iterator[Tensor]:
        """Probabilities (s, B, C, ...) of `samples` passes, as many at a time as fit."""
        at_once = max(1, self.max_batch // max(1, len(images)))
        done = 0
        while done < samples:
            count = min(at_once if self._folds else 1, samples - done)
            try:
                logits = _folded_logits(self.model, images, count)
            except FoldingError:
                self._folds = False  # for the rest of this call
                continue
            # Half precision would lose the small probabilities, and the sum over many samples.
            dtype = torch.promote_types(logits.dtype, torch.float32)
            yield logits.softmax(1, dtype=dtype).unflatten(0, (count, len(images)))
            done += count

    @contextmanager
    def _sampling(self, generator: torch.Generator | None) -> Iterator[None]:
        self._folds = True
        with _prepared(self.model, generator):
            yield


def _folded_logits(model: nn.Module, images: Tensor, samples: int) -> Tensor:
    weights = itertools.chain(model.parameters(), model.buffers())
    try:
        with FoldedSampling(len(images), samples, weights) as mode:
            logits: Tensor = model(images)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if samples > 1:  # such as a view to a batch size that was read before the fold
            raise FoldingError("the folded pass failed") from error
        raise
    if not mode.found:
        raise ValueError(
            "the model has no active dropout, so all passes are the same: insert it with "
            "sfumato.features.add_dropout(model, rate), or use DeepEnsemble"
        )
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        raise ValueError(
            "the model must return logits (B, C, ...) alone; it returned "
            f"{type(logits).__name__} {tuple(getattr(logits, 'shape', ()))}. Wrap it in a module "
            "that picks the logits."
        )
    if len(logits) != samples * len(images):
        if samples > 1:
            raise FoldingError("the output does not follow the folded batch")
        raise ValueError(
            "the model must return logits (B, C, ...) whose batch axis follows its input; it "
            f"returned {tuple(logits.shape)} for a batch of {len(images)}"
        )
    return logits


def _entropy(probs: Tensor, dim: int) -> Tensor:
    return torch.special.entr(probs).sum(dim)


@contextmanager
def _prepared(model: nn.Module, generator: torch.Generator | None) -> Iterator[None]:
    """Evaluation mode for all modules, and the generator's randomness; both undone at the end."""
    with keeping_modes(model):
        model.eval()
        if generator is None:
            yield
            return
        seed = draw_seed(generator)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
