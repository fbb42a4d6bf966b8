"""Shared fixtures: golden vectors, real data where it is at hand, one thread per worker."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

# Some virtual machines announce matrix instructions (AMX) that they then refuse; bfloat16 layers
# die there of an illegal instruction unless oneDNN is told to leave them alone before it loads.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.pop("COLUMNS", None)
os.environ.pop("SFUMATO_DATA", None)  # relative paths in tests begin where the test says

import hypothesis
import numpy as np
import pytest
import torch

# The same examples on every machine, however slow it is at the moment.
hypothesis.settings.register_profile(
    "same everywhere",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same everywhere")

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SFUMATO_SHARED", ROOT.parent / "shared"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _console() -> None:
    """Make the command line's console before a test sets COLUMNS: it would keep that width."""
    import sfumato.cli.shared  # noqa: F401


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, Any]]:
    """`golden("losses")` gives the arrays of that file; `["params"]` is parsed from JSON."""

    def load(name: str) -> dict[str, Any]:
        for folder in (ROOT / "tests" / "golden", SHARED / "reference" / "golden"):
            path = folder / f"{name}.npz"
            if path.exists():
                with np.load(path, allow_pickle=False) as arrays:
                    content: dict[str, Any] = {key: arrays[key] for key in arrays.files}
                content["params"] = (
                    json.loads(str(content["params"])) if "params" in content else {}
                )
                return content
        pytest.skip(f"golden vectors {name}.npz are not at hand")

    return load


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """`real_data("cifar10-test.npz")` gives the path, or skips the test where it is absent."""

    def find(name: str) -> Path:
        path = SHARED / "data" / name
        if not path.exists():
            pytest.skip(f"real data {name} is not at hand")
        return path

    return find


class Outcome(NamedTuple):
    status: int
    stdout: str
    stderr: str


@pytest.fixture
def sfumato(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Call the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> Outcome:
        from sfumato.cli import main

        monkeypatch.setattr(sys, "argv", ["sfumato", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Outcome(int(ended.value.code or 0), *capsys.readouterr())

    return call


FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-dev-shm-usage", "--window-size=1280,1000"),
)


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory, downloads: Path) -> Iterator[Any]:
    """A Chromium without a window; tests that ask for it are skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    names = ("chromium", "chromium-browser", "chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with its driver is installed")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()
