"""What a heartbeat costs when nothing is to be done, through the whole gateway, with time that runs by itself."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from tests.clock import EPOCH
from tests.proactive_world import ANN, Weeks, house

EMPTY = "# Heartbeat\n\n<!-- - [ ] call mum -->\n- [x] water the plants\n- [ ]\n"


@pytest.mark.parametrize("checklist", [None, "", EMPTY], ids=["missing", "blank", "ticked"])
async def test_a_week_with_nothing_to_do_costs_nothing(tmp_path, checklist):
    """336 ticks, no model call, no token, no message, and one line in the ledger."""
    week = Weeks(7)
    async with house(
        tmp_path,
        checklist=checklist,
        heartbeat={"interval_minutes": 30.0},
        clock=week.clock,
        sleep=week.sleep,
    ) as home:
        await home.asked(ANN, "hello")
        asked = len(home.model.asked)
        await week.pass_by()
        [entry] = await home.plans.ledger(name="heartbeat")
        usage = await home.built.store.usage.rows(days=30)
    assert len(home.model.asked) == asked == 1
    assert (entry.outcome, entry.ticks) == ("skipped", 336)
    assert {row.purpose for row in usage} == {"chat"}
    assert home.alerts() == []


async def test_the_same_days_with_an_item_are_counted(tmp_path):
    """
    The control: with one open item the same two days are 96 calls, so the count above can see them; and what was
    not worth saying is not kept, so the last prompt is as short as the first.
    """
    days = Weeks(2)
    async with house(
        tmp_path, "HEARTBEAT_OK", heartbeat={"interval_minutes": 30.0}, clock=days.clock, sleep=days.sleep
    ) as home:
        await home.asked(ANN, "hello")
        await days.pass_by()
        await home.until(lambda: home.model.ticks == 96, within_s=60)
        await home.until(lambda: _ended(home))
        entries = await home.plans.ledger(name="heartbeat", limit=1000)
    assert [entry.outcome for entry in entries] == ["silent"] * 96
    assert home.alerts() == []
    ticks = [messages for messages in home.model.asked if "check-in" in messages[-1].content]
    assert {len(messages) for messages in ticks} == {2}
    assert not list((tmp_path / "sessions").glob("heartbeat*.jsonl"))


@pytest.mark.parametrize("later", ["HEARTBEAT_OK", "Buy milk, please."], ids=["silent", "said again"])
async def test_an_item_that_was_told_costs_a_call_a_day(tmp_path, later):
    """
    336 check-ins of a week with one open item: seven calls, whatever the model says of it later. A changed list
    is asked about at once, and so is one of which an item falls due.
    """
    week, homes = Weeks(7), []

    async def sleep(seconds: float) -> None:
        for one in homes:
            await one.until(partial(_ended, one))
        await week.sleep(seconds)

    setting = {"interval_minutes": 30.0}
    async with house(
        tmp_path, "Buy milk, please.", later, heartbeat=setting, clock=week.clock, sleep=sleep
    ) as home:
        await home.asked(ANN, "hello")
        homes.append(home)
        await week.pass_by()
        await home.until(lambda: _ended(home))
        asked = home.model.ticks
        home.checklist.write_text("- [ ] buy milk\n- [ ] call mum @2026-01-08 12:00\n")
        heartbeat = home.built.proactive.heartbeat
        found = [
            await heartbeat.check_work(heartbeat._inbox, EPOCH + timedelta(days=7, hours=n)) for n in (1, 13)
        ]
        ledger = await home.ledger()
    assert asked == 7
    assert all(one.text for one in found)
    assert ("skipped", "nothing to do: HEARTBEAT.md is as it was when I wrote about it") in ledger


async def _ended(home) -> bool:
    counts = (await home.built.store.maintenance.stats()).inbox
    return counts["ready"] == counts["running"] == 0
