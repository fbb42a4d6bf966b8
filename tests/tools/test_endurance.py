"""The stress test itself: it finds a planted fault, makes it small, and repeats by number."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sfumato import labels
from tools.endurance import (
    __main__ as endurance,
    files,
    kills,
    load,
    losses,
    metrics,
    pages,
    smoothing,
    strangers,
    studies,
)
from tools.endurance.__main__ import (
    PAGE,
    RESULT,
    ROOT,
    SURFACES,
    WHAT,
    read_records,
    with_figures,
    write_records,
)
from tools.endurance.trials import Drawn, Record, Surface, ViolationError, run_trials


@pytest.mark.parametrize(
    "surface",
    [losses.LOSSES, metrics.SCORES, smoothing.MAPS, files.FILES],
    ids=lambda each: each.name,
)
@pytest.mark.filterwarnings("ignore")
def test_a_few_trials(surface: Surface) -> None:
    """What guarantees nothing, such as a case at a kink, is not counted."""
    guaranteed = [
        surface.check(surface.draw(number)) if isinstance(surface, Drawn) else True
        for number in range(33)
    ]
    assert sum(guaranteed) > 25
    tried = [sum(surface.trial(number).values()) for number in range(33)]
    assert tried == guaranteed


@pytest.mark.filterwarnings("ignore")
def test_a_planted_fault_is_found_and_made_small() -> None:
    number = next(
        n for n in range(1000) if losses.draw(n).loss == "mbls" and losses.draw(n).samples > 3
    )
    wrong = mock.patch.object(labels, "mbls_loss", labels.ecp_loss)
    # In double precision it stands at no kink.
    plain = {"options": {}, "has_weight": False, "ignored": 0.0, "dtype": "float64"}
    case = replace(losses.draw(number), **plain)
    surface = replace(losses.LOSSES, draw=lambda _: case)
    with wrong, pytest.raises(ViolationError, match=r"LossCase.*samples=1, ") as found:
        surface.trial(0)
    assert "value" in str(found.value)


QUICK = [number for number, name in enumerate(strangers.KINDS) if "bombs" not in name]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", QUICK, ids=[list(strangers.KINDS)[each] for each in QUICK])
def test_content_of_strangers(number: int) -> None:
    for each in range(number, 4 * len(strangers.KINDS), len(strangers.KINDS)):
        assert sum(strangers.STRANGERS.trial(each).values()) == 1


def _imports(folder: Path, dice: object) -> None:
    importlib.util.find_spec(strangers.plants.PLANTED)


def _connects(folder: Path, dice: object) -> None:
    socket.create_connection(("localhost", 9))


def _waits(folder: Path, dice: object) -> None:
    time.sleep(5)


def _grows(folder: Path, dice: object) -> None:
    b"x" * (strangers.MOST_MEMORY * 1024 + 2**24)


def _leaks(folder: Path, dice: object) -> None:
    (folder / "page.html").write_text((folder.parent / "canary").read_text())


def _writes(folder: Path, dice: object) -> None:
    (folder.parent / "written").touch()


@pytest.mark.parametrize("fault", [_imports, _connects, _waits, _grows, _leaks, _writes])
def test_violations_by_strangers_are_found(
    fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "KINDS", {"planted": fault})
    monkeypatch.setattr(strangers, "LONGEST", 1)
    said = "imported|connects|not finished|grew by|shows a file|touched outside"
    with pytest.raises(ViolationError, match=said):
        strangers.STRANGERS.trial(0)


class Fails:
    """Holds twice, then fails until it is fixed."""

    name = "fails"
    is_fixed = False

    def trial(self, number: int) -> dict[str, int]:
        if number == 2 and not self.is_fixed:
            raise ViolationError("two")
        return {"even" if number % 2 == 0 else "odd": 1}


class Holds:
    name = "holds"

    def trial(self, number: int) -> dict[str, int]:
        return {"twos": 2}


def test_a_failing_surface_stops_and_the_others_go_on() -> None:
    records = {"fails": Record(), "holds": Record(next=7)}
    run_trials({"fails": Fails(), "holds": Holds()}, records, seconds=0.02)
    assert records["fails"].of == {"even": 1, "odd": 1}
    assert records["fails"].failures == [{"number": 2, "example": "two"}]
    holds = records["holds"]
    assert holds.cases == 2 * (holds.next - 7) > 0
    assert holds.failures == []


def test_a_record_goes_on_with_the_trial_that_failed(tmp_path: Path) -> None:
    surface, path = Fails(), tmp_path / "endurance.json"
    records = {"fails": Record(commits=["abc"])}
    run_trials({"fails": surface}, records, seconds=0.02)
    write_records(path, records)
    kept = read_records(path)
    assert kept["fails"].as_json() == records["fails"].as_json()
    surface.is_fixed = True
    before = kept["fails"].seconds
    run_trials({"fails": surface}, kept, seconds=0.02)
    assert kept["fails"].failures == []
    assert kept["fails"].cases == kept["fails"].next > 2
    assert kept["fails"].seconds > before


def test_only_leaves_the_other_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "endurance.json"
    write_records(path, {"fails": Record(of=Counter(odd=5)), "holds": Record(of=Counter(twos=7))})
    monkeypatch.setattr(endurance, "SURFACES", {"fails": Fails(), "holds": Holds()})
    options = ["--only", "fails", "--minutes", "0.0003", "--out", str(path)]
    monkeypatch.setattr("sys.argv", ["endurance", *options])
    assert endurance.main() == 1
    found = read_records(path)
    assert found["holds"].of == {"twos": 7}
    assert (found["fails"].cases, len(found["fails"].failures)) == (2, 1)


def test_load_sees_memory_and_handles_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    load.steps_of_a_loss("adafocal", 40)
    grows = count(0, 10 * load.MEGABYTE)
    monkeypatch.setattr(load, "resident", grows.__next__)
    with pytest.raises(ViolationError, match="mbls, 40: memory grew by 30 MB"):
        load.steps_of_a_loss("mbls", 40)
    monkeypatch.setattr(load, "resident", lambda: 0)
    monkeypatch.setattr(load, "handles", iter((3, 3, 3, 4)).__next__)
    with pytest.raises(ViolationError, match="mbls, 40: 1 more files are open"):
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
    with pytest.raises(ViolationError, match="a script of a name has run"):
        pages.PAGES.trial(0)


@pytest.mark.slow
@pytest.mark.parametrize("scene", sorted(set(kills.SCENES), key=lambda each: each.__name__))
def test_a_disturbed_study_ends_with_the_same_numbers(scene: Callable[..., None]) -> None:
    """Each scene once, on the smallest study."""
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
    surface = replace(
        studies.STUDIES,
        draw=lambda _: studies.StudyCase("classify", json.dumps(recipe)),
        check=check,
    )
    with pytest.raises(ViolationError, match="no momentum") as found:
        surface.trial(0)
    assert '"momentum": 0.1' in str(found.value)
    assert '"sam"' not in str(found.value)
    assert '"labels"' not in str(found.value)


def test_the_page_shows_the_figures_of_the_record() -> None:
    """Write them with: python -m tools.endurance --minutes 0 --append"""
    text = PAGE.read_text(encoding="utf-8")
    assert with_figures(text, json.loads(RESULT.read_text())) == text


def test_every_surface_has_a_place_on_the_page() -> None:
    assert set(WHAT) == set(SURFACES)


def test_the_page_names_tests_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert len(names) > 10
    assert [name for name in names if not (ROOT / name).exists()] == []
