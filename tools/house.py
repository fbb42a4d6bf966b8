"""Print the size of the library and the files that its five walks enter, against their limits.

Run: python tools/house.py [--check]    with --check, exit status 1 where a limit is passed

A file counts as entered where one of its functions runs; importing it does not count. The ways of
imports are held by tests/test_import_directions.py.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "sfumato"
FILES = sorted(SOURCE.rglob("*.py"))


class _SteppedError(Exception):
    """The optimiser made its first step."""


def importers() -> Counter[Path]:
    """By module the number of other modules that import it."""
    found: Counter[Path] = Counter()
    for path in FILES:
        seen = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            seen |= {home for name in names if (home := _home(name)) and home != path}
        found.update(seen)
    return found


def _home(name: str) -> Path | None:
    """The file of a module, or of the module that a dotted name is in."""
    parts = name.split(".")
    if parts[0] != "sfumato":
        return None
    for stop in (len(parts), len(parts) - 1):
        place = SOURCE.joinpath(*parts[1:stop])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
    return None


def comments() -> int:
    """Lines of the library that hold a comment and nothing else."""
    lines = (line for path in FILES for line in path.read_text("utf-8").splitlines())
    return sum(line.lstrip().startswith("#") for line in lines)


def public_names() -> tuple[int, int]:
    """Names of all packages, and how many of them are distinct."""
    surface = json.loads((ROOT / "tests" / "api_surface.json").read_text("utf-8"))
    names = [name for module, each in surface.items() if module != "functional" for name in each]
    return len(names), len(set(names))


@contextmanager
def entering(files: set[Path]) -> Iterator[None]:
    """Collect the files of the library whose functions run meanwhile, in all threads."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            path = Path(frame.f_code.co_filename)
            if SOURCE in path.parents:
                files.add(path)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def walk_acls(_: Path) -> Callable[[], Any]:
    import torch

    from sfumato.labels import ACLSLoss

    logits, target = torch.randn(8, 5, requires_grad=True), torch.randint(0, 5, (8,))
    return lambda: ACLSLoss()(logits, target).backward()


def walk_audit(folder: Path) -> Callable[[], Any]:
    import numpy as np

    from sfumato.cli import app

    random = np.random.default_rng(0)
    probs = random.dirichlet(np.ones(4), 400)
    np.savez(folder / "p.npz", probs=probs, labels=random.integers(0, 4, 400))
    arguments = ["audit", str(folder / "p.npz"), "--out", str(folder / "audit"), "--quiet"]
    return lambda: app(arguments, standalone_mode=False)


def walk_sample(folder: Path) -> Callable[[], Any]:
    import torch

    from sfumato.engine import RunConfig, parse, run

    class Stop(torch.optim.SGD):
        def step(self, *_: Any, **__: Any) -> None:
            raise _SteppedError

    config = parse(
        RunConfig,
        {
            "data": {"name": "scenes", "size": 16, "train": 40, "validation": 10, "test": 10},
            "model": {"name": "resnet", "depth": 8, "width": 4, "smooth": True},
            "augment": "fcr",
            "inputs": "mollify",
            "loss": "acls",
            "train": {"epochs": 1, "batch_size": 20},
        },
        "run",
    )
    torch.optim.SGD = Stop  # type: ignore[misc]
    return lambda: run(config, folder / "runs", show=False)


def walk_evaluate(_: Path) -> Callable[[], Any]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import sfumato

    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    data = TensorDataset(torch.rand(40, 3, 8, 8), torch.randint(0, 3, (40,)))
    loader = DataLoader(data, batch_size=20)
    return lambda: sfumato.evaluate(network, loader, quiet=True)


def entered(walk: Callable[[Path], Callable[[], Any]]) -> set[Path]:
    """The files that a walk enters; the first time it only loads what it needs."""
    files: set[Path] = set()
    for seen in (set[Path](), files):
        with tempfile.TemporaryDirectory() as folder:
            call = walk(Path(folder))
            try:
                with entering(seen), redirect_stdout(io.StringIO()):
                    call()
            except (_SteppedError, SystemExit):
                pass
    return files


def rows() -> list[tuple[str, float, float, bool]]:
    """Name, value, limit, and whether the limit is a lower one."""
    total, distinct = public_names()
    single = sum(count == 1 for count in importers().values())
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in FILES)
    return [
        ("files in src/sfumato", len(FILES), 260, False),
        ("lines in src/sfumato", lines, 54_000, False),
        ("modules with exactly one importer", single, 60, False),
        ("files entered: ACLS call", len(entered(walk_acls)), 6, False),
        ("files entered: audit of an npz to page", len(entered(walk_audit)), 22, False),
        ("files entered: one sample to optimiser step", len(entered(walk_sample)), 35, False),
        ("files entered: evaluate", len(entered(walk_evaluate)), 28, False),
        ("public names in packages", total, 420, False),
        ("public names that stand twice", total - distinct, 0, False),
        ("comments", comments(), 500, True),
    ]


def main() -> int:
    importlib.import_module("sfumato.cli")
    passed = []
    print(f"{'':44} {'now':>7} {'limit':>8}")
    for name, value, limit, is_lower in rows():
        good = value >= limit if is_lower else value <= limit
        passed.append(good)
        sign = "at least" if is_lower else "at most"
        print(f"{name:44} {value:>7,} {sign:>9} {limit:,}{'' if good else '   <-'}")
    return 0 if all(passed) or "--check" not in sys.argv else 1


if __name__ == "__main__":
    if "--walk" in sys.argv:
        walk = globals()[f"walk_{sys.argv[sys.argv.index('--walk') + 1]}"]
        print("\n".join(sorted(str(path.relative_to(SOURCE)) for path in entered(walk))))
        sys.exit()
    sys.exit(main())
