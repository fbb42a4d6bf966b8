"""The house's one-way streets: who may import whom, and what a leaf may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "sfumato"
LEAVES = {"labels", "inputs", "augment", "features", "predictions", "corruptions", "metrics"}
SHARED = {"_core", "ops", "__version__"}
BELOW_ENGINE = LEAVES | {"models", "data", "analysis"}
# Who may import what: packages, or single modules of them. Each grant is used.
ALLOWED: dict[str, set[str]] = {
    **{leaf: set() for leaf in LEAVES},
    "augment": {"labels.targets", "labels.objectness"},
    # Public names that belong elsewhere, kept where they have always been imported from.
    "inputs": {"labels.targets", "labels.objectness", "augment"},
    "corruptions": {"metrics.consistency", "metrics.corruption_ratio"},
    "features": {"predictions.training_ensemble"},
    "models": {"features"},
    "data": {"augment", "corruptions"},
    "analysis": {"features"},
    "_core": set(),
    "ops": set(),
    "functional": LEAVES,
    "engine": BELOW_ENGINE,
    "study": {"analysis", "engine"},
    "report": set(),
    "auditing": {"engine", "report"},
    "integrations": {"metrics"},
    "trained": {"data", "engine", "report"},
    "cli": {"corruptions", "data", "engine", "study", "report"},
    "__init__": {"auditing", "trained"},
    "__main__": {"cli"},
}
HEAVY = (
    "lightning_fabric",
    "matplotlib",
    "pydantic",
    "rich",
    "scipy",
    "torchmetrics",
    "torchvision",
    "typer",
    "yaml",
)


def _package_imports(path: Path) -> list[str]:
    """Dotted names below `sfumato` that a file imports, wherever in the file."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute in this package"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name.removeprefix("sfumato.") for name in names if name.startswith("sfumato.")]


def _area(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _grants(name: str, allowed: set[str]) -> set[str]:
    """The entries of a row of the table that let `name` in: a package, or a module of one."""
    package, module, *_ = f"{name}.".split(".")
    return {package, f"{package}.{module}"} & allowed


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.name))
def test_imports_only_forward(path: Path) -> None:
    area = _area(path)
    allowed = ALLOWED[area] | SHARED | {area}
    for name in _package_imports(path):
        where = f"{path.relative_to(SOURCE)} ({area})"
        assert _grants(name, allowed), f"{where} may not import sfumato.{name}"


@pytest.mark.parametrize("area", sorted(ALLOWED))
def test_every_grant_is_used(area: str) -> None:
    """A grant that nobody uses is a door left open: the next import through it goes unseen."""
    paths = [path for path in SOURCE.rglob("*.py") if _area(path) == area]
    assert paths, f"{area} is in the table, but not in the package"
    names = [name for path in paths for name in _package_imports(path)]
    used = set().union(*(_grants(name, ALLOWED[area]) for name in names))
    assert ALLOWED[area] == used, f"{area} never imports {sorted(ALLOWED[area] - used)}"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.name))
def test_an_underscore_means_of_this_package_only(path: Path) -> None:
    """A module `_name` is for its own package; any other name `_name` for its own module."""
    package = (*path.relative_to(SOURCE).parent.parts,)
    for name in _package_imports(path):
        parts = name.split(".")
        private = [place for place, part in enumerate(parts) if part[0] == "_" and part[1] != "_"]
        for place in private:
            home = SOURCE.joinpath(*parts[: place + 1])
            is_module = home.is_dir() or home.with_suffix(".py").exists()
            assert is_module, f"{path.name} imports the private name {name}"
            assert package[:place] == tuple(parts[:place]), f"{path.name} imports {name}"


@pytest.mark.parametrize("leaf", sorted(LEAVES))
def test_leaf_costs_torch_only(leaf: str) -> None:
    code = (
        f"import sys, sfumato.{leaf}; "
        f"print([m for m in {HEAVY!r} if any(k.split('.')[0] == m for k in sys.modules)])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_an_audit_costs_neither_fabric_nor_torchvision() -> None:
    """Nearly all the time of a small audit was the import of what trains networks."""
    code = (
        "import sys, sfumato.cli, sfumato.engine.evaluation.audit, sfumato.report.audit; "
        "heavy = ('lightning_fabric', 'torchmetrics', 'torchvision', 'matplotlib', 'scipy'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_report_costs_no_torch() -> None:
    code = "import sys, sfumato.cli, sfumato.report; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_no_module_of_the_engine_hides_a_name() -> None:
    """Names load when asked for; a loaded module of the same name would be found instead."""
    from sfumato import engine

    modules = {path.stem for path in (SOURCE / "engine").glob("*.py")}
    assert not modules & set(engine.__all__)
    assert sorted(engine._HOMES) == engine.__all__
    assert all(hasattr(engine, name) for name in engine.__all__)
