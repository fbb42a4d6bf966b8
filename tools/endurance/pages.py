"""Pages with hostile names in a real browser: no script of theirs runs.

Names of methods, classes, groups and studies are put together from pieces that break out of text,
attributes, scripts and JSON; every script among them changes the page's title.
"""

from __future__ import annotations

import atexit
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.auditing.files import read_predictions
from sfumato.auditing.judge import audit
from sfumato.auditing.page import write_audit
from sfumato.report import write_report
from tests.conftest import FLAGS
from tools.endurance.files import study_folder
from tools.endurance.runners import scratch
from tools.endurance.trials import ViolationError

TAKEN = "taken"
ACT = "document.title='taken'"
BREAKS = ("", '"', "'", "`", "-->", "]]>", "</script>", "</title>", "</style>", "</textarea>", "\\")
SCRIPTS = (
    f"<script>{ACT}</script>",
    f"<svg onload={ACT}>",
    f'<img src=x onerror="{ACT}">',
    f'<a href="javascript:{ACT}" autofocus onfocus={ACT}>x</a>',
    f"<iframe srcdoc='<script>parent.{ACT}</script>'>",
    f"<details open ontoggle={ACT}>",
    f"${{{ACT}}}",
    f"{{{{constructor.constructor('{ACT}')()}}}}",
    f'" autofocus onfocus="{ACT}" x="',
    f"*/{ACT}//",
    f"<math><mi xlink:href=javascript:{ACT}>x",
    "\u2028\u0000\ud7ff&lt;script&gt;",
)


def _name(dice: random.Random) -> str:
    pieces = [(dice.choice(BREAKS), dice.choice(SCRIPTS)) for _ in range(dice.choice([1, 2]))]
    return "".join(piece for pair in pieces for piece in pair)


def _study_page(folder: Path, dice: random.Random) -> Path:
    for each, content in study_folder().items():
        file = folder / each
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    index = json.loads((folder / "study.json").read_text())
    method = _name(dice)
    index |= {"title": _name(dice), "methods": [method], "study": {"name": _name(dice)}}
    index["runs"][0]["method"] = method
    (folder / "study.json").write_text(json.dumps(index))
    (path,) = folder.rglob("metrics.json")
    metrics = json.loads(path.read_text())
    metrics["test"][_name(dice)] = 0.5
    path.write_text(json.dumps(metrics))
    return write_report(folder)


def _audit_page(folder: Path, dice: random.Random) -> Path:
    numbers = np.random.default_rng(0)
    path = folder / f"{_name(dice).replace('/', '|').replace(chr(0), '')[:100]}.npz"
    # Numbered, since two classes of one name are refused before there is a page.
    names = [f"{_name(dice)}{number}".replace("\0", "") for number in range(4)]
    np.savez(
        path,
        logits=numbers.normal(size=(60, 3)).astype(np.float32),
        labels=numbers.integers(3, size=60),
        classes=np.array(names[:3]),
        group=np.array([names[3], "day"] * 30),
    )
    return write_audit(audit([read_predictions(path)], resamples=5), folder / "audit")


KINDS: dict[str, Callable[[Path, random.Random], Path]] = {
    "study": _study_page,
    "audit": _audit_page,
}


@cache
def _browser() -> Any:
    """A Chromium without a window; None where there is none."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        return None
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in FLAGS:
        options.add_argument(flag)
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    atexit.register(opened.quit)
    return opened


class Pages:
    """Pages in a browser; trial N writes and opens one page. Counts nothing without a Chromium."""

    name = "pages"

    def trial(self, number: int) -> dict[str, int]:
        browser = _browser()
        if browser is None:
            return {}
        dice = random.Random(number)
        kind = list(KINDS)[number % len(KINDS)]
        with scratch() as folder:
            page = KINDS[kind](folder, dice)
            browser.get(page.as_uri())
            # What waits for a touch is touched.
            browser.execute_script(
                "document.querySelectorAll('*').forEach(each => { each.focus?.();"
                " each.dispatchEvent(new Event('toggle')); })"
            )
            elements = browser.execute_script("return document.querySelectorAll('table').length")
            if browser.title == TAKEN:
                raise ViolationError(f"{kind}, trial {number}: a script of a name has run")
            if not elements:
                raise ViolationError(f"{kind}, trial {number}: the page shows no table")
        return {kind: 1}


PAGES = Pages()
