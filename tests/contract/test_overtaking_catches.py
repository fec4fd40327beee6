"""The negative controls of `queue_overtaking.py`: stores with one defect each, and the test that sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.store.sql.turn_store import TurnStore
from tests.clock import ManualClock
from tests.contract.queue_contract import QueueContract
from tests.doubles.broken_queue import opened_with


class CountsWaiting(TurnStore):
    """Takes a wait for a failure of somebody else."""

    async def postpone(self, turn, why, *, delay_s):
        await super().retry(turn, why, delay_s=delay_s, deferral=True)


class LetsAllPast(TurnStore):
    """Answers younger questions while the head waits."""

    async def claim(self, session, *, merge=1, out_of_band=False):
        spoil = "UPDATE inbox SET kind = 'alone' WHERE state = 'ready' AND next_at IS NULL"
        await self._writer.call("spoil", lambda db: db.execute(spoil) and None)
        return await super().claim(session, merge=merge, out_of_band=out_of_band)


class HoldsCommands(TurnStore):
    """Has commands wait like everything else."""

    async def claim(self, session, *, merge=1, out_of_band=False):
        spoil = "UPDATE inbox SET kind = 'message' WHERE kind = 'alone'"
        await self._writer.call("spoil", lambda db: db.execute(spoil) and None)
        return await super().claim(session, merge=merge, out_of_band=out_of_band)


class PostponesForOthers(TurnStore):
    """Lets an older claim postpone."""

    async def postpone(self, turn, why, *, delay_s):
        (fence,) = await self._reader.call(
            "spoil", lambda db: db.execute("SELECT MAX(fence) FROM inbox").fetchone()
        )
        await super().postpone(replace(turn, fence=fence), why, delay_s=delay_s)


class HoldsEverybody(TurnStore):
    """Has what is behind a question wait for it."""

    async def claim(self, session, *, merge=1, out_of_band=False):
        query = "SELECT 1 FROM inbox WHERE state = 'ready' AND next_at > ?"
        now = self._now()
        if await self._reader.call("spoil", lambda db: db.execute(query, (now,)).fetchone()):
            return None
        return await super().claim(session, merge=merge, out_of_band=out_of_band)


class GoesPastAll(TurnStore):
    """Goes past whatever waits, once a question does."""

    async def claim(self, session, *, merge=1, out_of_band=False):
        turn = await super().claim(session, merge=merge, out_of_band=out_of_band)
        if turn is None:
            hide = "UPDATE inbox SET session = session || 'x' WHERE state = 'ready' AND next_at IS NOT NULL"
            await self._writer.call("spoil", lambda db: db.execute(hide) and None)
            turn = await super().claim(session, merge=merge, out_of_band=out_of_band)
        return turn


BROKEN = [
    (HoldsEverybody, "test_a_question_is_gone_past_and_keeps_its_turn"),
    (GoesPastAll, "test_nothing_goes_past_a_head_that_waits_for_something_else"),
    (CountsWaiting, "test_a_postponed_turn_comes_back_unharmed"),
    (LetsAllPast, "test_younger_questions_never_overtake"),
    (HoldsCommands, "test_what_needs_no_model_overtakes_in_order"),
    (PostponesForOthers, "test_the_old_claim_of_a_postponed_turn_is_void"),
]


@pytest.mark.parametrize(("broken", "test"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
async def test_the_contract_sees_a_store_that_waits_wrongly(broken, test, tmp_path):
    """The named test of the contract fails on a store with this defect."""
    clock = ManualClock()
    async with await opened_with(broken, tmp_path / "gateway.db", clock) as store:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            await getattr(QueueContract(), test)(store, clock)
