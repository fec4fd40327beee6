"""The promises of `Queue` about a head that waits: who overtakes it, and who never does."""

from __future__ import annotations

import pytest

from gateway.queue.errors import LostTurn
from gateway.queue.ports import Completion, Queue
from tests.clock import ManualClock
from tests.contract.work_store_accept import natives
from tests.contract.work_store_data import OTHER, ROOM, accept, claim, step

__all__ = ["OvertakingContract"]


class OvertakingContract:
    """From ``postpone`` to the turn's next start."""

    async def test_a_postponed_turn_comes_back_unharmed(self, store: Queue, clock: ManualClock):
        """The same turn with its rows and steps, when its time has come; neither a start nor a deferral counts."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await store.turns.step_finished(turn, step(0, result={"done": True}))
        for _ in range(5):
            await store.turns.postpone(turn, "the budget is spent", delay_s=60)
            clock.advance(59)
            assert await store.turns.claim(ROOM, merge=2) is None
            clock.advance(1)
            turn = await claim(store, merge=2)
        assert (natives(turn), turn.attempts, turn.deferrals) == (["a", "b"], 1, 0)
        assert turn.first_deferred_s == 0.0
        assert await store.turns.steps(turn) == [step(0, result={"done": True})]

    async def test_younger_questions_never_overtake(self, store: Queue, clock: ManualClock):
        """They wait behind a postponed head and keep their order; other sessions do not wait."""
        await accept(store, "a")
        turn = await claim(store)
        await store.turns.postpone(turn, "later", delay_s=60)
        await accept(store, "b", "c")
        await accept(store, "x", session=OTHER)
        assert await store.turns.claim(ROOM, merge=3) is None
        assert await store.turns.claim(ROOM, out_of_band=True) is None
        assert await store.turns.due_in(ROOM) == pytest.approx(60)
        assert natives(await claim(store, OTHER)) == ["x"]
        clock.advance(60)
        order = []
        for _ in range(3):
            turn = await claim(store)
            order += natives(turn)
            await store.turns.complete(turn, Completion())
        assert order == ["a", "b", "c"]

    async def test_what_needs_no_model_overtakes_in_order(self, store: Queue, clock: ManualClock):
        """Commands come through one at a time and oldest first; the head is still first among the others."""
        await accept(store, "a")
        await store.turns.postpone(await claim(store), "later", delay_s=60)
        await accept(store, "b")
        await accept(store, "!1", "!2", alone=True)
        assert await store.turns.due_in(ROOM) == 0.0
        for name in ("!1", "!2"):
            command = await claim(store, merge=5)
            assert natives(command) == [name]
            assert await store.turns.claim(ROOM, out_of_band=True) is None, "two at once"
            await store.turns.complete(command, Completion())
        assert await store.turns.claim(ROOM) is None
        clock.advance(60)
        assert natives(await claim(store)) == ["a"]

    async def test_the_old_claim_of_a_postponed_turn_is_void(self, store: Queue, clock: ManualClock):
        """Who has postponed a turn can neither end it nor postpone it again, also when it runs anew."""
        await accept(store, "a")
        old = await claim(store)
        await store.turns.postpone(old, "later", delay_s=60)
        with pytest.raises(LostTurn):
            await store.turns.complete(old, Completion())
        clock.advance(60)
        new = await claim(store)
        assert new.fence > old.fence
        with pytest.raises(LostTurn):
            await store.turns.postpone(old, "again", delay_s=60)
        await store.turns.complete(new, Completion())
