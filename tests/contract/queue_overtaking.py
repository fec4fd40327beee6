"""The promises of `Queue` about a head that waits: who overtakes it, and who never does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agent_core.tools.grants import Grant, GrantKind, Scope
from gateway.store.model import APPROVAL, WITHDRAWN
from gateway.store.store_errors import LostTurn
from gateway.store.stores import Completion, Pending, Queue, Step, Turn
from tests.clock import ManualClock
from tests.contract.queue_accept import natives
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, answer, claim, message, out, step

YES, INSTEAD = {"verdict": "approved"}, {"verdict": WITHDRAWN}


async def ask(
    store: Queue, clock: ManualClock, turn: Turn, name: str = "a000001", wait_s: float = 60
) -> None:
    """Let a turn wait for a yes."""
    until = clock.now() + timedelta(seconds=wait_s)
    request = {
        "name": name,
        "asked": ["@alice:hs.test"],
        "people": ["@alice:hs.test"],
        "places": [str(turn.session)],
        "call": {"name": "effect"},
        "until": until.isoformat(),
    }
    question = Step(1, APPROVAL, name, request, None)
    await store.approvals.ask(turn, question, [out("may I?")], why="asks", delay_s=wait_s)


async def settle(store: Queue, native_id: str, verdict: dict[str, str], *, alone: bool = False) -> None:
    """Accept a message that says something of a question."""
    entry = Pending(message(native_id), alone=alone, settles={"a000001": verdict})
    await store.inbox.accept(ROOM.channel, BOT, [entry], {})


class OvertakingContract:
    """From ``postpone`` to the turn's next start."""

    async def test_a_postponed_turn_comes_back_unharmed(self, store: Queue, clock: ManualClock):
        """The same turn with its rows and steps, when its time has come; neither a start nor a deferral counts."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await store.turns.record_step_result(turn, step(0, result={"done": True}))
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

    async def test_a_question_is_gone_past_and_keeps_its_turn(self, store: Queue, clock: ManualClock):
        """What is behind it has its turns in order, with questions of its own; it comes back when it is decided."""
        await accept(store, "a")
        first = await claim(store)
        await accept(store, "b", "c")
        await ask(store, clock, first)
        assert await store.turns.due_in(ROOM) == 0.0
        assert await store.turns.open_sessions() == [(ROOM, 0.0)]
        second = await claim(store)
        assert natives(second) == ["b"]
        await ask(store, clock, second, "a000002", 90)
        third = await claim(store, merge=5)
        assert natives(third) == ["c"]
        await store.turns.complete(third, Completion())
        assert await store.turns.claim(ROOM) is None
        assert await store.turns.due_in(ROOM) == pytest.approx(60)
        assert (await store.maintenance.stats()).oldest_unanswered_s is None
        await store.approvals.decide("a000002", YES)
        again = await claim(store)
        assert (natives(again), again.attempts) == (["b"], 1)
        await store.turns.complete(again, Completion())
        clock.advance(60)
        assert natives(await claim(store)) == ["a"]

    async def test_nothing_goes_past_a_head_that_waits_for_something_else(
        self, store: Queue, clock: ManualClock
    ):
        """Also not behind a question: only the question itself is gone past."""
        await accept(store, "a")
        asked = await claim(store)
        await accept(store, "b", "c")
        await ask(store, clock, asked)
        await store.turns.postpone(await claim(store), "the budget is spent", delay_s=30)
        assert await store.turns.claim(ROOM) is None
        assert await store.turns.due_in(ROOM) == pytest.approx(30)
        clock.advance(30)
        assert natives(await claim(store)) == ["b"]

    async def test_a_message_settles_a_question_when_it_is_accepted(self, store: Queue, clock: ManualClock):
        """In one transaction; the first word counts, and a repetition of the message says nothing any more."""
        await accept(store, "a")
        await ask(store, clock, await claim(store))
        await settle(store, "yes", YES, alone=True)
        await settle(store, "instead", INSTEAD)
        (found,) = await store.approvals.questions()
        assert (found.verdict, found.people, found.places) == (YES, ("@alice:hs.test",), (ROOM,))
        assert (await store.approvals.find_decision("a000001"))[:2] == (ROOM, "approved")
        word = await store.turns.claim(ROOM, out_of_band=True)
        assert word is not None
        assert word.head.message.context.notes.settled == "approved"
        await store.turns.complete(word, Completion())
        turn = await claim(store)
        assert natives(turn) == ["a"]
        await store.turns.complete(turn, Completion())
        assert natives(await claim(store)) == ["instead"]
        await settle(store, "too late", {**YES, "verdict": "refused"}, alone=True)
        word = await store.turns.claim(ROOM, out_of_band=True)
        assert word is not None
        assert word.head.message.context.notes.settled == "approved"

    async def test_a_withdrawn_question_is_remembered(self, store: Queue, clock: ManualClock):
        """Its turn goes first; afterwards, too, it is known that it was withdrawn, for a month."""
        await accept(store, "a")
        await ask(store, clock, await claim(store))
        await settle(store, "instead", INSTEAD)
        await settle(store, "late", YES, alone=True)
        turn = await claim(store)
        assert natives(turn) == ["a"]
        steps = await store.turns.steps(turn)
        assert [each.result for each in steps] == [INSTEAD]
        await answer(store, turn)
        word = await store.turns.claim(ROOM, out_of_band=True)
        assert word is not None
        assert word.head.message.context.notes.settled == WITHDRAWN
        assert (await store.approvals.find_decision("a000001"))[:2] == (ROOM, WITHDRAWN)
        clock.advance(31 * 86_400)
        await store.maintenance.prune(older_than_s=1.0)
        assert await store.approvals.find_decision("a000001") is None

    async def test_a_decision_that_has_come_first_is_not_undone(self, store: Queue, clock: ManualClock):
        """A command that is still to be carried out may be a yes: what is written after it withdraws nothing."""
        await accept(store, "a")
        await ask(store, clock, await claim(store))
        await accept(store, "!approve", alone=True)
        await settle(store, "instead", INSTEAD)
        (found,) = await store.approvals.questions()
        assert found.verdict is None
        found_again = await store.approvals.decide("a000001", YES)
        assert found_again is not None
        assert found_again.verdict == YES

    @pytest.mark.parametrize("everywhere", [True, False])
    async def test_a_grant_that_holds_everywhere_wakes_other_conversations(
        self, store: Queue, clock: ManualClock, everywhere: bool
    ):
        """In the transaction of the yes that gives it; one for its own conversation leaves them waiting."""
        for number, session in enumerate((ROOM, OTHER), start=1):
            await accept(store, f"m{number}", session=session)
            await ask(store, clock, await claim(store, session), name=f"a00000{number}", wait_s=3600)
        place, until = "" if everywhere else str(ROOM), clock.now() + timedelta(hours=1)
        scope = Scope(GrantKind.CALL, "effect", "{}")
        grant = Grant("g000001", scope, place, ("@alice:hs.test",), "@o:x", clock.now(), until)
        assert await store.approvals.decide("a000001", YES, grant=grant) is not None
        assert natives(await claim(store)) == ["m1"]
        other = await store.turns.claim(OTHER)
        assert (other is not None and natives(other) == ["m2"]) is everywhere
        assert [each.id for each in await store.grants.rows()] == ["g000001"]

    async def test_what_was_said_last(self, store: Queue, clock: ManualClock):
        """In this conversation; a draft that is held was not said."""
        assert await store.approvals.newest_rows(ROOM) == []
        await store.outbox.post([out("first")])
        await store.outbox.post([out("elsewhere", session=OTHER)])
        await store.outbox.post([out("held", hold=True)])
        (row,) = await store.approvals.newest_rows(ROOM)
        assert row.message.text == "first"
        await store.outbox.post([out("second")])
        assert [row.message.text for row in await store.approvals.newest_rows(ROOM)] == ["second", "first"]
