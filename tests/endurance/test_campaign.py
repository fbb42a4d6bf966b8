"""The campaign itself: it finds a planted fault, makes it small, and repeats by number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sfumato import labels
from tests.endurance import files, kills, load, losses, metrics, page, pages, smoothing, studies
from tests.endurance.__main__ import ATTACKS, read_records, write_records
from tests.endurance.campaign import Attack, BrokenPromiseError, Drawn, Record, run_campaign


@pytest.mark.parametrize(
    "attack",
    [losses.LOSSES, metrics.SCORES, smoothing.MAPS, files.FILES],
    ids=lambda each: each.name,
)
@pytest.mark.filterwarnings("ignore")
def test_a_few_trials(attack: Attack) -> None:
    """What promises nothing, such as a case at a kink, is not counted."""
    promised = [
        attack.check(attack.draw(number)) if isinstance(attack, Drawn) else True
        for number in range(33)
    ]
    assert sum(promised) > 25
    tried = [sum(attack.trial(number).values()) for number in range(33)]
    assert tried == promised


@pytest.mark.filterwarnings("ignore")
def test_a_planted_fault_is_found_and_made_small() -> None:
    number = next(
        n for n in range(1000) if losses.draw(n).loss == "mbls" and losses.draw(n).samples > 3
    )
    wrong = mock.patch.object(labels, "mbls_loss", labels.ecp_loss)
    # In double precision it stands at no kink.
    plain = {"options": {}, "has_weight": False, "ignored": 0.0, "dtype": "float64"}
    case = replace(losses.draw(number), **plain)
    attack = replace(losses.LOSSES, draw=lambda _: case)
    with wrong, pytest.raises(BrokenPromiseError, match=r"LossCase.*samples=1, ") as found:
        attack.trial(0)
    assert "value" in str(found.value)


class Fails:
    """Holds its promise twice, then breaks it until it is mended."""

    name = "fails"
    is_mended = False

    def trial(self, number: int) -> dict[str, int]:
        if number == 2 and not self.is_mended:
            raise BrokenPromiseError("two")
        return {"even" if number % 2 == 0 else "odd": 1}


class Holds:
    name = "holds"

    def trial(self, number: int) -> dict[str, int]:
        return {"twos": 2}


def test_a_failing_field_stops_and_the_others_go_on() -> None:
    records = {"fails": Record(), "holds": Record(next=7)}
    run_campaign({"fails": Fails(), "holds": Holds()}, records, seconds=0.02)
    assert records["fails"].of == {"even": 1, "odd": 1}
    assert records["fails"].failures == [{"number": 2, "example": "two"}]
    holds = records["holds"]
    assert holds.cases == 2 * (holds.next - 7) > 0
    assert holds.failures == []


def test_a_campaign_goes_on_with_the_trial_that_failed(tmp_path: Path) -> None:
    attack, path = Fails(), tmp_path / "endurance.json"
    records = {"fails": Record(commits=["abc"])}
    run_campaign({"fails": attack}, records, seconds=0.02)
    write_records(path, records)
    kept = read_records(path)
    assert kept["fails"].as_json() == records["fails"].as_json()
    attack.is_mended = True
    before = kept["fails"].seconds
    run_campaign({"fails": attack}, kept, seconds=0.02)
    assert kept["fails"].failures == []
    assert kept["fails"].cases == kept["fails"].next > 2
    assert kept["fails"].seconds > before


def test_load_sees_memory_and_handles_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    load.steps_of_a_loss("adafocal", 40)
    grows = count(0, 10 * load.MEGABYTE)
    monkeypatch.setattr(load, "resident", grows.__next__)
    with pytest.raises(BrokenPromiseError, match="mbls, 40: memory grew by 30 MB"):
        load.steps_of_a_loss("mbls", 40)
    monkeypatch.setattr(load, "resident", lambda: 0)
    monkeypatch.setattr(load, "handles", iter((3, 3, 3, 4)).__next__)
    with pytest.raises(BrokenPromiseError, match="mbls, 40: 1 more files are open"):
        load.steps_of_a_loss("mbls", 40)


@pytest.mark.slow
def test_a_page_that_takes_a_name_for_markup_is_found(
    browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(folder: Path, dice: object) -> Path:
        page = folder / "page.html"
        page.write_text(f"<title>fine</title><table></table>{pages.SCRIPTS[0]}")
        return page

    monkeypatch.setattr(pages, "_browser", lambda: browser)
    assert pages.PAGES.trial(0) == {"study": 1}
    monkeypatch.setattr(pages, "KINDS", {"careless": careless})
    with pytest.raises(BrokenPromiseError, match="a script of a name has run"):
        pages.PAGES.trial(0)


@pytest.mark.slow
@pytest.mark.parametrize("scene", sorted(set(kills.SCENES), key=lambda each: each.__name__))
def test_a_disturbed_study_ends_with_the_same_numbers(scene: Callable[..., None]) -> None:
    """Each scene of the campaign once, on the smallest study."""
    number = next(n for n in range(0, 1000, 3) if kills.SCENES[n // 3] is scene)
    kills.KILLS.trial(number)


@pytest.mark.filterwarnings("ignore")
def test_a_study_that_check_should_have_refused_is_made_small() -> None:
    """Some are refused and some run; one that fails loses all that has no part in it."""
    ends = [studies.check(studies.draw(number)) for number in (0, 1, 2, 3)]
    assert {"ran", "refused"} <= set(ends)

    def check(case: studies.StudyCase) -> bool:
        if json.loads(case.recipe)["train"].get("momentum", 0.9) < 0.5:
            raise RuntimeError("no momentum")
        return True

    recipe = {**json.loads(studies.draw(0).recipe), "labels": None}
    recipe["train"] = {**recipe["train"], "momentum": 0.1, "sam": 0.1}
    attack = replace(
        studies.STUDIES,
        draw=lambda _: studies.StudyCase("classify", json.dumps(recipe)),
        check=check,
    )
    with pytest.raises(BrokenPromiseError, match="no momentum") as found:
        attack.trial(0)
    assert '"momentum": 0.1' in str(found.value)
    assert '"sam"' not in str(found.value)
    assert '"labels"' not in str(found.value)


def test_the_page_shows_the_figures_of_the_record() -> None:
    """Write them with: python -m tests.endurance.page"""
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_figures(text, json.loads(page.RESULT.read_text())) == text


def test_every_field_has_a_place_on_the_page() -> None:
    assert set(page.WHAT) == set(ATTACKS)


def test_the_page_names_tests_that_exist() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    names = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert len(names) > 10
    assert [name for name in names if not (page.ROOT / name).exists()] == []
