"""Post-hoc scalers of all logits together: temperature, bias, vector, matrix and spline."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._core.checks import (
    KeepsPrecision,
    check_choice,
    check_class_indices,
    check_floating,
    check_integer,
    check_logit_values,
    check_number,
    given_scores,
    is_traced,
    like_input,
    meeting,
    to_float64_device,
    to_tensor,
)
from sfumato._core.statistics import bin_index, row_weights

if TYPE_CHECKING:
    from typing_extensions import Self


LOWEST, HIGHEST = 1e-2, 1e2  # of a temperature


def check_logits(logits: Tensor) -> None:
    """Raise unless `logits` is floating point (N, C, ...)."""
    check_floating("logits", logits, hint="Pass logits, not probabilities")
    if logits.ndim < 2:
        raise ValueError(f"logits must be (N, C, ...), got {tuple(logits.shape)}")


def check_probabilities(probs: Tensor) -> None:
    """Raise unless `probs` is (N, C, ...), not negative, and sums to one over the classes."""
    check_floating("probs", probs)
    if probs.ndim < 2:
        raise ValueError(f"probs must be (N, C, ...), got {tuple(probs.shape)}")
    if bool((probs < 0).any()):
        raise ValueError(
            f"probs must not be negative, got {float(probs.min()):.6g}: pass raw scores as logits= "
            "where that is offered, else their softmax"
        )
    off = (probs.sum(1) - 1).abs()
    if off.numel() and not float(off.max()) <= 1e-2:
        raise ValueError(
            "probs must sum to one over the classes (within 0.01) and hold no NaN: pass raw scores "
            "as logits= where that is offered, else their softmax"
        )


def held_out_rows(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Checked logits (M, C) in double precision and labels (M,) of the entries that count."""
    logits, target = to_float64_device(logits), to_float64_device(target)
    check_floating("logits", logits, hint="Pass logits, not probabilities")
    if logits.ndim < 2 or target.shape != logits.shape[:1] + logits.shape[2:]:
        raise ValueError(
            f"logits must be (N, C, ...) and target (N, ...), got {tuple(logits.shape)} and "
            f"{tuple(target.shape)}"
        )
    check_class_indices("target", target, logits.shape[1], ignore_index=ignore_index)
    keep = target.reshape(-1) != ignore_index
    rows = logits.detach().movedim(1, -1).reshape(-1, logits.shape[1])[keep].double()
    if not len(rows):
        raise ValueError("there is no valid entry to fit on: target is empty or all ignored")
    if not bool(torch.isfinite(rows).all()):
        raise ValueError("logits must be finite to fit on; some are NaN or infinite")
    return rows, target.reshape(-1)[keep].long()


def mean_loss(logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
    """The mean negative log-likelihood, each row as often as its weight says."""
    if weight is None:
        return F.cross_entropy(logits, labels)
    return F.cross_entropy(logits, labels, reduction="none") @ (weight / weight.sum())


@torch.enable_grad()
def minimise(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
    """Bring `parameters` to the minimum of `loss` with L-BFGS."""
    # Few parameters and a smooth loss: second-order steps end in tens of passes over the data.
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=100,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def ece_of_confidences(
    confidence: Tensor, correct: Tensor, num_bins: int, weight: Tensor | None = None
) -> Tensor:
    """ECE with bins of equal width, of confidences and correctness in float64."""
    member = bin_index(confidence, num_bins)
    gap = correct - confidence if weight is None else weight * (correct - confidence)
    gaps = confidence.new_zeros(num_bins).index_add_(0, member, gap)
    return gaps.abs().sum() / (len(confidence) if weight is None else weight.sum())


def along_classes(values: Tensor, logits: Tensor) -> Tensor:
    """One value per class (C,) as (C, 1, ...), to meet logits (N, C, ...) in their own type."""
    return meeting(values, logits).view(-1, *[1] * (logits.ndim - 2))


def adopt_shapes(
    module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_rest: Any
) -> None:
    """Load hook for buffers whose shape is known only from data: take the shape that was saved."""
    for name, buffer in list(module.named_buffers(recurse=False)):
        saved = state_dict.get(prefix + name)
        if saved is not None:
            setattr(module, name, torch.empty_like(saved, device=buffer.device))


NOT_FITTED = "not fitted"  # in the representation of what `fit` completes


class FittedNumbers(KeepsPrecision):
    """Base of what has numbers of its own only after a fit: empty buffers until then.

    That they are empty is told by their shape, since export can't follow a look at their values.
    """

    fit_call = "fit(logits=..., target=...)"

    def expect_arrays(self, *names: str) -> None:
        """Make room for arrays whose shape the fit decides."""
        for name in names:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64, device="cpu"))
        self.register_load_state_dict_pre_hook(adopt_shapes)

    def known(self, what: str, numbers: Tensor) -> Tensor:
        """Return the numbers; raises where the fit has not found them yet."""
        if not numbers.numel():
            raise ValueError(f"{what} not known yet: call {self.fit_call} first")
        return numbers


SMALLEST_SHARE, LARGEST = 1e-6, 0.99

_START = 0.1


class UniformMixture(FittedNumbers):
    """Mixes probabilities with the uniform distribution and takes the logarithm.

    log((1 - a) p + a / C) is finite also where p is 0, so that any scaler can go on from there. The
    amount a makes held-out labels most likely; the order of the classes stays. `fit` warns where
    labels had probability 0: no scaling corrects a model that rules out what happens.

    Args:
        free_temperature: whether the likelihood is that after the best single temperature: better
            where a scaler with a temperature or a scale comes next.

    Example:
        >>> probs, target = torch.tensor([[0.99, 0.01]] * 20), torch.tensor([0] * 16 + [1] * 4)
        >>> mixture = UniformMixture().fit(probs, target)
        >>> mixture(torch.tensor([[1.0, 0.0]])).isfinite().all()
        tensor(True)

    Differs: ensemble temperature scaling (Zhang et al. 2020) mixes after the temperature, which the
    zeros have spoilt by then.
    """

    fit_call = "fit(probs, target)"
    _amount: Tensor

    def __init__(self, *, free_temperature: bool = False) -> None:
        super().__init__()
        self.free_temperature = free_temperature
        self.expect_arrays("_amount")

    @property
    def amount(self) -> float:
        """The fitted share a of the uniform distribution, in [1e-6, 0.99]."""
        return float(self.known("the amount is", self._amount))

    def fit(
        self, probs: Tensor, target: Tensor, *, ignore_index: int = -100, sample_weight: Any = None
    ) -> UniformMixture:
        """Find the amount on held-out probabilities and their class indices; returns itself."""
        check_probabilities(probs)
        rows, labels = held_out_rows(probs, target, ignore_index)
        weight = row_weights(sample_weight, target, ignore_index)
        impossible = int((rows.gather(1, labels.unsqueeze(1)) == 0).sum())
        if impossible:
            warnings.warn(
                f"{impossible:,} of {len(labels):,} held-out labels had probability 0: the model "
                "rules out what happens, and its likelihood is 0. Scaling mixes its probabilities "
                "with the uniform distribution first.",
                stacklevel=2,
            )
        amount = _fit_amount(rows, labels, self.free_temperature, weight)
        if amount == LARGEST:  # the least share is as good as none
            warnings.warn(
                f"the share of the uniform distribution ended at its bound {amount:g}: the fit has "
                "not found a best value; don't rely on it",
                stacklevel=2,
            )
        self._amount = self._amount.new_tensor(amount)
        return self

    def forward(self, probs: Tensor) -> Tensor:
        """Log probabilities, which serve as logits."""
        return mixed_logarithm(probs, meeting(self.known("the amount is", self._amount), probs))

    def extra_repr(self) -> str:
        amount = f"amount={self.amount:.4g}" if self._amount.numel() else NOT_FITTED
        return f"{amount}, free_temperature=True" if self.free_temperature else amount


def mixed_logarithm(probs: Tensor, amount: Tensor) -> Tensor:
    """log((1 - a) p + a / C)."""
    return ((1 - amount) * probs + amount / probs.shape[1]).log()


def _fit_amount(
    rows: Tensor, labels: Tensor, free_temperature: bool, weight: Tensor | None
) -> float:
    """The amount of greatest likelihood, at temperature 1 or at the best one."""
    # L-BFGS knows no bounds: the search is over the log odds, and the loss clamps them.
    bounds = [math.log(end / (1 - end)) for end in (SMALLEST_SHARE, LARGEST)]
    odds = rows.new_tensor(math.log(_START / (1 - _START))).requires_grad_()
    log_temperature = rows.new_zeros(()).requires_grad_(free_temperature)

    def loss() -> Tensor:
        logits = mixed_logarithm(rows, odds.clamp(*bounds).sigmoid())
        scale = (-log_temperature.clamp(math.log(LOWEST), math.log(HIGHEST))).exp()
        return mean_loss(logits * scale, labels, weight)

    minimise(loss, [odds, log_temperature] if free_temperature else [odds])
    return min(max(float(odds.detach().sigmoid()), SMALLEST_SHARE), LARGEST)


SMALLEST = 1e-12  # of a probability whose logarithm is taken, where none was 0 in the fit


class Scaler(FittedNumbers):
    """Base of the scalers: subclasses say in `fit_rows` how they fit, in `forward` what they do.

    Tensors, arrays and lists alike: `fit(probs, target)` or `fit(logits=..., target=...)`, then
    `predict_proba(probs=...)` or `predict_proba(logits=...)`. The module itself is called on logits
    (N, C, ...). Logits that are probabilities are refused from four rows on, unless `fit` was told
    `any_logits=True`.

    The logarithm of probabilities serves as logits. Where any is exactly 0, a fitted share of the
    uniform distribution is mixed in first (`mixture`).
    """

    mixture: UniformMixture | None
    any_logits: bool

    def __init__(self) -> None:
        super().__init__()
        self.mixture, self.any_logits = None, False
        self.register_load_state_dict_pre_hook(_expect_mixture)

    def fit(
        self,
        probs: Any = None,
        target: Any = None,
        *,
        logits: Any = None,
        ignore_index: int = -100,
        any_logits: bool = False,
        sample_weight: Any = None,
    ) -> Self:
        """Fit on held-out probabilities or logits, and their labels; returns itself.

        Args:
            probs, logits: probabilities or raw scores, (N, C, ...); give one of the two.
            target: class indices, (N, ...).
            ignore_index: label of entries that count for nothing.
            any_logits: accept logits that look like probabilities, here and in later calls.
            sample_weight: how often each sample counts, (N,); a whole number does what as many
                copies of the sample would do.
        """
        name, given = given_scores(logits, probs)
        # A second fit begins anew.
        self.mixture, self.any_logits = None, any_logits
        rows = to_tensor(name, given)
        target = to_tensor("target", target).to(rows.device)
        if name == "probs":
            rows = _probabilities(rows)
            # The logarithm of a zero would decide the whole fit, so zeros are mixed away first.
            if not bool((rows > 0).all()):
                self.mixture = UniformMixture(free_temperature=True).fit(
                    rows, target, ignore_index=ignore_index, sample_weight=sample_weight
                )
            rows = self._logarithm(rows)
        elif not any_logits:
            check_logit_values("logits", rows)
        weight = row_weights(sample_weight, target, ignore_index)
        rows, labels = held_out_rows(rows, target, ignore_index)
        if weight is None:
            self.fit_rows(rows, labels)
        else:
            seen = weight > 0  # what has no weight must not even place a knot
            self.fit_rows(rows[seen], labels[seen], weight[seen])
        return self

    def fit_rows(self, rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> None:
        """Fit on logits (M, C) in double precision, labels (M,) and weights (M,)."""
        raise NotImplementedError

    def predict_proba(self, probs: Any = None, *, logits: Any = None) -> Any:
        """Calibrate logits or probabilities, (N, C, ...); probabilities out, array for array."""
        rows, given = self.as_logits(logits, probs)
        return like_input(self(rows).softmax(1), given)

    def as_logits(self, logits: Any, probs: Any) -> tuple[Tensor, Any]:
        """Logits, or the logarithm of probabilities; and what was given."""
        name, given = given_scores(logits, probs)
        rows = to_tensor(name, given)
        return rows if name == "logits" else self._logarithm(_probabilities(rows)), given

    def check_input(self, logits: Tensor) -> None:
        """Raise unless `logits` (N, C, ...) are floating point, and no probabilities."""
        check_logits(logits)
        if not self.any_logits and not is_traced():
            check_logit_values("logits", logits)

    def check_fitted(self, name: str, value: Tensor, logits: Tensor) -> None:
        """Raise unless the per-class buffer `value` (C, ...) is fitted and matches `logits`."""
        self.check_input(logits)
        if len(self.known(f"the {name} is", value)) != logits.shape[1]:
            raise ValueError(
                f"logits must have the {len(value)} classes of the fit, got {tuple(logits.shape)}"
            )

    def _logarithm(self, probs: Tensor) -> Tensor:
        if self.mixture is not None:
            mixed: Tensor = self.mixture(probs)
            return mixed
        return probs.clamp(min=SMALLEST).log()


def _probabilities(probs: Tensor) -> Tensor:
    rows = probs.double()
    check_probabilities(rows)
    return rows


def _expect_mixture(module: nn.Module, state_dict: Any, prefix: str, *_rest: Any) -> None:
    """Load hook: a scaler that was fitted on zeros is saved with its mixture."""
    has_one = any(key.startswith(f"{prefix}mixture.") for key in state_dict)
    mixture = UniformMixture(free_temperature=True) if has_one else None
    setattr(module, "mixture", mixture)  # noqa: B010 (a Module has no such attribute)


def fit_quietly(fit: Callable[[], object]) -> list[str]:
    """Fit, and return what the fit warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [str(each.message) for each in caught]


GRID = torch.arange(1, 101) / 10  # 0.1, 0.2, ... 10.0, the papers' grid


class TemperatureScaler(Scaler):
    """Divides logits by a temperature fitted on held-out predictions.

    The ranking of the classes never changes. Fit on validation data: on the training set the
    network is right about nearly everything.

    Args:
        method: "nll" minimises the negative log-likelihood with L-BFGS over log T, within
            [0.01, 100]; "ece" takes the best of the papers' grid 0.1, 0.2, ... 10.0 by expected
            calibration error (the smallest temperature of equals).
        num_bins: bins of the calibration error, for "ece".

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = TemperatureScaler().fit(logits=logits, target=torch.tensor([0, 0, 0, 1]))
        >>> round(scaler(logits).softmax(1)[0, 0].item(), 4)  # right in three of four cases
        0.75

    Reference:
        Guo et al. 2017, Sec. 4.2. Differs: the released MbLS, FLSD and ACLS codes choose the
        temperature by ECE on the grid ("ece"), the paper by NLL ("nll", the default).
    """

    _temperature: Tensor

    def __init__(self, method: Literal["nll", "ece"] = "nll", *, num_bins: int = 15) -> None:
        super().__init__()
        check_choice("method", method, ("nll", "ece"))
        check_integer("num_bins", num_bins, low=1)
        self.method = method
        self.num_bins = num_bins
        self.expect_arrays("_temperature")

    @property
    def temperature(self) -> float:
        """The fitted temperature T; the network was overconfident if it is above 1."""
        return float(self.known("the temperature is", self._temperature))

    def fit_rows(self, rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> None:
        if self.method == "nll":
            value, bounds = fit_likelihood(rows, labels, weight), (LOWEST, HIGHEST)
        else:
            value = _fit_calibration(rows, labels, self.num_bins, weight)
            bounds = float(GRID[0]), float(GRID[-1])
        warn_at_bound(value, *bounds)
        self._temperature = self._temperature.new_tensor(value)

    def forward(self, logits: Tensor) -> Tensor:
        self.check_input(logits)
        return logits / meeting(self.known("the temperature is", self._temperature), logits)

    def extra_repr(self) -> str:
        value = f"temperature={self.temperature:.4g}" if self._temperature.numel() else NOT_FITTED
        return value if self.method == "nll" else f"method='ece', num_bins={self.num_bins}, {value}"


def fit_likelihood(rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> float:
    """The temperature of least negative log-likelihood, within [0.01, 100]."""
    log_temperature = torch.zeros((), dtype=torch.float64, device=rows.device, requires_grad=True)

    def loss() -> Tensor:
        bounded = log_temperature.clamp(math.log(LOWEST), math.log(HIGHEST))
        return mean_loss(rows * (-bounded).exp(), labels, weight)

    minimise(loss, [log_temperature])
    return min(max(float(log_temperature.detach().exp()), LOWEST), HIGHEST)


def warn_at_bound(temperature: float, lowest: float, highest: float) -> None:
    """Warn where the fit went as far as it may: such a temperature corrects nothing."""
    if not (temperature <= lowest or temperature >= highest):
        return
    reason = "held-out predictions know nothing of the labels, or rule some of them out"
    if temperature <= lowest:
        reason = "held-out predictions are never wrong, as on training data"
    warnings.warn(
        f"the temperature ended at its bound {temperature:g}: {reason}. Don't use it; look at the "
        "held-out labels, and at probabilities that are exactly 0 (UniformMixture).",
        stacklevel=3,
    )


def _fit_calibration(rows: Tensor, labels: Tensor, num_bins: int, weight: Tensor | None) -> float:
    correct = (rows.argmax(1) == labels).double()
    # The top is then exp(0) = 1, so its probability is one over the sum.
    shifted = rows - rows.amax(1, keepdim=True)
    errors = []
    for temperature in GRID.tolist():
        confidence = (shifted / temperature).exp().sum(1).reciprocal()
        errors.append(ece_of_confidences(confidence, correct, num_bins, weight))
    return float(GRID[int(torch.stack(errors).argmin())])


class HeldOutPredictions(NamedTuple):
    """Logits (N, C, ...) and class indices (N, ...) to fit on, and to measure on."""

    validation_logits: Tensor
    validation_target: Tensor
    test_logits: Tensor
    test_target: Tensor


class TemperatureRow(NamedTuple):
    """One method's line: test ECE as it is and after scaling, with both ways to choose T."""

    name: str
    ece_before: float
    ece_after_nll: float
    temperature_nll: float
    ece_after_ece: float
    temperature_ece: float


def temperature_table(
    predictions: Mapping[str, HeldOutPredictions | tuple[Tensor, Tensor, Tensor, Tensor]],
    *,
    num_bins: int = 15,
    ignore_index: int = -100,
) -> list[TemperatureRow]:
    """ECE on test data before and after a temperature that was fitted on validation data.

    Args:
        predictions: for each name (validation logits, validation labels, test logits, test labels).
        num_bins: bins of the calibration error.
        ignore_index: label of entries to leave out.

    Example:
        >>> logits, target = torch.tensor([[4.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
        >>> row = temperature_table({"CE": (logits, target, logits, target)})[0]
        >>> round(row.ece_before, 3), round(row.ece_after_nll, 3), round(row.temperature_nll, 2)
        (0.232, 0.0, 3.64)

    Reference:
        Liu et al. 2022, Table 1 of the appendix: PreT is `ece_before`, PosT `ece_after_ece` with
        `temperature_ece` in brackets (the released code takes T by ECE on the grid).
    """
    check_integer("num_bins", num_bins, low=1)
    rows = []
    for name, arrays in predictions.items():
        held = HeldOutPredictions(*arrays)
        fitted = [TemperatureScaler(method, num_bins=num_bins) for method in ("nll", "ece")]
        for scaler in fitted:
            scaler.fit(logits=held[0], target=held[1], ignore_index=ignore_index)
        logits, labels = held_out_rows(held.test_logits, held.test_target, ignore_index)
        correct = (logits.argmax(1) == labels).double()
        before, by_nll, by_ece = (
            float(ece_of_confidences(scaled.softmax(1).amax(1), correct, num_bins))
            for scaled in (logits, *(scaler(logits) for scaler in fitted))
        )
        nll, ece = (scaler.temperature for scaler in fitted)
        rows.append(TemperatureRow(name, before, by_nll, nll, by_ece, ece))
    return rows


class EnsembleTemperatureScaler(Scaler):
    """Mixes tempered, raw and uniform probabilities with weights fitted on held-out predictions.

    p = w_1 softmax(z / T) + w_2 softmax(z) + w_3 / C with w >= 0, sum w = 1, and T of temperature
    scaling. It allows for confidences below those of a single temperature. The order of the classes
    stays. The call gives log p, which serves as logits.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = EnsembleTemperatureScaler()
        >>> scaler = scaler.fit(logits=logits, target=torch.tensor([0, 0, 0, 1]))
        >>> round(scaler(logits).softmax(1)[0, 0].item(), 3)
        0.75

    Reference:
        Zhang et al. 2020, Sec. 4 (ETS). Differs: the released code offers squared error beside
        the likelihood that is used here, and keeps T within [0.05, 5] instead of [0.01, 100].
    """

    _state: Tensor  # T, w_1, w_2, w_3

    def __init__(self) -> None:
        super().__init__()
        self.expect_arrays("_state")

    @property
    def temperature(self) -> float:
        """The fitted temperature T of the first part."""
        return float(self.known("the weights are", self._state)[0])

    @property
    def weights(self) -> tuple[float, float, float]:
        """The fitted weights of the tempered, raw and uniform probabilities; they sum to 1."""
        tempered, raw, uniform = self.known("the weights are", self._state)[1:].tolist()
        return tempered, raw, uniform

    def fit_rows(self, rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> None:
        temperature = rows.new_tensor(fit_likelihood(rows, labels, weight))
        warn_at_bound(float(temperature), LOWEST, HIGHEST)
        parts = _log_parts(rows, temperature)  # (3, M, C)
        true = parts.gather(2, labels.expand(3, -1).unsqueeze(2))[..., 0]  # (3, M)
        scores = rows.new_zeros(3).requires_grad_()

        def loss() -> Tensor:
            losses = -(scores.log_softmax(0)[:, None] + true).logsumexp(0)
            return losses.mean() if weight is None else losses @ (weight / weight.sum())

        minimise(loss, [scores])
        found = torch.cat([temperature.view(1), scores.detach().softmax(0)])
        self._state = found.to(self._state.device)

    def forward(self, logits: Tensor) -> Tensor:
        self.check_input(logits)
        state = self.known("the weights are", self._state)
        weights = meeting(state[1:].log(), logits).view(3, *[1] * logits.ndim)
        return (_log_parts(logits, meeting(state[0], logits)) + weights).logsumexp(0)

    def extra_repr(self) -> str:
        if not self._state.numel():
            return NOT_FITTED
        temperature, *weights = self._state.tolist()
        return f"temperature={temperature:.4g}, weights={[round(w, 4) for w in weights]}"


def _log_parts(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logarithms of the tempered, the raw and the uniform probabilities, (3, N, C, ...)."""
    uniform = torch.full_like(logits, -math.log(logits.shape[1]))
    return torch.stack([(logits / temperature).log_softmax(1), logits.log_softmax(1), uniform])


class _PenalisedScaler(Scaler):
    """Base of the scalers with numbers for each class, which a penalty holds near the identity.

    Where it is a product of all logits of a class and a shift, `fit_rows` fits both or the shift.
    """

    arrays: ClassVar[tuple[str, ...]]
    scale: Tensor  # (C,)
    bias: Tensor  # (C,)

    def __init__(self, *, penalty: float = 1e-4) -> None:
        super().__init__()
        check_number("penalty", penalty, low=0.0)
        self.penalty = penalty
        self.expect_arrays(*self.arrays)

    def fit_rows(self, rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> None:
        scale = torch.ones_like(rows[0]).requires_grad_("scale" in self.arrays)
        bias = torch.zeros_like(rows[0]).requires_grad_()

        def loss() -> Tensor:
            distance = (scale - 1).square().sum() + bias.square().sum()
            return mean_loss(rows * scale + bias, labels, weight) + self.penalty / 2 * distance

        minimise(loss, [each for each in (scale, bias) if each.requires_grad])
        for name, found in (("scale", scale), ("bias", bias)):
            if name in self.arrays:
                setattr(self, name, found.detach())

    def extra_repr(self) -> str:
        return f"{classes_of(self.bias)}, penalty={self.penalty:g}"


def classes_of(fitted: Tensor) -> str:
    """How many classes a scaler was fitted for, for its representation."""
    return f"classes={len(fitted)}" if len(fitted) else NOT_FITTED


class BiasScaler(_PenalisedScaler):
    """Shifts the logits of each class: z_c <- z_c + bias_c.

    For data whose classes are more or less frequent than in training: the mean probability of each
    class becomes its share of the held-out labels (up to the penalty). The biases sum to zero; the
    predicted class can change.

    Args:
        penalty: weight of ||bias||^2 / 2 beside the mean negative log-likelihood. Without it (0) a
            class that the held-out set lacks would get the bias minus infinity.

    Example:
        >>> logits = torch.zeros(4, 2)
        >>> scaler = BiasScaler().fit(logits=logits, target=torch.tensor([0, 0, 0, 1]))
        >>> scaler(logits).softmax(1)[0].round(decimals=2)
        tensor([0.7500, 0.2500])
    """

    arrays = ("bias",)

    def forward(self, logits: Tensor) -> Tensor:
        self.check_fitted("bias", self.bias, logits)
        return logits + along_classes(self.bias, logits)


class VectorScaler(_PenalisedScaler):
    """Scales and shifts the logits of each class: z_c <- scale_c z_c + bias_c.

    For networks that are overconfident in some classes, underconfident in others. 2 C numbers want
    tens of held-out samples per class; the predicted class can change.

    Args:
        penalty: weight of ||scale - 1||^2 / 2 + ||bias||^2 / 2 beside the mean likelihood. Without
            it (0) a class that the held-out set lacks would get the bias minus infinity.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0]] * 4 + [[0.0, 2.0]] * 4)
        >>> target = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
        >>> scaler = VectorScaler().fit(logits=logits, target=target)
        >>> scaler(logits).softmax(1)[::4].round(decimals=2)
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]])

    Reference:
        Guo et al. 2017, Sec. 4.2. Differs: the paper has no penalty.
    """

    arrays = ("scale", "bias")

    def forward(self, logits: Tensor) -> Tensor:
        self.check_fitted("scale", self.scale, logits)
        return logits * along_classes(self.scale, logits) + along_classes(self.bias, logits)


class StructuredMatrixScaler(_PenalisedScaler):
    """softmax((I + diag(v) + off(M)) log p_T + b), p_T the probabilities after a temperature.

    Matrix scaling corrects which classes are confused with which, but has C^2 numbers. Here the
    temperature is fitted freely and the rest with a ridge on each part:

        NLL + penalty C / n (|b|^2 + |v|^2) + penalty C (C - 1) / n |M|^2

    so that few samples give temperature scaling, many a full matrix. The predicted class can
    change.

    Args:
        penalty: of all parts; 1 as in the paper.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0]] * 4 + [[0.0, 2.0]] * 4).repeat(50, 1)
        >>> target = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0]).repeat(50)
        >>> scaler = StructuredMatrixScaler().fit(logits=logits, target=target)
        >>> scaler(logits).softmax(1)[:8:4].round(decimals=2)
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]])

    Reference:
        Berta et al. 2026 and the defaults of the authors' package probmetrics (ridge, rho = tau =
        1), with which a test compares the numbers. Differs: that package always mixes a share
        1 / (n + 1) of the uniform distribution in after the temperature; here one is mixed in
        before, fitted by likelihood, where a probability is exactly 0.
    """

    arrays = ("temperature", "weight", "bias")
    temperature: Tensor  # (1,)
    weight: Tensor  # (C, C)

    def __init__(self, *, penalty: float = 1.0) -> None:
        super().__init__(penalty=penalty)

    def fit_rows(self, rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> None:
        classes = rows.shape[1]
        count = len(rows) if weight is None else float(weight.sum())
        temperature = rows.new_tensor([fit_likelihood(rows, labels, weight)])
        scaled = (rows / temperature).log_softmax(1)
        change = rows.new_zeros(classes, classes).requires_grad_()
        bias = rows.new_zeros(classes).requires_grad_()
        near = self.penalty * classes / count
        far = self.penalty * classes * (classes - 1) / count

        def loss() -> Tensor:
            diagonal = change.diagonal().square().sum()
            ridge = near * (bias.square().sum() + diagonal)
            ridge = ridge + far * (change.square().sum() - diagonal)
            return mean_loss(scaled + F.linear(scaled, change, bias), labels, weight) + ridge

        minimise(loss, [change, bias])
        self.temperature = temperature
        self.weight = torch.eye(classes, dtype=rows.dtype, device=rows.device) + change.detach()
        self.bias = bias.detach()

    def forward(self, logits: Tensor) -> Tensor:
        self.check_fitted("matrix", self.weight, logits)
        scaled = (logits / meeting(self.temperature, logits)).log_softmax(1).movedim(1, -1)
        return F.linear(scaled, meeting(self.weight, logits), meeting(self.bias, logits)).movedim(
            -1, 1
        )


class SplineScaler(Scaler):
    """Scales the logits of each sample by h(m) / m, m the margin of its two largest logits.

    h(m) = sum_j slope_j clip(m - knot_j, 0, knot_(j+1) - knot_j), with knots at quantiles of the
    held-out margins, corrects networks that are overconfident only at high confidence, too. The
    order of the classes stays.

    Args:
        pieces: stretches of the spline, at least 1; fewer where margins coincide.
        penalty: weight of the squared differences of neighbouring log slopes, over the number of
            samples.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> scaler = SplineScaler().fit(logits=logits, target=torch.tensor([0, 0, 0, 1]))
        >>> round(scaler(logits).softmax(1)[0, 0].item(), 2)
        0.75
    """

    knots: Tensor  # (J,) begin of each stretch; the first is 0
    slopes: Tensor  # (J,)

    def __init__(self, *, pieces: int = 6, penalty: float = 1.0) -> None:
        super().__init__()
        check_integer("pieces", pieces, low=1)
        check_number("penalty", penalty, low=0.0)
        self.pieces, self.penalty = pieces, penalty
        self.expect_arrays("knots", "slopes")

    def fit_rows(self, rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> None:
        count = len(labels) if weight is None else float(weight.sum())
        below, margin = _below_top(rows)
        shares = torch.linspace(0, 1, self.pieces + 1, dtype=rows.dtype, device=rows.device)[1:-1]
        inner = margin.quantile(shares) if len(shares) else margin[:0]
        knots = torch.cat([inner.new_zeros(1), inner[inner > 0].unique()])
        lengths = stretches(margin, knots[1:])
        log_slopes = torch.zeros_like(knots).requires_grad_()

        def loss() -> Tensor:
            scale = _ratio(lengths @ log_slopes.exp(), margin, log_slopes[0].exp())
            rough = log_slopes.diff().square().sum() * self.penalty / count
            return mean_loss(below * scale.unsqueeze(1), labels, weight) + rough

        minimise(loss, [log_slopes])
        self.knots, self.slopes = knots, log_slopes.detach().exp()

    def forward(self, logits: Tensor) -> Tensor:
        self.check_input(logits)
        slopes = meeting(self.known("the spline is", self.slopes), logits)
        below, margin = _below_top(logits)
        height = stretches(margin, meeting(self.knots, logits)[1:]) @ slopes
        return below * _ratio(height, margin, slopes[0]).unsqueeze(1)

    def extra_repr(self) -> str:
        state = "fitted" if len(self.knots) else NOT_FITTED
        return f"{state}, pieces={self.pieces}, penalty={self.penalty:g}"


def _below_top(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits less their largest, (N, C, ...), and the margin of the two largest, (N, ...)."""
    first, second = logits.topk(2, dim=1).values.unbind(1)
    return logits - first.unsqueeze(1), first - second


def stretches(values: Tensor, knots: Tensor) -> Tensor:
    """How far each value goes along each stretch, (..., J); the first and the last are open."""
    if not knots.shape[-1]:
        return values.unsqueeze(-1)
    ends = knots.expand(*values.shape, -1)
    upper = torch.cat([ends[..., 1:], torch.full_like(ends[..., :1], torch.inf)], -1)
    first = torch.minimum(values.unsqueeze(-1), ends[..., :1])
    later = torch.maximum(torch.minimum(values.unsqueeze(-1), upper), ends) - ends
    return torch.cat([first, later], -1)


def _ratio(height: Tensor, margin: Tensor, first: Tensor) -> Tensor:
    """h(m) / m; at 0 its limit, the first slope."""
    tied = margin <= 0
    return (height / margin.masked_fill(tied, 1.0)).where(~tied, first)
