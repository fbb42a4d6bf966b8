"""A picture of a report, as a browser shows it.

Run: python docs/figures/report_picture.py FOLDER/report docs/figures/quickstart.png
Options: --dark, --phone, --at SECTION (results, pareto, corruptions ...), --width and --height.
Needs selenium, Chromium and its driver.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars"),
)
_SHOW = """
document.documentElement.dataset.theme = arguments[0];
document.getElementById("theme").textContent = arguments[0] === "dark" ? "☀ light" : "☾ dark";
if (arguments[1]) document.getElementById(arguments[1]).scrollIntoView();
"""


def take(page: Path, *, width: int, height: int, theme: str, at: str, scale: float) -> bytes:
    """The page as PNG bytes."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or shutil.which("chrome") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        browser = webdriver.Chrome(options=options, service=service)
        try:
            size = {"width": width, "height": height, "deviceScaleFactor": scale}
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride", {**size, "mobile": width < 600}
            )
            browser.get(page.resolve().as_uri())
            browser.execute_script(_SHOW, theme, at)
            return browser.get_screenshot_as_png()
        finally:
            browser.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="folder with the report's index.html")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true")
    parser.add_argument("--at", default="", help="section to scroll to")
    parser.add_argument("--width", type=int, default=1360)
    parser.add_argument("--height", type=int, default=1100)
    wanted = parser.parse_args()
    width, height = (390, 844) if wanted.phone else (wanted.width, wanted.height)
    picture = take(
        wanted.report / "index.html",
        width=width,
        height=height,
        theme="dark" if wanted.dark else "light",
        at=wanted.at,
        scale=2 if wanted.phone else 1,
    )
    Image.open(io.BytesIO(picture)).convert("RGB").save(wanted.out, optimize=True)


if __name__ == "__main__":
    main()
