"""What the digest of a part covers, and what it doesn't."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from sfumato._core.import_path import source_digest


def module(folder: Path, name: str, file: str) -> ModuleType:
    found = ModuleType(name)
    found.__file__ = str(folder / file)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`part` imports `helper` and, inside a function, `late`; `package.inner` its neighbour."""
    texts = {
        "part.py": "import torch, helper\ndef f():\n    from late import x\n",
        "helper.py": "from deep import y\n",
        "deep.py": "y = 1\n",
        "late.py": "x = 1\n",
        "unrelated.py": "z = 1\n",
        "package/__init__.py": "",
        "package/inner.py": "from . import near\nfrom ..outside import q\nfrom .sub.leaf import w",
        "package/near.py": "n = 1\n",
        "package/sub/leaf.py": "w = 1\n",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize("changed", ["part.py", "helper.py", "deep.py", "late.py"])
def test_what_it_imports_counts(folder: Path, changed: str) -> None:
    part = module(folder, "part", "part.py")
    before = source_digest(part)
    (folder / changed).write_text((folder / changed).read_text() + "# another\n")
    assert source_digest(part) != before


@pytest.mark.parametrize("changed", ["__init__.py", "inner.py", "near.py", "sub/leaf.py"])
def test_relative_imports_and_packages_count(folder: Path, changed: str) -> None:
    inner = module(folder, "package.inner", "package/inner.py")
    before = source_digest(inner)
    path = folder / "package" / changed
    path.write_text(path.read_text() + "# another\n")
    assert source_digest(inner) != before


def test_nothing_else_counts(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    part = module(folder, "part", "part.py")
    before = source_digest(part)
    (folder / "unrelated.py").write_text("z = 2\n")
    (folder / "part.py").write_bytes((folder / "part.py").read_bytes().replace(b"\n", b"\r\n"))
    assert source_digest(part) == before
    moved = folder.rename(tmp_path_factory.mktemp("elsewhere") / "study")
    assert source_digest(module(moved, "part", "part.py")) == before


def test_of_what_is_installed_its_own_file_counts(folder: Path) -> None:
    place = folder / "lib" / "site-packages"
    place.mkdir(parents=True)
    (place / "part.py").write_text("import helper\n")
    (place / "helper.py").write_text("a = 1\n")
    part = module(place, "part", "part.py")
    before = source_digest(part)
    (place / "helper.py").write_text("a = 2\n")
    assert source_digest(part) == before
    (place / "part.py").write_text("import helper, deep\n")
    assert source_digest(part) != before


def test_what_has_no_file_has_no_digest() -> None:
    assert source_digest(ModuleType("nothing")) is None
