"""The oracle of the benchmark: each defect is found, and nothing else."""

from __future__ import annotations

from tests.scale.people import Ledger

HOME, AWAY = ("scale0", "dm-p0"), ("scale1", "dm-p1")


def test_one_answer_each_in_its_order_and_place_is_right():
    ledger = Ledger()
    first, second, other = (ledger.say(place, 1.0) for place in (HOME, HOME, AWAY))
    for number, place in ((other, AWAY), (first, HOME), (second, HOME)):
        assert ledger.answer(*place, f"echo: #{number} hello", 2.0) == number
    assert ledger.problems() == []


def test_every_defect_is_found():
    ledger = Ledger()
    lost, doubled, late, early, astray = (ledger.say(HOME, 1.0) for _ in range(5))
    for number, place in ((doubled, HOME), (doubled, HOME), (early, HOME), (late, HOME), (astray, AWAY)):
        ledger.answer(*place, f"echo: #{number}", 2.0)
    ledger.answer(*HOME, "Something went wrong.", 2.0)
    assert ledger.problems() == [
        f"#{doubled} was answered 2 times",
        f"#{late} of {HOME} was answered behind #{early}",
        f"#{astray} of {HOME} was answered in {AWAY}",
        f"{HOME}: 'Something went wrong.' answers nothing",
        f"#{lost} was not answered",
    ]
