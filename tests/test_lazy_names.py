"""Names that load on first use are there all the same: by attribute, in `dir`, for `import *`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sfumato
import sfumato.inputs
import sfumato.metrics

SOURCE = Path(sfumato.__file__).parent


def _fresh(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_modules_load_when_they_are_named() -> None:
    code = "import sys, sfumato; print('torch' in sys.modules, sfumato.labels.ACLSLoss.__name__)"
    assert _fresh(code) == "False ACLSLoss"


def test_all_public_modules_are_listed() -> None:
    # The one public name of `auditing` is `sfumato.audit`.
    hidden = {"cli", "_core", "auditing"}
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")} - hidden
    assert {*folders, "functional"} <= set(dir(sfumato))


def test_evaluate_is_a_function_that_loads_when_it_is_named() -> None:
    code = "import sys, sfumato; print('evaluate' in dir(sfumato), 'torch' in sys.modules)"
    assert _fresh(code) == "True False"
    assert sfumato.evaluate.__module__ == "sfumato.trained"


def test_unknown_name_is_an_attribute_error() -> None:
    for module in (sfumato, sfumato.inputs, sfumato.metrics):
        with pytest.raises(AttributeError, match="has no attribute 'lables'"):
            _ = module.lables


def test_lazy_classes_are_listed_before_they_load() -> None:
    code = (
        "from sfumato import inputs, metrics; "
        "print('CalibrationError' in dir(metrics), 'MollifySample' in dir(inputs)); "
        "print(inputs.MollifySample.__name__, metrics.CalibrationError.__name__)"
    )
    assert _fresh(code) == "True True\nMollifySample CalibrationError"
