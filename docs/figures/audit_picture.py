"""Photograph the page of an audit: `python docs/figures/audit_picture.py FILE`.

Writes audit.png (README, docs/audit.md) beside itself; needs Chromium and its driver. The picture
there was taken of `wideresnet-cifar10.npz` with `--target-risk 0.02`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from selenium import webdriver

from sfumato.auditing.files import read_any
from sfumato.auditing.judge import Target, audit
from sfumato.auditing.page import write_audit


def main() -> None:
    file = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        found = audit([read_any(file)], target=Target(0.02))
        found["models"][0]["source"] = [file.name]
        page = write_audit(found, Path(folder))
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or shutil.which("chrome") or ""
        for flag in ("--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1400,1040"):
            options.add_argument(flag)
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        browser = webdriver.Chrome(options=options, service=service)
        try:
            browser.get(page.as_uri())
            browser.save_screenshot(str(Path(__file__).with_name("audit.png")))
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
