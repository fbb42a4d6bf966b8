"""The campaign itself: it finds a planted fault, makes it small, and repeats by number."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from sfumato import labels
from tests.endurance import files, losses, metrics, smoothing
from tests.endurance.campaign import Attack, BrokenPromiseError, Drawn, run_campaign


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
    assert [attack.trial(number) for number in range(33)] == promised


@pytest.mark.filterwarnings("ignore")
def test_a_planted_fault_is_found_and_made_small() -> None:
    number = next(
        n for n in range(1000) if losses.draw(n).loss == "mbls" and losses.draw(n).samples > 3
    )
    wrong = mock.patch.object(labels, "mbls_loss", labels.ecp_loss)
    # In double precision it stands at no kink.
    plain = {"options": {}, "has_weight": False, "ignored": 0.0, "dtype": "float64"}
    case = replace(losses.draw(number), **plain)
    attack = Drawn("losses", lambda _: case, losses.check, losses.smaller)
    with wrong, pytest.raises(BrokenPromiseError, match=r"LossCase.*samples=1, ") as found:
        attack.trial(0)
    assert "value" in str(found.value)


def test_a_failing_field_stops_and_the_others_go_on() -> None:
    class Fails:
        name = "fails"

        def trial(self, number: int) -> int:
            if number == 3:
                raise BrokenPromiseError("three")
            return 1

    class Holds(Fails):
        name = "holds"

        def trial(self, number: int) -> int:
            return 2

    found = run_campaign({"fails": Fails(), "holds": Holds()}, seconds=0.02)
    assert found["fails"]["cases"] == 3
    assert found["fails"]["failures"] == [{"number": 3, "example": "three"}]
    assert found["holds"]["cases"] > 0
    assert found["holds"]["failures"] == []
