"""The report in a real browser: clicked, sorted, filtered, toggled, and checked against the files.

Skipped where Chromium, its driver or selenium is not installed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from sfumato.report import write_report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
Select = pytest.importorskip("selenium.webdriver.support.ui").Select
Page = Any  # a driver with the report open


@pytest.fixture(scope="module")
def address(large_study: Path) -> str:
    return write_report(large_study).as_uri()


@pytest.fixture
def page(browser: Page, address: str) -> Page:
    browser.get(address)
    return browser


def means(folder: Path, split: str, key: str) -> dict[str, float]:
    """Of each method over its seeds, from the result files alone."""
    values: dict[str, list[float]] = {}
    for entry in json.loads((folder / "study.json").read_text())["runs"]:
        metrics = json.loads((folder / "runs" / entry["run"] / "metrics.json").read_text())
        values.setdefault(entry["method"], []).append(metrics[split][key])
    return {method: fmean(found) for method, found in values.items()}


def shown(page: Page, column: str) -> dict[str, str]:
    """Method -> mean in the results table, in the order of the rows."""
    rows = page.execute_script(
        """return [...document.querySelectorAll('#results tbody tr')].map(row => [
            row.querySelector('th').childNodes[1].textContent.trim(),
            row.querySelector(`td[data-id="${arguments[0]}"] .mean`)?.textContent])""",
        column,
    )
    return dict(rows)


def click(page: Page, selector: str) -> None:
    page.find_element("css selector", selector).click()


def head(page: Page, column: str) -> Any:
    return page.find_element("css selector", f"#results th[data-id='{column}']")


def sort_by(page: Page, column: str) -> str | None:
    head(page, column).find_element("tag name", "button").click()
    order: str | None = head(page, column).get_attribute("aria-sort")
    return order


def test_numbers_on_the_page_are_those_of_the_files(page: Page, large_study: Path) -> None:
    for split, key, scale, digits in (
        ("test", "accuracy", 100, 1),
        ("test", "nll", 1, 3),
        ("corrupted", "error", 100, 1),
    ):
        expected = means(large_study, split, key)
        found = shown(page, f"{split}.{key}")
        assert list(found) == list(expected)
        assert found == {name: f"{scale * v:.{digits}f}" for name, v in expected.items()}


def test_page_is_quiet_fast_and_loads_nothing(page: Page) -> None:
    assert page.get_log("browser") == []
    loaded = page.execute_script("return performance.getEntriesByType('resource').map(r => r.name)")
    assert [name for name in loaded if not name.startswith(("data:", "blob:"))] == []
    drawn = page.execute_script(
        "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    )
    assert drawn < 10_000  # a second here; the limit only catches a page that hangs


def test_sorting_by_mouse_and_keyboard(page: Page, large_study: Path) -> None:
    errors = means(large_study, "test", "ece")
    best_first = sorted(errors, key=lambda name: errors[name])
    assert sort_by(page, "test.ece") == "ascending"
    assert list(shown(page, "test.ece")) == best_first
    page.switch_to.active_element.send_keys(webdriver.Keys.ENTER)
    assert head(page, "test.ece").get_attribute("aria-sort") == "descending"
    assert list(shown(page, "test.ece")) == best_first[::-1]
    page.switch_to.active_element.send_keys(webdriver.Keys.ENTER)
    assert list(shown(page, "test.ece")) == list(errors)
    accuracy = means(large_study, "test", "accuracy")
    assert sort_by(page, "test.accuracy") == "descending"
    assert next(iter(shown(page, "test.accuracy"))) == max(accuracy, key=lambda n: accuracy[n])


def test_filter_acts_on_table_and_figures(page: Page) -> None:
    page.find_element("id", "filter").send_keys("method 1")
    expected = ["method 1", *(f"method {number}" for number in range(10, 18))]
    assert list(shown(page, "test.nll")) == expected
    assert page.find_element("id", "count").text == "9 of 20 methods"
    figures = page.find_elements("css selector", "#reliability figure")
    assert len(figures) == 9
    page.find_element("id", "filter").send_keys("nonsense")
    assert shown(page, "test.nll") == {}
    assert "No method that passes" in page.find_element("id", "reliability").text


def test_front_and_every_metric(page: Page) -> None:
    usual = len(page.find_elements("css selector", "#results thead th"))
    assert not page.find_elements("css selector", "th[data-id='test.brier']")
    click(page, "#all")
    assert len(page.find_elements("css selector", "#results thead th")) > usual
    assert page.find_elements("css selector", "th[data-id='test.brier']")
    click(page, "#front")
    marked = page.execute_script("return document.querySelectorAll('#results tbody .front').length")
    assert 0 < marked == len(shown(page, "test.nll")) < 20


def test_verdicts_have_symbol_and_word(page: Page, large_study: Path) -> None:
    accuracy = means(large_study, "test", "accuracy")
    name = max(accuracy, key=lambda n: accuracy[n])
    row = list(accuracy).index(name) + 1
    cell = page.find_element(
        "css selector", f"#results tbody tr:nth-child({row}) td[data-id='test.accuracy']"
    )
    assert cell.get_attribute("class") == "better"
    assert "✓ better" in " ".join(cell.get_attribute("textContent").split())
    Select(page.find_element("css selector", "#results select")).select_by_value("differences")
    gain = accuracy[name] - accuracy["cross entropy"]
    assert shown(page, "test.accuracy")[name] == f"+{100 * gain:.1f}"
    assert shown(page, "test.accuracy")["cross entropy"] == "baseline"


def test_error_of_each_column_is_shown(page: Page) -> None:
    last = page.find_elements("css selector", "#results tfoot td")
    assert "≤ 5 % over 19" in [cell.text for cell in last]
    body = page.find_elements("css selector", "#results tbody tr:first-child > *")
    assert len(last) + 1 == len(body)


def test_dark_and_light(page: Page) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = page.execute_script(colour)
    click(page, "#theme")
    after = page.execute_script(colour)
    assert {before, after} == {"rgb(255, 255, 255)", "rgb(20, 23, 29)"}
    click(page, "#theme")
    assert page.execute_script(colour) == before


def test_hostile_name_stays_text(page: Page, hostile: str) -> None:
    assert hostile in shown(page, "test.nll")
    assert page.title == "study"
    assert not page.find_elements("css selector", "img[src='x']")
    labels = page.find_element("css selector", "#samples figcaption").get_attribute("textContent")
    assert hostile in labels
    image = page.find_element("css selector", "#samples img")
    assert image.get_attribute("src").startswith("data:image/png;base64,iVBOR")
    text = page.find_element("css selector", "#samples figure p").get_attribute("textContent")
    assert text == f"words of {hostile}"


def test_hover_tells_a_bin(page: Page) -> None:
    shape = page.find_element("css selector", "#reliability .bin:last-of-type")
    page.execute_script(
        "arguments[0].dispatchEvent(new PointerEvent('pointerenter', {clientX: 9, clientY: 9}))",
        shape,
    )
    assert page.find_element("css selector", ".tip").text.splitlines() == [
        *("confidence 90.0 %", "accuracy 80.0 %", "150 of 200 predictions")
    ]


def test_heat_map_follows_the_metric(page: Page, large_study: Path) -> None:
    first = json.loads((large_study / "study.json").read_text())["runs"][0]["method"]
    rows = []
    for entry in json.loads((large_study / "study.json").read_text())["runs"]:
        if entry["method"] == first:
            run = large_study / "runs" / entry["run"] / "metrics.json"
            rows.append(fmean(json.loads(run.read_text())["corrupted"]["cells"]["nll"][0]))
    Select(page.find_element("css selector", "#corruptions select")).select_by_value("nll")
    cell = page.find_element("css selector", "#corruptions tbody td")
    assert cell.text == f"{fmean(rows):.2f}"
    assert "NLL by severity" in page.find_element("id", "corruptions").text


def test_readable_on_a_phone(page: Page) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.refresh()
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_downloads_are_the_files_beside_the_page(
    page: Page, downloads: Path, large_study: Path
) -> None:
    click(page, "#all")
    click(page, "button[data-file='results.csv']")
    assert _arrived(downloads / "results.csv") == (large_study / "report/results.csv").read_bytes()
    buttons = page.find_elements("css selector", "#pareto figure:first-child button")
    for button in buttons:
        button.click()
    assert b"<svg" in _arrived(downloads / "accuracy-and-ece.svg")[:200]
    assert _arrived(downloads / "accuracy-and-ece.png").startswith(b"\x89PNG")


def test_chosen_columns_decide_the_downloads(
    page: Page, downloads: Path, large_study: Path
) -> None:
    """By default those that decide; each cell is that of the file beside the page."""
    click(page, "button[data-file='results.tex']")
    found = _arrived(downloads / "results.tex").decode().splitlines()
    whole = (large_study / "report/results.tex").read_text(encoding="utf-8").splitlines()
    heads = [lines[2].removesuffix(r" \\").split(" & ") for lines in (found, whole)]
    assert [head.split()[0] for head in heads[0]] == [
        *("method", "seeds", "accuracy", "NLL", "ECE", "corrupted")
    ]
    assert found[0] == r"\begin{tabular}{lrrrrr}"
    assert len(found) == len(whole)
    places = [heads[1].index(head) for head in heads[0]]
    for ours, theirs in zip(found[4:-2], whole[4:-2], strict=True):
        cells = theirs.removesuffix(r" \\").split(" & ")
        assert ours == " & ".join(cells[at] for at in places) + r" \\"
    click(page, "#columns summary")
    click(page, "#columns label:first-child input")  # accuracy
    click(page, "button[data-file='results.md']")
    head = _arrived(downloads / "results.md").decode().splitlines()[0]
    assert head.startswith("| method | seeds | NLL")
    assert not page.find_elements("css selector", "th[data-id='test.accuracy']")


def test_unfinished_seeds_are_one_footnote(browser: Page, make_study: Callable[..., Path]) -> None:
    folder = make_study({"plain": 0.0, "smooth": 0.02, "late": 0.0}, seeds=(0, 1))
    for number in (1, 4, 5):
        (folder / "runs" / f"{number:012d}" / "metrics.json").unlink()
    browser.get(write_report(folder).as_uri())
    seeds = browser.find_elements("css selector", "#results tbody tr > td:nth-child(2)")
    assert [each.text for each in seeds] == ["2", "0*", "1*"]
    notes = [each.text for each in browser.find_elements("css selector", "#results > .note")]
    assert [note for note in notes if note.startswith("*")] == [
        "* smooth: 2 unfinished; late: 1 unfinished."
    ]


def test_first_picture_has_the_deciding_metrics(page: Page) -> None:
    forests = page.find_elements("css selector", "#recommendation .forests figcaption")
    assert [each.text.split()[0] for each in forests] == ["accuracy", "NLL", "ECE", "corrupted"]
    rows = page.find_elements("css selector", "#recommendation .forests figure:first-child .forest")
    assert len(rows) == 19
    assert page.find_elements("css selector", "#recommendation .diagrams figure")
    box = "const box = document.querySelector('#results .wide');"
    assert page.execute_script(f"{box} return box.scrollWidth <= box.clientWidth")


def _arrived(path: Path) -> bytes:
    for _ in range(1200):
        if path.exists() and path.stat().st_size:
            return path.read_bytes()
        time.sleep(0.1)
    raise AssertionError(f"{path.name} was not downloaded")
