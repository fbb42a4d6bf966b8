"""Weights from files into networks: what fits, what doesn't, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.models.final_layer import final_parameters

_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
# Where training scripts put the state dict beside other things, and what wrappers put before keys.
_INSIDE = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.", "model.", "network.")
_SHOWN = 8


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a file, without running any code that a file could hold.

    Args:
        path: a `.safetensors` file, or a `.pt`, `.pth`, `.bin` or `.ckpt` file of tensors: a state
            dict, or a mapping that has one under `state_dict`, `model_state_dict` or `model`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, or one that holds more than tensors.

    Example:
        >>> read_weights("resnet.safetensors")  # doctest: +SKIP
    """
    file = Path(path)
    if file.suffix not in _SUFFIXES:
        raise ValueError(f"weights must be a file ending in {', '.join(_SUFFIXES)}, got {file}")
    if not file.is_file():
        raise FileNotFoundError(f"weights {file}: no such file")
    return _read_safetensors(file) if file.suffix == ".safetensors" else _read_pickled(file)


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError(
            f"weights {file} need safetensors: python3 -m pip install 'sfumato[study]'"
        ) from error
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"weights {file}: no whole safetensors file: {error}") from None


def _read_pickled(file: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(file, weights_only=True, map_location="cpu")
    except MemoryError:
        raise
    except Exception as error:  # of the archive or of pickle: torch lets all pass
        raise ValueError(
            f"weights {file} hold more than tensors, or are damaged "
            f"({' '.join(str(error).split())[:120]}). Only tensors are read, because other content "
            "could run code: save them with torch.save(network.state_dict(), FILE)"
        ) from None
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()
    ):
        raise ValueError(
            f"weights {file} must hold a mapping of names to tensors, or one under "
            f"{', '.join(_INSIDE)}; it holds {type(content).__name__}. Save them with "
            "torch.save(network.state_dict(), FILE)"
        )
    return dict(content)


def fit_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> list[str]:
    """Load weights into a network; a final layer for other classes is left as it is.

    Names may have the prefix of a wrapper (`module.` of DDP, `model.`, `network.`, `_orig_mod.`)
    where the network's own have none. Counters of batch normalisation may be missing.

    Args:
        network: gets the weights.
        weights: the state dict, for example from `read_weights`.
        source: where it comes from, for messages.

    Returns:
        The names that were left out, those of the final layer, or nothing.

    Raises:
        ValueError: names are missing or unexpected, or shapes differ elsewhere; all are listed.

    Example:
        >>> from sfumato.models import resnet
        >>> ten, three = (resnet(8, num_classes=n, width=4) for n in (10, 3))
        >>> fit_weights(three, ten.state_dict(), "ten")
        ['head.linear.bias', 'head.linear.weight']
    """
    own = network.state_dict()
    given = _unwrapped(weights, own)
    shared = own.keys() & given.keys()
    reshaped = {key for key in shared if own[key].shape != given[key].shape}
    head = final_parameters(network)
    left_out = reshaped & head if all(_same_inputs(own[k], given[k]) for k in reshaped) else set()
    missing = [key for key in own if key not in given and not key.endswith("num_batches_tracked")]
    problems = {
        "missing in the file": missing,
        "not in the network": [key for key in given if key not in own],
        "of another shape": [
            f"{key} {tuple(given[key].shape)} instead of {tuple(own[key].shape)}"
            for key in own
            if key in reshaped - left_out
        ],
    }
    if any(problems.values()):
        said = "; ".join(f"{what}: {_some(keys)}" for what, keys in problems.items() if keys)
        raise ValueError(
            f"weights {source} are not of this {type(network).__name__}: {said}. Give the model "
            "the name and the options that these weights were made with"
        )
    network.load_state_dict({**own, **{key: given[key] for key in shared - left_out}})
    return sorted(left_out)


def _same_inputs(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors differ in the number of outputs only."""
    return ours.ndim > 0 and ours.shape[1:] == theirs.shape[1:]


def _unwrapped(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights without a prefix that all names have and none of the network's."""
    found = dict(weights)
    for prefix in _WRAPPERS:
        every = bool(found) and all(key.startswith(prefix) for key in found)
        if every and not any(key.startswith(prefix) for key in own):
            found = {key.removeprefix(prefix): value for key, value in found.items()}
    return found


def _some(keys: Iterable[str]) -> str:
    every = list(keys)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more
