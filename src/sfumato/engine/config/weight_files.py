"""`weights: FILE` of any network: loaded after it is built, and part of the run's name."""

from __future__ import annotations

import functools
import glob
import hashlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sfumato.models import fit_weights, read_weights

ONNX = "onnx:"
_OPTIONS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None)
    for name in ("weights", "weights_digest")
]


class NewHeadWarning(UserWarning):
    """A file of weights is for other classes: the final layer of the network starts anew."""


def with_weights(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """`build` with two more options: `weights`, a file, and `weights_digest`, of its content.

    The table of parts reads options from signatures, so that all networks get them in one place.
    A final layer for other classes is left out, and said; a file of other content is an error.
    """
    own = inspect.signature(build, eval_str=True)

    @functools.wraps(build)
    def build_and_load(
        *positional: Any,
        weights: str | None = None,
        weights_digest: str | None = None,
        **options: Any,
    ) -> nn.Module:
        network = build(*positional, **options)
        if weights is not None:
            _load(network, weights, weights_digest)
        return network

    signature = own.replace(parameters=[*own.parameters.values(), *_OPTIONS])
    build_and_load.__signature__ = signature  # type: ignore[attr-defined]
    return build_and_load


def with_digest(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A network's spec with the digest of its weights, unless it says one: a pin, or a past run's.

    Raises:
        ValueError: no such file, or a digest without one.
    """
    if spec["name"].startswith(ONNX):
        return _with_file_digest(spec)
    weights, digest = spec.get("weights"), spec.get("weights_digest")
    if weights is None and digest is not None:
        raise ValueError("weights_digest is of the file that weights names: say weights too")
    if weights is None or digest is not None:
        return dict(spec)
    file = Path(weights)
    if not file.is_file():
        hint = ""
        if "pretrained" in spec or ":" in spec["name"]:
            hint = "; weights that a library publishes are pretrained: true, or their name"
        raise ValueError(f"weights of model {spec['name']!r}: no such file: {weights}{hint}")
    return {**spec, "weights_digest": file_digest(file)}


def _with_file_digest(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A network that is a file as a whole."""
    file = Path(spec["name"].removeprefix(ONNX)).expanduser()
    if "file_digest" in spec:
        return dict(spec)
    if not file.is_file():
        raise ValueError(f"model {spec['name']!r}: no such file: {file}")
    return {**spec, "file_digest": network_digest(file)}


def network_digest(file: Path) -> str:
    """Of an ONNX file and of the files of weights beside it, `net.onnx.data` of `net.onnx`."""
    parts = sorted(file.parent.glob(f"{glob.escape(file.name)}*"))
    digests = " ".join(file_digest(each) for each in parts if each.is_file())
    return hashlib.sha256(digests.encode()).hexdigest()[:16]


def file_digest(file: Path) -> str:
    """The first 16 digits of the SHA-256 of a file's content."""
    facts = file.stat()
    return _digest(file.resolve(), facts.st_mtime_ns, facts.st_size)


@functools.lru_cache(maxsize=64)
def _digest(file: Path, changed: int, size: int) -> str:
    """Kept as long as the file stays: every run of a study asks."""
    found = hashlib.sha256()
    with file.open("rb") as content:
        while part := content.read(1 << 20):
            found.update(part)
    return found.hexdigest()[:16]


def check_file_digest(
    name: str, digest: str | None, measure: Callable[[Path], str] = file_digest
) -> None:
    """Raise where a file is there and has another content than the run is named after."""
    file = Path(name).expanduser()
    found = measure(file) if file.is_file() else digest
    if digest is not None and found != digest:
        raise ValueError(
            f"{name} has the digest {found}, but the run is named after {digest}: the "
            "file has changed. Bring the old one back, or start the study anew with this one"
        )


def _load(network: nn.Module, weights: str, digest: str | None) -> None:
    check_file_digest(weights, digest)
    left_out = fit_weights(network, read_weights(weights), weights)
    if left_out:
        warnings.warn(
            f"weights {weights}: {', '.join(left_out)} are for another number of classes and "
            "start anew",
            NewHeadWarning,
            stacklevel=3,
        )
