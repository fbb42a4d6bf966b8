"""The page of an audit in a real browser: the threshold is moved by keyboard, mouse and touch.

Skipped where Chromium, its driver or selenium is not installed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import sfumato
from sfumato._core.statistics import clopper_pearson_upper
from sfumato.auditing.files import predictions_of_arrays
from sfumato.auditing.judge import Target, audit
from sfumato.auditing.page import write_audit

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
Page = Any  # a driver with the audit open
COUNT = 1500


def _logits() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(COUNT, 4, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return 2 * logits, labels


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    logits, labels = _logits()
    given = {"logits": logits, "target": labels, "time": torch.arange(COUNT)}
    file = predictions_of_arrays("model", given)
    found = audit([file], resamples=10, target=Target(0.2))
    found["models"][0]["source"] = ["my file.npz"]
    return write_audit(found, tmp_path_factory.mktemp("audit")).as_uri()


@pytest.fixture
def page(browser: Page, address: str) -> Page:
    browser.get(address)
    return browser


def _threshold(page: Page) -> float:
    return float(page.find_element("css selector", "output").text)


def _said(page: Page) -> list[float]:
    """Kept, wrong, error in percent and its bound."""
    text = page.find_element("css selector", ".readout").text.replace(",", "")
    form = r"(\d+) of \d+ kept .*?(\d+) of them wrong: ([\d.]+) % at most ([\d.]+) %"
    found = re.search(form, text)
    assert found, text
    return [float(part) for part in found.groups()]


def test_the_slider_says_what_a_threshold_keeps(page: Page) -> None:
    logits, labels = _logits()
    confidence, predicted = logits.double().softmax(1).max(1)
    slider = page.find_element("css selector", "input[type=range]")
    for keys in ("", webdriver.Keys.ARROW_LEFT, webdriver.Keys.PAGE_UP, webdriver.Keys.HOME):
        slider.send_keys(keys)
        kept, wrong, risk, bound = _said(page)
        chosen = confidence >= _threshold(page) - 1e-3  # as written, rounded
        assert kept == pytest.approx(int(chosen.sum()), abs=0.02 * COUNT)
        assert risk == pytest.approx(100 * wrong / kept, abs=0.006)
        exact = clopper_pearson_upper(torch.tensor(wrong), torch.tensor(kept), 0.05)
        assert bound == pytest.approx(100 * float(exact), abs=0.006)
    assert kept == COUNT  # the lowest threshold keeps all
    assert wrong == int((predicted != labels).sum())


def test_the_slider_begins_at_the_promised_threshold(page: Page) -> None:
    lead = page.find_element("css selector", ".lead").text
    promised = re.search(r"from a confidence of ([\d.]+) on", lead)
    assert promised, lead
    assert _threshold(page) == pytest.approx(float(promised[1]), abs=0.002)
    accepted = re.search(r"1,000 predictions (\d+) are accepted", lead)
    assert accepted, lead
    assert 1000 * _said(page)[0] / COUNT == pytest.approx(float(accepted[1]), abs=0.5)
    assert "target 20.0 %" in page.find_element("css selector", "[data-figure=risk] svg").text


def test_the_line_follows_the_pointer(page: Page) -> None:
    picture = page.find_element("css selector", "[data-figure=risk] svg")
    actions = webdriver.ActionChains(page)
    width = picture.size["width"]
    covered = []
    for share in (-0.2, 0.25):
        actions.move_to_element_with_offset(picture, int(share * width), 0).click().perform()
        covered.append(_said(page)[0])
    assert covered[0] < covered[1]


def test_first_screen_and_what_is_below(page: Page, downloads: Path) -> None:
    assert page.get_log("browser") == []
    assert page.find_element("tag name", "h1").text.startswith("model is overconfident")
    commands = [each.text for each in page.find_elements("css selector", ".step code")]
    assert commands == ["sfumato calibrate VALIDATION_FILE --out calibrator.json"]
    bars = page.find_elements("css selector", "[data-figure=reliability] .chance")
    assert len(bars) == len(page.find_elements("css selector", "[data-figure=reliability] .bin"))
    titles = [each.text for each in page.find_elements("css selector", "h2")]
    for part in ("by predicted class", "by confidence", "over time", "sets", "mistakes"):
        assert any(part in title for title in titles), part
    assert page.find_elements("css selector", "[data-figure=time] svg")
    assert page.find_elements("css selector", "[data-figure=sets] svg rect")
    assert page.find_elements("css selector", "[data-figure=coverage] svg circle")
    files = [b.text for b in page.find_elements("css selector", "#downloads button")]
    assert files == ["audit.json", "audit.md", "audit.csv"]


def test_a_laptop_shows_verdict_figures_and_command_at_once(page: Page) -> None:
    size = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        code = page.find_element("css selector", ".step code").rect
        assert code["y"] + code["height"] <= 800
        for figure in ("reliability", "risk"):
            picture = page.find_element("css selector", f"[data-figure={figure}] svg").rect
            assert picture["height"] >= 220
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_is_read_by_keyboard_and_on_a_phone(page: Page) -> None:
    label = page.find_element("css selector", "label[for=threshold-0]")
    assert label.text.startswith("Accept from a confidence of")
    assert page.find_element("css selector", ".readout").get_attribute("role") == "status"
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.refresh()
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
        page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
        before = _threshold(page)
        slider = page.find_element("css selector", "input[type=range]")
        page.execute_script("arguments[0].scrollIntoView({block: 'center'})", slider)
        box = page.execute_script("return arguments[0].getBoundingClientRect().toJSON()", slider)
        point = {"x": box["x"] + 0.9 * box["width"], "y": box["y"] + box["height"] / 2}
        for kind, points in (("touchStart", [point]), ("touchEnd", [])):
            event = {"type": kind, "touchPoints": points}
            page.execute_cdp_cmd("Input.dispatchTouchEvent", event)
        assert _threshold(page) != before
    finally:
        page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_notebook_shows_it(browser: Page, tmp_path: Path) -> None:
    logits, labels = _logits()
    frame = sfumato.audit(logits=logits, target=labels, resamples=0)._repr_html_()
    (tmp_path / "cell.html").write_text(f"<!doctype html><meta charset=utf-8>{frame}")
    browser.get((tmp_path / "cell.html").as_uri())
    browser.switch_to.frame(0)
    assert browser.find_elements("css selector", "input[type=range]")
    browser.switch_to.default_content()
