"""The playground in a real browser: its numbers are the library's, and its controls work.

Skipped where Chromium, its driver or selenium is not installed.
"""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sfumato.engine.config.components import COMPONENTS
from sfumato.features import smooth_features
from sfumato.inputs import blur_label_decay, diffuse, dissipate, noise_label_decay
from sfumato.metrics import calibration_error, calibration_floor
from sfumato.metrics.evaluate import centred_interval
from sfumato.predictions import risk_threshold

pytestmark = pytest.mark.slow
PAGE = Path(__file__).resolve().parents[2] / "docs" / "playground"
Page = Any  # a driver with the playground open
LOSSES = sorted(runpy.run_path(str(PAGE / "export.py"))["single_entry_losses"]())


@pytest.fixture
def page(browser: Page) -> Page:
    browser.get((PAGE / "index.html").as_uri())
    return browser


def numbers(page: Page, script: str, *arguments: Any) -> Tensor:
    return torch.tensor(page.execute_script(f"return {script}", *arguments), dtype=torch.float64)


def move(page: Page, slider: str, value: float) -> None:
    page.execute_script(
        """const input = document.getElementById(arguments[0]);
        input.value = arguments[1];
        input.dispatchEvent(new Event('input'));""",
        slider,
        value,
    )


def fact(page: Page, name: str) -> str:
    text: str = page.find_element("id", name).text
    return text


def test_every_loss_of_single_entries_has_its_equation(page: Page) -> None:
    """A new one needs a line in LOSSES of docs/playground/losses.js."""
    assert sorted(page.execute_script("return Object.keys(LOSSES)")) == LOSSES


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_the_librarys(page: Page, name: str) -> None:
    part = next(part for part in COMPONENTS if part.kind == "loss" and part.name == name)
    defaults = {key: option.default for key, option in part.options.items()}
    others = {"margin": 4.0, "smoothing": 0.2, "gamma": 2.5, "weight": 0.7, "rho": 2.0}
    options = [{}, *({key: value} for key, value in others.items() if is_number(defaults.get(key)))]
    generator = torch.Generator().manual_seed(3)
    for classes, scale in ((3, 1.0), (5, 4.0), (10, 6.0)):
        for chosen in options:
            logits = scale * torch.randn(1, classes, generator=generator, dtype=torch.float64)
            logits.requires_grad_()
            sizes = {"num_classes": classes} if part.takes("num_classes") else {}
            value = part.build(**sizes, **chosen)(logits, torch.tensor([1]))
            (gradient,) = torch.autograd.grad(value, logits)
            found = page.execute_script(
                "return lossOf(arguments[0], arguments[1], 1, arguments[2])",
                name,
                logits[0].tolist(),
                chosen,
            )
            assert found["value"] == pytest.approx(value.item(), rel=1e-9, abs=1e-12)
            assert found["gradient"] == pytest.approx(gradient[0].tolist(), rel=1e-8, abs=1e-11)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def test_mollified_pictures_and_labels(page: Page) -> None:
    clean = numbers(page, "PICTURES[1].channels.map((each) => [...each])").reshape(1, 3, 48, 48)
    for t in (0.0, 0.35, 1.0):
        melted = numbers(
            page, "PICTURES[1].channels.map((c) => [...dissipate(c, arguments[0])])", t
        )
        torch.testing.assert_close(melted.reshape(1, 3, 48, 48), dissipate(clean, t))
        assert page.execute_script(
            "return labelDecay('blur', arguments[0], 2)", t
        ) == pytest.approx(blur_label_decay(t, 2.0).item(), abs=1e-6)
        assert page.execute_script("return labelDecay('noise', arguments[0], 2)", t) == (
            pytest.approx(noise_label_decay(t, 2.0).item(), abs=1e-6)
        )
    noise = numbers(page, "noiseOf(1).map((each) => [...each])").reshape(1, 3, 48, 48)
    drowned = numbers(
        page, "mollified({picture: 1, kind: 'noise', t: 0.4, noise: noiseOf(1)}).map((c) => [...c])"
    )
    middle, spread = clean.mean((2, 3), keepdim=True), clean.std((2, 3), keepdim=True, correction=0)
    expected = middle + spread * diffuse((clean - middle) / spread, 0.4, noise=noise)
    torch.testing.assert_close(drowned.reshape(1, 3, 48, 48), expected)


@pytest.mark.parametrize("kernel", ["1", "2", "3", "5"])
def test_feature_maps(page: Page, kernel: str) -> None:
    settings = {"picture": 2, "filter": 1, "gain": 6, "rate": 0.3, "tau": 4, "seed": 3}
    script = "[...featureMaps(arguments[0]).{}]"
    given = numbers(page, script.format("given"), {**settings, "kernel": kernel})
    found = numbers(page, script.format("smoothed"), {**settings, "kernel": kernel})
    vector = {"1": (1,), "2": (1, 1), "3": (1, 2, 1), "5": (1, 4, 6, 4, 1)}[kernel]
    expected = smooth_features(given.reshape(1, 1, 48, 48), vector, temperature=4.0)
    torch.testing.assert_close(found.reshape(1, 1, 48, 48), expected)


@pytest.mark.parametrize(("sharpness", "risk"), [(1.8, 0.05), (0.6, 0.2), (1.0, 0.005)])
def test_calibration(page: Page, sharpness: float, risk: float) -> None:
    logits = numbers(page, "simulate(1000, 1).map(({ logits }) => logits)")
    target = numbers(page, "simulate(1000, 1).map(({ label }) => label)").long()
    probs = (logits * sharpness / 1.25).softmax(1)
    page.execute_script("window.said = stated(simulate(1000, 1), arguments[0], 1.25)", sharpness)
    measured = page.execute_script("return ece(said)")
    assert measured == pytest.approx(calibration_error(probs, target).item(), rel=1e-9)
    assert page.execute_script("return eceFloor(said)") == pytest.approx(
        calibration_floor(probs).item(), rel=1e-6
    )
    interval = page.execute_script("return eceInterval(said, 8)")
    draws = torch.tensor(interval["draws"], dtype=torch.float64)
    expected = centred_interval(draws, measured, level=0.95, bounds=(0.0, 1.0))
    assert (interval["low"], interval["high"]) == pytest.approx(expected, rel=1e-9)
    accepted = risk_threshold(
        probs.amax(1),
        probs.argmax(1) == target,
        target_risk=risk,
        thresholds=page.execute_script("return GRID"),
    )
    found = page.execute_script("return riskThreshold(said, arguments[0])", risk)
    if accepted.confidence is None:
        assert found is None
    else:
        assert found["threshold"] == pytest.approx(accepted.confidence, rel=1e-12)
        assert (found["kept"], found["errors"]) == (accepted.accepted, accepted.errors)


def test_dropout_smooths_as_the_library_does(page: Page) -> None:
    """The toy network's features with smoothing are those of `smooth_features`, every 4th point."""
    settings = {"rate": 0.3, "tau": 5, "kernel": "2"}
    found = numbers(page, "toyFeatures(0, arguments[0], true, uniformStream(4))", settings)
    masked = numbers(
        page,
        """(() => { const uniform = uniformStream(4); const grey = greyOf(PICTURES[0]);
        return FILTERS.map((each) => [...dropped(filtered(grey, each, 8), 0.3, uniform)]) })()""",
    )
    expected = smooth_features(masked.reshape(1, 4, 48, 48), (1, 1), temperature=5.0)
    torch.testing.assert_close(found.reshape(1, 4, 12, 12), expected[..., ::4, ::4])


def test_page_is_quiet_and_loads_its_own_files_only(page: Page) -> None:
    loaded = page.execute_script("return performance.getEntriesByType('resource').map(r => r.name)")
    assert all(name.startswith((PAGE.as_uri(), "data:")) for name in loaded)
    page.execute_script("document.querySelectorAll('main button').forEach((each) => each.click())")
    assert page.get_log("browser") == []


def test_sliders_move_numbers_and_nothing_else(page: Page) -> None:
    """No control moves what stands around it: heights stay while numbers change."""
    height = "return document.documentElement.scrollHeight"
    before = page.execute_script(height)
    move(page, "margin", 2)
    move(page, "temperature-t", 1)
    assert fact(page, "decay") == "100.0 %"
    move(page, "calibration-temperature", 0.5)
    sharp = float(fact(page, "fact-ece").split()[0])
    page.execute_script("document.getElementById('right-temperature').click()")
    assert float(fact(page, "fact-ece").split()[0]) < sharp / 3
    move(page, "feature-rate", 0)
    move(page, "dropout-rate", 0.6)
    assert page.execute_script(height) == before


def test_keyboard_reaches_and_moves_a_slider(page: Page) -> None:
    keys = pytest.importorskip("selenium.webdriver").Keys
    slider = page.find_element("id", "logit-0")
    before = fact_of_first_class(page)
    slider.send_keys(keys.ARROW_LEFT * 30)
    assert fact_of_first_class(page) < before


def fact_of_first_class(page: Page) -> float:
    return float(page.execute_script("return softmax(logitState.logits.slice(0, 5))[0]"))


@pytest.mark.parametrize("width", [400, 1400])
def test_fits_the_window(page: Page, width: int) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_without_dropout_both_networks_say_the_same(page: Page) -> None:
    settings = {"picture": 1, "rate": 0, "tau": 10, "kernel": "2", "seed": 1}
    for smoothed in (True, False):
        samples = numbers(page, "dropoutSamples(arguments[0], arguments[1])", settings, smoothed)
        assert math.isclose(float(samples.min()), 0.75, abs_tol=1e-9)
        assert math.isclose(float(samples.max()), 0.75, abs_tol=1e-9)
