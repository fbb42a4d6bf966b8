"""The house's one-way streets: who may import whom, and what a leaf may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
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
    "inputs": {"labels.targets"},
    "models": {"features"},
    "data": {"augment"},
    "analysis": {"features"},
    "_core": set(),
    "ops": set(),
    "functional": LEAVES,
    "engine": BELOW_ENGINE,
    "study": {"analysis", "engine"},
    "report": set(),
    # The page and the text of an audit look and round like those of a study.
    "auditing": {"metrics", "predictions", "report.document", "report.statistics"},
    "integrations": {"metrics", "predictions"},
    "trained": {"data", "engine", "report"},
    "cli": {
        "auditing",
        "corruptions",
        "data",
        "engine",
        "integrations.trackers",
        "study",
        "report",
    },
    "__init__": {"auditing", "trained"},
    "__main__": {"cli"},
}
# The rooms of the engine; each imports only those before it, lazily or not.
ROOMS = ("fabric", "runs", "config", "training", "evaluation", "tasks", "preflight", "timing")
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


@cache
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


def _room(parts: tuple[str, ...]) -> int:
    """Place in `ROOMS` of a path or dotted name below `engine`."""
    return ROOMS.index(parts[0].removesuffix(".py"))


_ENGINE = sorted({*(SOURCE / "engine").rglob("*.py")} - {SOURCE / "engine" / "__init__.py"})


@pytest.mark.parametrize("path", _ENGINE, ids=lambda p: str(p.relative_to(SOURCE / "engine")))
def test_rooms_of_the_engine_import_only_forward(path: Path) -> None:
    """`engine/__init__.py` alone names all rooms, and nobody inside goes through it."""
    here = _room(path.relative_to(SOURCE / "engine").parts)
    for name in _package_imports(path):
        package, *rest = name.split(".")
        if package == "engine":
            assert rest[0] in ROOMS, f"{path.name} imports {name}, import it from its room"
            assert _room((*rest,)) <= here, f"engine/{ROOMS[here]} may not import {name}"


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


@cache
def _borrowed(module: str) -> set[str]:
    """The names that a module has from others and does not define; none of a package."""
    path = SOURCE.parent / f"{module.replace('.', '/')}.py"
    if not path.exists():
        return set()
    nodes = list(ast.walk(ast.parse(path.read_text())))
    own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return {
        a.asname or a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names
    } - own


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.name))
def test_a_name_is_imported_from_its_home(path: Path) -> None:
    imported = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sfumato.")
        for alias in node.names
    }
    # `fabric` imports Fabric without what makes its own import slow.
    imported.discard(("sfumato.engine.fabric", "Fabric"))
    assert [pair for pair in sorted(imported) if pair[1] in _borrowed(pair[0])] == []


def test_leaves_cost_torch_only() -> None:
    """One process for all leaves, since the import of torch takes seconds."""
    code = f"""if True:
        import importlib, sys
        for leaf in {sorted(LEAVES)!r}:
            importlib.import_module("sfumato." + leaf)
            loaded = {{name.split(".")[0] for name in sys.modules}}
            for heavy in loaded.intersection({HEAVY!r}):
                print(leaf, "imports", heavy)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


def test_an_audit_costs_neither_fabric_nor_torchvision() -> None:
    """Nearly all the time of a small audit was the import of what trains networks."""
    code = (
        "import sys, sfumato.cli, sfumato.auditing.judge, sfumato.auditing.page; "
        "heavy = ('lightning_fabric', 'torchmetrics', 'torchvision', 'matplotlib', 'scipy'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_an_audit_loads_nothing_that_makes_or_trains_on_data() -> None:
    """The auditor has a file of predictions alone."""
    modules = sorted(path.stem for path in (SOURCE / "auditing").glob("[!_]*.py"))
    names = ", ".join(f"sfumato.auditing.{name}" for name in modules)
    packages = ("augment", "corruptions", "data", "engine", "features", "inputs", "labels", "study")
    code = (
        f"import sys, sfumato.auditing, {names}; "
        f"print([m for m in {packages!r} if f'sfumato.{{m}}' in sys.modules])"
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
