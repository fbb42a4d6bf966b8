"""Load weights from files into networks, and find the layer that gives the logits."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sfumato._core.exports import optional
from sfumato._core.files import checked_file, open_file
from sfumato._core.torch_files import load_tensors


def final_layers(network: nn.Module) -> list[str]:
    """Names of the modules whose outputs are the logits, usually one.

    These are the last convolution or linear layer in the order of the modules, and those just
    before it with the same shape of weights: LR-ASPP adds up two, a distilled transformer has two.
    """
    layers = [
        (name, part)
        for name, part in network.named_modules()
        if isinstance(part, nn.Linear | nn.modules.conv._ConvNd)
    ]
    if not layers:
        raise ValueError(
            f"{type(network).__name__} has no linear or convolutional layer, so nothing in it can "
            "be told to give the logits"
        )
    last = layers[-1][1]
    alike = takewhile(lambda layer: _alike(layer[1], last), reversed(layers))
    return [name for name, _ in alike][::-1]


class HeadFeatures:
    """Takes the features before the layer that gives the logits, in whatever passes are made.

    Features with places are averaged over them, (B, D, ...) to (B, D); where the layer takes
    tokens, (B, T, D), over the tokens.

    Args:
        network: the network.
        layer: name of the layer, as in `named_modules()`; the last of `final_layers` by default,
            which holds for the networks here and those of torchvision and timm.

    Example:
        >>> import torch
        >>> from sfumato.models import resnet
        >>> network = resnet(8, num_classes=10, width=4).eval()
        >>> with HeadFeatures(network) as head:
        ...     logits = network(torch.zeros(2, 3, 32, 32))
        >>> head.taken[0].shape
        torch.Size([2, 16])
    """

    def __init__(self, network: nn.Module, layer: str | None = None) -> None:
        known = dict(network.named_modules())
        if layer is None:
            try:
                layer = final_layers(network)[-1]
            except ValueError as error:
                raise ValueError(f"no features found: {error}. Name the layer") from None
        # A network may be wrapped, which puts a prefix before the names of its modules.
        found = [name for name in known if name == layer or name.endswith(f".{layer}")]
        if len(found) != 1 and layer not in known:
            raise ValueError(
                f"{type(network).__name__} has {len(found) or 'no'} modules {layer!r} to take "
                f"features before; its last ones are {', '.join(list(known)[-3:])}"
            )
        self._layer = known[layer if layer in known else found[0]]
        self.taken: list[Tensor] = []

    def __enter__(self) -> HeadFeatures:
        self._hook = self._layer.register_forward_pre_hook(self._take)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _take(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        values: Tensor = inputs[0].detach()
        if values.ndim > 2:
            is_last = isinstance(layer, nn.Linear)
            values = values.flatten(1, -2).mean(1) if is_last else values.flatten(2).mean(2)
        self.taken.append(values)


def final_parameters(network: nn.Module) -> set[str]:
    """Names of the parameters of `final_layers`."""
    return {
        f"{layer}.{name}" if layer else name
        for layer in final_layers(network)
        for name, _ in network.get_submodule(layer).named_parameters()
    }


def _alike(part: nn.Module, last: nn.Module) -> bool:
    """True if both give as many outputs: linear ones of as many inputs, others of equal kernels."""
    ours, theirs = (each.get_parameter("weight").shape for each in (part, last))
    if isinstance(last, nn.Linear):
        return type(part) is type(last) and ours == theirs
    return type(part) is type(last) and (ours[0], ours[2:]) == (theirs[0], theirs[2:])


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
    optional("safetensors", f"weights {file} need", "study")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(checked_file(file))
    except SafetensorError as error:
        raise ValueError(f"weights {file}: no whole safetensors file: {error}") from None


def _read_pickled(file: Path) -> dict[str, Tensor]:
    try:
        with open_file(file) as opened:
            content = load_tensors(opened)
    except MemoryError:
        raise
    except Exception as error:  # of the archive or of pickle: torch lets all pass
        raise ValueError(
            f"weights {file} hold more than tensors, or are unreadable "
            f"({' '.join(str(error).split())[:120]}). Only tensors are read, because other content "
            "could run code: save them with torch.save(network.state_dict(), FILE)"
        ) from None
    if isinstance(content, Mapping):
        inside = (content[key] for key in _INSIDE if isinstance(content.get(key), Mapping))
        content = next(inside, content)
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
    # Of a layer for other classes nothing but the number of outputs differs.
    is_head = all(own[key].ndim and own[key].shape[1:] == given[key].shape[1:] for key in reshaped)
    left_out = reshaped & head if is_head else set()
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


def _unwrapped(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights without a prefix that all names have and none of the network's."""
    found = dict(weights)
    for prefix in _WRAPPERS:  # one may be inside another
        if all(k.startswith(prefix) for k in found) and not any(k.startswith(prefix) for k in own):
            found = {key.removeprefix(prefix): value for key, value in found.items()}
    return found


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more
