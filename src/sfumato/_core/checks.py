"""Check arguments, and bring them to the type, the precision and the device of a computation.

Each message names the argument, what was expected, what came, and what to do. float64 is computed
on the processor where a device has none, so that the numbers are those of every other machine.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

Function = TypeVar("Function", bound=Callable[..., Any])

# Apple's have no float64.
DEVICES_WITHOUT = frozenset({"mps"})


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in tuple(choices):  # so that a list as value is compared and not hashed
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


def check_number(
    name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> None:
    """Raise unless `value` is a finite real number in [low, high] (or (low, high])."""
    # A tuple, because torch.export of PyTorch 2.8 does not know `int | float`.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    below = value <= low if open_low else value < low
    # Not math.isfinite: a huge int has no float, and torch.compile can't ask it of a variable.
    if not -math.inf < value < math.inf or below or value > high:
        left = "(" if open_low or low == -math.inf else "["
        right = ")" if high == math.inf else "]"
        raise ValueError(f"{name} must be in {left}{low:g}, {high:g}{right}, got {value!r}")


def check_open_share(name: str, value: Any) -> None:
    """Raise unless `value` is a number in (0, 1): 0 and 1 would guarantee all or nothing."""
    check_number(name, value, low=0.0, high=1.0, open_low=True)
    if value == 1:
        raise ValueError(f"{name} must be below 1, got {value!r}")


def check_integer(name: str, value: Any, *, low: int, high: int | None = None) -> None:
    """Raise unless `value` is an int of at least `low` (and at most `high`)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__} {value!r}")
    if value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high}"
        raise ValueError(f"{name} must be at least {low}{upper}, got {value}")


def check_floating(name: str, value: Any, *, hint: str = "") -> None:
    """Raise unless `value` is a floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}. {hint}".rstrip(". "))
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}. {hint}".rstrip(". "))


def classes_second(values: Tensor, class_dim: int) -> Tensor:
    """View `values` with the classes, which are in dimension `class_dim`, in dimension 1."""
    check_integer("class_dim", class_dim, low=-values.ndim, high=max(values.ndim, 2) - 1)
    return values if class_dim == 1 else values.movedim(class_dim, 1)


LEAST_ROWS = 4  # that look like probabilities before logits are refused


def check_logit_values(name: str, logits: Tensor, *, instead: str = "pass them as probs=") -> None:
    """Raise if `logits` are probabilities: the softmax of those is silently wrong."""
    if are_probabilities(logits):
        raise ValueError(
            f"{name} must be raw scores, got probabilities (no entry is negative, and every row "
            f"sums to 1): {instead}, or any_logits=True if they are logits after all"
        )


def are_probabilities(values: Tensor) -> bool:
    """Tell whether every row of `values` (N, C, ...) is a distribution over the classes.

    No entry is negative, and each row sums to 1 within 0.01. Logits do that by chance in less than
    one row of a hundred, so at least four rows are needed; one row served alone is never refused.
    Integers, and rows of nothing but 0 and 1, may be logits and pass. Only four rows are read where
    those are no distributions.
    """
    if not values.is_floating_point() or values.ndim < 2 or values.shape[1] < 2:
        return False
    if values.numel() < LEAST_ROWS * values.shape[1]:
        return False
    inner = (slice(2),) * (values.ndim - 2)
    return _sum_to_one(values[(slice(LEAST_ROWS), slice(None), *inner)]) and _sum_to_one(values)


def _sum_to_one(values: Tensor) -> bool:
    values = values.detach().float()
    near = (values.sum(1) - 1).abs() <= 1e-2
    is_hard = (values == 0) | (values == 1)
    return bool((values >= 0).all() & near.all() & ~is_hard.all())


def check_class_indices(
    name: str, target: Tensor, num_classes: int, *, ignore_index: int | None = None
) -> None:
    """Raise unless every entry of `target` is in [0, num_classes) or equals `ignore_index`."""
    if target.is_floating_point() or target.dtype in (torch.bool, torch.complex64):
        raise TypeError(f"{name} must hold integer class indices, got {target.dtype}")
    # A number that the dtype can't hold would wrap: in uint8, 300 classes to 44 and -100 to 156.
    held = torch.iinfo(target.dtype)
    bad = target < 0
    if num_classes <= held.max:
        bad |= target >= num_classes
    if ignore_index is not None and held.min <= ignore_index <= held.max:
        bad &= target != ignore_index
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        hint = f". Mark entries to skip with ignore_index={ignore_index}."
        raise ValueError(
            f"{name} must be class indices in [0, {num_classes}), got {int(target[where])} at "
            f"position {where}{'' if ignore_index is None else hint}"
        )


def check_matplotlib() -> None:
    """Raise an ImportError that names the extra unless matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("figures need matplotlib: python3 -m pip install 'sfumato[study]'")


def is_traced() -> bool:
    """True if operations are recorded or transformed: no value is there to be looked at.

    torch.compile, torch.export, TorchScript tracing, torch.func, and dispatch modes such as make_fx
    or FlopCounterMode. PyTorch has no public question for the last two.
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def plain_array(name: str, value: Any) -> np.ndarray:
    """NumPy's view of an array or list; what lies under a mask is nobody's number."""
    if np.ma.is_masked(value):
        raise ValueError(f"{name} has masked entries: leave such rows out")
    return np.asarray(value)


MOST_WHOLE = 2**62  # beyond any number of classes, and still an int64


def whole_numbers(values: np.ndarray) -> np.ndarray:
    """Convert to int64; a number that does not fit becomes one far outside of every range."""
    if values.dtype == np.uint64:
        values = np.minimum(values, MOST_WHOLE)
    elif values.dtype.kind == "f":
        values = np.nan_to_num(values).clip(-MOST_WHOLE, MOST_WHOLE)
    return values.astype(np.int64)


def to_tensor(name: str, value: Any) -> Tensor:
    """A tensor of `value`, detached; anything that numpy takes for an array of numbers.

    It is on a device that has float64, which what follows may need.
    """
    if isinstance(value, Tensor):
        return to_float64_device(value.detach())
    array = plain_array(name, value)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} must be numbers, got {type(value).__name__} of {array.dtype}. Turn names of "
            "classes into their positions first."
        )
    if array.dtype.kind == "u":  # PyTorch does little with unsigned numbers
        array = whole_numbers(array)
    native = array.astype(array.dtype.newbyteorder("="))  # a copy: no negative strides, writable
    return torch.from_numpy(native)


def numpy_to_tensor(value: Any) -> Any:
    """`to_tensor` of an array or tensor; anything else as it is, to be checked where it is used."""
    return to_tensor("array", value) if isinstance(value, np.ndarray | Tensor) else value


def like_input(result: Tensor, value: Any) -> Any:
    """`result` as a tensor where `value` is one, on its device, else as a numpy array.

    A device without float64 gets float32.
    """
    if not isinstance(value, Tensor):
        return result.cpu().numpy()
    is_held = result.dtype != torch.float64 or value.device == float64_device(value.device)
    return (result if is_held else result.float()).to(value.device)


def by_convention(function: Function) -> Function:
    """Answer NumPy arrays with NumPy arrays, and understand torchmetrics' `n_bins`."""

    @wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        if "n_bins" in kwargs:
            if "num_bins" in kwargs:
                raise TypeError("give num_bins or n_bins, which mean the same, not both")
            kwargs["num_bins"] = kwargs.pop("n_bins")
        if not any(isinstance(each, np.ndarray) for each in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        given = {name: _tensor(name, each) for name, each in kwargs.items()}
        return _array(function(*(_tensor("array", each) for each in args), **given))

    return measured  # type: ignore[return-value]


def _tensor(name: str, value: Any) -> Any:
    return to_tensor(name, value) if isinstance(value, np.ndarray) else value


def _array(result: Any) -> Any:
    """A tensor as an array or a number of NumPy, also in a named tuple."""
    if isinstance(result, Tensor):
        return result.detach().cpu().numpy()[()]
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*map(_array, result))
    return result


def given_scores(logits: Any, probs: Any) -> tuple[str, Any]:
    """Return ("logits", logits) or ("probs", probs): exactly one is given, and by name."""
    if (probs is None) == (logits is None):
        got = "none" if logits is None else "both"
        raise ValueError(f"give exactly one of logits= and probs=, got {got}")
    return ("logits", logits) if probs is None else ("probs", probs)


def to_scores(name: str, value: Any) -> Tensor:
    """One number in [0, 1] for each sample, (N,) float64."""
    scores = to_tensor(name, value).double()
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"{name} must be (N,) with N >= 1, got {tuple(scores.shape)}")
    bad = ~((scores >= 0) & (scores <= 1))
    if bool(bad.any()):
        where = int(bad.nonzero()[0])
        raise ValueError(
            f"{name} must be numbers in [0, 1], got {float(scores[where]):g} at position {where}"
        )
    return scores


def to_outcomes(name: str, value: Any, count: int) -> Tensor:
    """Yes or no for each of `count` samples, (N,) bool."""
    outcomes = to_tensor(name, value)
    if tuple(outcomes.shape) != (count,):
        raise ValueError(f"{name} must be ({count},), got {tuple(outcomes.shape)}")
    if not bool(((outcomes == 0) | (outcomes == 1)).all()):
        raise ValueError(f"{name} must be true or false (1 or 0) for each sample")
    return outcomes.bool()


def to_labels(name: str, value: Any, count: int, num_classes: int) -> Tensor:
    """A class index for each of `count` samples, (N,) int64."""
    labels = to_tensor(name, value)
    if tuple(labels.shape) != (count,):
        raise ValueError(f"{name} must be ({count},), got {tuple(labels.shape)}")
    check_class_indices(name, labels, num_classes)
    return labels.long()


def to_codes(name: str, value: Any, count: int) -> Tensor:
    """Numbers from 0 for the names or numbers of `count` samples, equal for equal ones, (N,)."""
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.shape != (count,):
        raise ValueError(f"{name} must be ({count},), got {array.shape}")
    if array.dtype.kind == "f" and np.isnan(array).any():
        where = int(np.isnan(array).argmax())
        raise ValueError(f"{name} must be names or numbers, got nan at position {where}")
    _, codes = np.unique(array, return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64))


def check_images(images: Tensor) -> None:
    """Raise unless `images` is a floating-point batch (N, C, H, W)."""
    check_floating("images", images, hint="Convert uint8 images with images / 255")
    check_batch(images)


def check_pixels(images: Tensor) -> None:
    """Raise unless `images` is a uint8 batch (N, C, H, W)."""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        found = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(
            f"images must be uint8, got {found}. Pixel augmentations come before the conversion "
            "to floating point: uint8, float, normalise, mix, mollify."
        )
    check_batch(images)


def check_batch(images: Tensor) -> None:
    """Raise unless `images` has the four dimensions (N, C, H, W), none of the last three empty."""
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(
            f"images must have shape (N, C, H, W), got {tuple(images.shape)}. "
            "For one image use images[None]."
        )


def check_unit_images(images: Any) -> None:
    """Raise unless `images` are (N, 1 or 3, H, W), uint8 or floating point in [0, 1]."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a tensor, got {type(images).__name__}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must be (N, C, H, W) with 1 or 3 channels, got {tuple(images.shape)}. "
            "Use unsqueeze(0) for one image and permute(0, 3, 1, 2) for channels last."
        )
    if images.is_floating_point() and images.numel():
        low, high = (float(bound) for bound in images.aminmax())
        if not (low >= 0.0 and high <= 1.0):
            raise ValueError(
                f"images must lie in [0, 1] if floating point, got {low:g} to {high:g}. "
                "Change images before normalising them; divide 0-255 images by 255."
            )


def check_uniforms(uniforms: Tensor, count: int, draws: int) -> None:
    """Raise unless there is a row of `draws` numbers for each of `count` samples."""
    if tuple(uniforms.shape) != (count, draws):
        raise ValueError(f"uniforms must have shape {(count, draws)}, got {tuple(uniforms.shape)}")


def working_dtype(images: Tensor) -> torch.dtype:
    """float64 for float64 images; float32 for all others, half precision included."""
    return torch.float64 if images.dtype == torch.float64 else torch.float32


def soft_labels(target: Tensor, images: Tensor, num_classes: int) -> Tensor:
    """`target` as one row of class shares per image, (N, num_classes), checked.

    Class indices become one-hot rows in the working precision of the images; soft labels come
    back as they are.
    """
    check_integer("num_classes", num_classes, low=2)
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    expected = (len(images), num_classes) if target.is_floating_point() else (len(images),)
    if target.shape != expected:
        raise ValueError(
            f"target must hold class indices ({len(images)},) or soft labels, floating point, "
            f"({len(images)}, {num_classes}), got {target.dtype} {tuple(target.shape)}"
        )
    if target.is_floating_point():
        return target
    if not is_traced():
        check_class_indices("target", target, num_classes)
    return one_hot(target.long(), num_classes).to(working_dtype(images))


def float64_device(device: torch.device) -> torch.device:
    """Return `device`, or the processor if `device` has no float64."""
    return torch.device("cpu") if device.type in DEVICES_WITHOUT else device


def to_float64_device(tensor: Tensor) -> Tensor:
    """Move a tensor to the processor if its device has no float64; its dtype stays."""
    return tensor.cpu() if tensor.device.type in DEVICES_WITHOUT else tensor


def to_float64(tensor: Tensor) -> Tensor:
    """Convert a tensor to float64, on the processor if its device has none."""
    return to_float64_device(tensor).double()


def meeting(values: Tensor, other: Tensor) -> Tensor:
    """Convert fitted `values` to the dtype and device of `other`, in this order.

    The device of `other` may have no float64. Single numbers keep their digits: in half precision
    they stay in float32.
    """
    least = torch.float32 if not values.ndim else other.dtype
    return values.to(torch.promote_types(other.dtype, least)).to(other.device)


def with_float64(generator: torch.Generator | None) -> torch.Generator | None:
    """Return the generator, or one on the processor that it seeds if its device has no float64."""
    if generator is None or generator.device.type not in DEVICES_WITHOUT:
        return generator
    seed = torch.randint(2**31 - 1, (1,), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(seed))


class KeepsPrecision(nn.Module):
    """Base of modules whose buffers keep their dtype, because they hold sums or fitted numbers.

    `.half()`, `.bfloat16()`, `.double()` and `.to(dtype)` leave them as they are, `.to(device)`
    moves them: float64 ones to the processor instead of a device without float64.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def move(tensor: Tensor) -> Tensor:
            if tensor.dtype == torch.float64:
                device = fn(torch.empty(0, device=tensor.device)).device
                if device != float64_device(device):
                    return tensor.cpu()
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)
