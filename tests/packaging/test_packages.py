"""The packages as a new user installs them: built, put into an empty environment, and used there.

Torch and the other requirements come from the environment of the tests, because installing them
anew takes minutes; `.ci/run` and the workflows install them for real.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from sfumato import __version__

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SET_UP = re.compile(r"^<!-- set-up -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Packages(NamedTuple):
    sdist: Path
    wheel: Path


def run(*command: str | Path, cwd: Path, **settings: str) -> str:
    """The output of a command that must succeed; the repository is out of its sight."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env={**inherited, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path, settings: Mapping[str, str]) -> Packages:
    """The sdist of the tracked files, and the wheel that is built from that sdist."""
    pytest.importorskip("build", reason="python3 -m pip install -e '.[packaging]'")
    pytest.importorskip("hatchling", reason="python3 -m pip install -e '.[packaging]'")
    listed = run("git", "ls-files", "-z", cwd=ROOT)
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            target = folder / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target, follow_symlinks=False)
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist")
    run(*command, cwd=folder / "source", **settings)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return Packages(sdist, wheel)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return build(tmp_path_factory.mktemp("packages"), {})


def environment(folder: Path, wheel: Path) -> Path:
    """The Python of an environment that holds the wheel, and sees what the tests have."""
    venv.create(folder, symlinks=True)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    (library,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched after the environment's own, and its .pth files are not
    # read: an editable install of the repository stays out of sight.
    (library / "requirements.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    options = ("--no-deps", "--no-index", "--ignore-installed", "--quiet")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=folder)
    found = run(python, "-c", "import sfumato; print(sfumato.__file__)", cwd=folder)
    assert Path(found.strip()).is_relative_to(library)
    return python


@pytest.fixture(scope="module")
def python(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("installed"), packages.wheel)


def test_wheel_holds_what_is_needed_and_no_more(packages: Packages) -> None:
    names = zipfile.ZipFile(packages.wheel).namelist()
    assert packages.wheel.name.startswith(f"sfumato-{__version__}-py3-none-")
    assert "sfumato/study/quickstart.yaml" in names
    assert "sfumato/report/assets/report.css" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert tops == {"sfumato", f"sfumato-{__version__}.dist-info"}
    if sys.platform.startswith("linux") and shutil.which("cc"):
        assert any(name.endswith("kernels-base.so") for name in names)


def test_sdist_holds_sources_and_tests(packages: Packages) -> None:
    with tarfile.open(packages.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "src/sfumato/ops/kernels.c", "LICENSE"} <= names
    assert not any(name.endswith((".so", ".pyc")) for name in names)


def test_readme_examples_run(python: Path, tmp_path: Path) -> None:
    (set_up,) = SET_UP.findall((ROOT / "docs/methods.md").read_text(encoding="utf-8"))
    examples = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert examples
    (tmp_path / "examples.py").write_text("\n".join((set_up, *examples)), encoding="utf-8")
    run(python, "examples.py", cwd=tmp_path)


def test_quickstart(python: Path, tmp_path: Path) -> None:
    said = run(
        python.with_name("sfumato"), "quickstart", "--tiny", "--no-open", "--quiet", cwd=tmp_path
    )
    assert "decide nothing" in said
    assert (tmp_path / "quickstart-tiny/report/index.html").exists()


def test_without_a_compiler(tmp_path: Path) -> None:
    plain = build(tmp_path, {"CC": "/bin/false"})
    assert plain.wheel.name == f"sfumato-{__version__}-py3-none-any.whl"
    python = environment(tmp_path / "environment", plain.wheel)
    code = (
        "import torch; from sfumato.labels import acls_loss;"
        "from sfumato.ops.library import library;"
        "assert library() is None;"
        "print(acls_loss(torch.tensor([[14.0, 0.0, 2.0]]), torch.tensor([0])).item())"
    )
    assert float(run(python, "-c", code, cwd=tmp_path)) == pytest.approx(1.7, abs=1e-4)
