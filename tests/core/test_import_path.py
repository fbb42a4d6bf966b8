"""Components by import path: found beside a study, imported fresh, named where they fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato._core.import_path import import_named, is_import_path, module_folder, searching

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path.parent

    return write_file


def fails(folder: Path, name: str, message: str) -> None:
    with searching(folder), pytest.raises(ValueError, match=message) as raised:
        import_named(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a:b", "a.b:C.d", "_a:é"])
def test_a_module_and_a_name(name: str) -> None:
    assert is_import_path(name)


@pytest.mark.parametrize("name", ["a", "a:", ":b", "a:b:c", "a.:b", "1a:b", "a b:c", 3, None])
def test_anything_else_is_none(name: object) -> None:
    assert not is_import_path(name)


def test_the_folder_is_on_the_path_only_inside_and_only_if_needed(write: Write) -> None:
    folder = write("beside_one.py", "VALUE = 3")
    before = list(sys.path)
    with searching(folder):
        assert module_folder() == folder
        assert sys.path == before
        assert import_named("beside_one:VALUE")[0] == 3
        assert sys.path[0] == str(folder)
    assert sys.path == before
    assert module_folder() is None
    assert not (folder / "__pycache__").exists()


def test_a_changed_module_is_imported_anew_with_its_helpers(write: Write) -> None:
    write("beside_helper.py", "VALUE = 1")
    folder = write("beside_two.py", "import beside_helper\nVALUE = beside_helper.VALUE")
    with searching(folder):
        first, old = import_named("beside_two:VALUE")
        assert import_named("beside_two:VALUE") == (first, old)
        write("beside_helper.py", "VALUE = 2")  # as long, and within the same second
        second, new = import_named("beside_two:VALUE")
    assert (first, second) == (1, 2)
    assert old != new


def test_two_studies_may_call_their_modules_alike(write: Write) -> None:
    folders = [write(f"{name}/beside_three.py", f"VALUE = {name!r}") for name in "ab"]
    for folder in (*folders, folders[0]):
        with searching(folder):
            assert import_named("beside_three:VALUE")[0] == folder.name


def test_a_helper_is_that_of_the_study(write: Write) -> None:
    """Though another study's of the same name is loaded, and though it is imported late."""
    for name in "ab":
        write(f"{name}/beside_shared.py", f"VALUE = {name!r}")
        write(
            f"{name}/beside_{name}.py",
            "def value():\n    import beside_shared as s; return s.VALUE",
        )
    for name in "ab":
        with searching(write(f"{name}/unrelated.py", "")):
            assert import_named(f"beside_{name}:value")[0]() == name
            write(f"{name}/beside_shared.py", f"VALUE = {name.upper()!r}")
            assert import_named(f"beside_{name}:value")[0]() == name.upper()


def test_what_is_installed_inside_the_folder_stays(write: Write) -> None:
    """A virtual environment often lies beside the study."""
    place = write(".venv/lib/site-packages/beside_installed.py", "import beside_half\n1 / 0")
    folder = write("beside_half.py", "VALUE = 1")
    sys.path.append(str(place))
    try:
        fails(folder, "beside_installed:x", r"can't be imported: ZeroDivisionError")
        write(".venv/lib/site-packages/beside_installed.py", "import beside_half")
        write("beside_half.py", "VALUE = 2")
        with searching(folder):
            assert import_named("beside_installed:beside_half.VALUE")[0] == 2
            installed = sys.modules["beside_installed"]
            write("beside_half.py", "VALUE = 3")
            assert import_named("beside_half:VALUE")[0] == 3
        assert sys.modules["beside_installed"] is installed
    finally:
        sys.path.remove(str(place))


def test_a_study_may_move(write: Write, tmp_path: Path) -> None:
    folder = write("before/beside_five.py", "VALUE = 5")
    with searching(folder):
        old = import_named("beside_five:VALUE")
    moved = folder.rename(tmp_path / "after")
    with searching(moved):
        assert import_named("beside_five:VALUE") == old


def test_a_module_may_not_have_the_name_of_another(write: Write) -> None:
    folder = write("json.py", "VALUE = 3")
    fails(folder, "json:VALUE", r"json\.py has the name of another module \(.*json.*\): rename it")


def test_a_dotted_name_and_a_package(write: Write) -> None:
    write("beside_package/__init__.py", "")
    write("beside_package/inner.py", "class Outer:\n    class Inner: ...")
    folder = write("unrelated.py", "")
    with searching(folder):
        assert import_named("beside_package.inner:Outer.Inner")[0].__name__ == "Inner"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = (", r"can't be imported: beside_bad\.py, line 2: SyntaxError: '\(' was never"),
        ("\n\nnope", r"can't be imported: beside_bad\.py, line 3: NameError: name 'nope'"),
        ("import nowhere_at_all", r"beside_bad\.py, line 1: ModuleNotFoundError: No module named"),
        ("import sys\nsys.exit(2)", r"beside_bad\.py, line 2: SystemExit: 2"),
        ("import torch\ntorch.zeros('a')", r"beside_bad\.py, line 2: TypeError"),
    ],
)
def test_an_import_that_fails_says_where(write: Write, text: str, message: str) -> None:
    fails(write("beside_bad.py", text), "beside_bad:Thing", message)


def test_a_helper_that_fails_is_the_one_named(write: Write) -> None:
    write("beside_wrong_helper.py", "\n1 / 0")
    folder = write("beside_four.py", "import beside_wrong_helper")
    fails(folder, "beside_four:x", r"beside_wrong_helper\.py, line 2: ZeroDivisionError")


def test_what_is_missing_is_named_with_what_is_near(write: Write) -> None:
    folder = write("my_losses.py", "def tilted(): ...")
    fails(folder, "my_loses:tilted", r"no module 'my_loses' in .* \(did you mean 'my_losses'\?\)")
    fails(folder, "my_losses:titled", r"has no 'titled' \(did you mean 'tilted'\?\)")
    fails(folder, "my_losses.deeper:x", "no module 'my_losses.deeper'")


def test_a_script_is_no_module(tmp_path: Path) -> None:
    fails(tmp_path, "__main__:Net", "workers can't import a script's own names")


def test_the_door_is_closed_unless_a_caller_opens_it(tmp_path: Path) -> None:
    for name in ("fractions:Fraction", "os:system", "nowhere_at_all:x"):
        with pytest.raises(ValueError, match=r"nothing was imported.*--modules"):
            import_named(name)
    with searching(tmp_path):
        assert import_named("fractions:Fraction")[0].__name__ == "Fraction"
    with searching(None), pytest.raises(ValueError, match="nothing was imported"):
        import_named("fractions:Fraction")
