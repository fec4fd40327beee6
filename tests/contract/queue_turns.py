"""The promises of `Queue` about working on turns and answering them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from agent_core.messages import MessageContext, Sender, SessionKey
from agent_core.models import Message, Purpose, Usage
from gateway.store.model import Step
from gateway.store.shared import SHARED
from gateway.store.states import InboxState, OutboxState
from gateway.store.stores import Completion, Queue
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_accept import natives
from tests.contract.queue_data import (
    BOT,
    OTHER,
    ROOM,
    accept,
    answer,
    claim,
    out,
    pending,
    reply,
    step,
)


class TurnsContract:
    """From ``claim`` to ``complete``."""

    async def test_of_a_conversation_in_several_places_a_turn_is_of_one(self, store: Queue):
        """Each stretch said in one place by one account is a turn, in the order of all; it never goes past another."""
        mail = SessionKey("email", "thread")
        order = [ROOM, ROOM, mail, ROOM, OTHER, OTHER]
        for number, place in enumerate(order):
            [row] = await accept(store, f"{number}", session=place)
            assert await store.inbox.ready_work({row.id: SHARED}) == 1
        turns = []
        while (turn := await store.turns.claim(SHARED, merge=10)) is not None:
            assert len({row.message.session for row in turn.rows}) == 1
            turns.append("".join(row.message.native_id for row in turn.rows))
            await answer(store, turn)
        assert turns == ["01", "2", "3", "45"]

    async def test_a_turn_is_of_one_sender(self, store: Queue):
        """
        Each stretch written by one sender is a turn, in the order of all: a row is never taken past somebody
        else's. A name says nothing, and whoever is not proven to have an address is another sender.
        """
        alice, bob = "@alice:hs.test", "@bob:hs.test"
        order = [(alice, "A", True), (alice, "B", True), (bob, "A", True), (alice, "A", True),
                 (alice, "A", False), (alice, "A", False), (bob, "B", True)]  # fmt: skip
        for number, (address, name, verified) in enumerate(order):
            await accept(store, f"{number}", sender=Sender(address=address, name=name, verified=verified))
        turns = []
        while (turn := await store.turns.claim(ROOM, merge=10)) is not None:
            turns.append("".join(natives(turn)))
            await answer(store, turn)
        assert turns == ["01", "2", "3", "45", "6"]

    async def test_what_waits_is_worked_on_where_it_belongs_by_now(self, store: Queue):
        """What runs, or is over, stays; a second time nothing is elsewhere. The order is that of acceptance."""
        await accept(store, "earlier")
        over, runs, waits = await accept(store, "over", "runs", "waits", session=OTHER)
        await accept(store, "later")
        await store.inbox.drop(over.id)
        turn = await claim(store, OTHER)
        wanted = dict.fromkeys((over.id, runs.id, waits.id), ROOM)
        assert await store.inbox.ready_work(wanted) == 1
        assert await store.inbox.ready_work(wanted) == 0
        assert await store.inbox.ready_work({}) == 0
        await answer(store, turn)  # it is not lost
        assert await store.turns.claim(OTHER) is None
        for native_id, place in (("earlier", ROOM), ("waits", OTHER), ("later", ROOM)):
            turn = await claim(store, merge=5)
            assert (natives(turn), turn.session, turn.place) == (
                [native_id],
                ROOM,
                place,
            )  # where it was said
            await answer(store, turn)

    async def test_turns_at_work_are_told_with_their_step(self, store: Queue, clock: ManualClock):
        """The longest one first; a tool only while it runs, and nothing that waits or is over."""
        await accept(store, "waits", session=SHARED)
        await accept(store, "a", "b")
        clock.advance(5)
        await accept(store, "c", session=OTHER)
        first, second = await claim(store, merge=5), await claim(store, OTHER)
        used = Step(4, "tool", "d", {"call": {"name": "shell"}}, None)
        await store.turns.record_step_start(first, step(3))
        await store.turns.record_step_result(first, step(3, result={"content": "done"}))
        await store.turns.record_step_start(first, used)
        told = [
            (row.session, row.since, row.messages, row.number, row.tool)
            for row in await store.turns.running()
        ]
        later = EPOCH + timedelta(seconds=5)
        assert told == [(ROOM, EPOCH, 2, 4, "shell"), (OTHER, later, 1, 0, "")]
        await store.turns.record_step_result(first, replace(used, result={"content": "done"}))
        assert [row.tool for row in await store.turns.running()] == ["", ""]
        await answer(store, first)
        await answer(store, second)
        assert await store.turns.running() == []

    async def test_rows_are_found_by_their_error(self, store: Queue):
        """Of one conversation or of all, newest first; without states none that was ignored."""
        for number, why in enumerate(("over_limit", "unreadable_key", "name_too_long", "over_limit")):
            entry = replace(pending(f"i{number}"), ignore=why)
            await store.inbox.accept(ROOM.channel, BOT, [entry], {})
        await accept(store, "open", session=OTHER)

        async def found(*errors: str, **more: object) -> list[str]:
            rows = await store.inbox.rows(states=[InboxState.IGNORED], errors=errors, **more)  # type: ignore[arg-type]
            return [row.message.native_id for row in rows]

        assert await found("over_limit", "unreadable_%") == ["i3", "i1", "i0"]
        assert await found("over_limit", limit=1) == ["i3"]
        assert await found("over_limit", session=OTHER) == []
        assert [row.message.native_id for row in await store.inbox.rows(session=OTHER)] == ["open"]
        assert await store.inbox.rows(session=ROOM) == []

    async def test_an_answer_commits_everything_together(self, store: Queue, clock: ManualClock):
        """Rows, answers, history and usage are there after `complete`, and the steps are gone."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await store.turns.record_step_result(turn, step(0, result={"x": 1}))
        lines = [
            Message(
                role="user",
                content="q \udc80",
                id="1",
                turn=turn.id,
                timestamp=EPOCH,
                sender="@alice:hs.test",
            ),
            Message(role="assistant", content="r", id="2", turn=turn.id, timestamp=EPOCH),
        ]
        usage = Usage(prompt_tokens=10, completion_tokens=3, calls=1, cost_usd=0.5, model="m")
        rows = await store.turns.complete(turn, reply("one", "two", history=lines, usage=usage))
        assert [row.message.text for row in rows] == ["one", "two"]
        assert {row.inbox_id for row in rows} == {turn.rows[-1].id}
        assert {row.state for row in rows} == {OutboxState.PENDING}
        assert rows[0].message.context == turn.rows[-1].message.context
        assert rows[0].message.created_at == clock.now()
        assert sorted(await store.outbox.rows(), key=lambda row: row.id) == rows
        assert {row.state for row in await store.inbox.rows()} == {InboxState.ANSWERED}
        journal = await store.journal.lines(ROOM)
        assert [line.message.id for line in journal] == ["1", "2"]
        assert [line.message for line in journal][1] == lines[1]
        (spent,) = await store.usage.rows()
        assert (spent.day, spent.session, spent.purpose, spent.model) == (
            "2026-01-01",
            str(ROOM),
            "chat",
            "m",
        )
        assert spent.usage == usage
        assert await store.turns.claim(ROOM) is None

    async def test_without_an_answer_the_rows_are_settled(self, store: Queue, clock: ManualClock):
        """A turn with nothing to send is over at once."""
        await accept(store, "a")
        assert await store.turns.complete(await claim(store), Completion()) == []
        assert (await store.inbox.rows())[0].state is InboxState.SETTLED

    async def test_the_context_is_that_of_the_message(self, store: Queue, clock: ManualClock):
        """An answer gets the last message's context; another one's own stays, and other places get none."""
        await accept(store, "a", "b")
        rows = await store.turns.complete(
            await claim(store, merge=2),
            Completion(
                outbound=[out("x"), out("y", context=MessageContext(cc=("own",))), out("z", session=OTHER)]
            ),
        )
        assert [(row.message.context.route, row.message.context.cc) for row in rows] == [
            ({"event_id": "b"}, ()),
            ({}, ("own",)),
            ({}, ()),
        ]

    async def test_a_retry_keeps_the_order(self, store: Queue, clock: ManualClock):
        """The head waits for its time and its session with it; nobody else does. Then it is first again."""
        await accept(store, "a", "b")
        turn = await claim(store)
        await store.turns.retry(turn, "boom", delay_s=30, deferral=False)
        await accept(store, "x", session=OTHER)
        assert await store.turns.claim(ROOM) is None
        assert natives(await claim(store, OTHER)) == ["x"]
        assert await store.turns.due_in(ROOM) == pytest.approx(30)
        clock.advance(29)
        assert await store.turns.claim(ROOM) is None
        clock.advance(1)
        again = await claim(store)
        assert (again.id, natives(again), again.attempts) == (turn.id, ["a"], 2)
        assert again.head.error == "boom"

    async def test_a_deferral_is_not_an_attempt(self, store: Queue, clock: ManualClock):
        """A start that was not the message's fault counts as a deferral, and since when is known."""
        await accept(store, "a", "b")
        for number in (1, 2, 3):
            turn = await claim(store, merge=2)
            assert (turn.attempts, turn.deferrals) == (1, number - 1)
            assert turn.first_deferred_s == pytest.approx((number - 1) * 60)
            await store.turns.retry(turn, "the provider is away", delay_s=60, deferral=True)
            clock.advance(60)
        assert natives(await claim(store, merge=2)) == ["a", "b"]

    async def test_a_buried_turn_makes_way(self, store: Queue, clock: ManualClock):
        """The turn is DEAD with its error, the apology is in the outbox, and the session goes on."""
        await accept(store, "a", "b")
        turn = await claim(store)
        await store.turns.record_step_result(turn, step(0, result={}))
        (apology,) = await store.turns.dead_letter(turn, "it cannot be", [out("sorry")])
        assert (apology.message.text, apology.inbox_id) == ("sorry", turn.head.id)
        dead = (await store.inbox.rows(states=[InboxState.DEAD]))[0]
        assert (dead.id, dead.error) == (turn.head.id, "it cannot be")
        assert natives(await claim(store)) == ["b"]
        await store.outbox.sending(apology)
        await store.outbox.record_send(apology, "$1")
        assert (await store.inbox.rows(states=[InboxState.DEAD]))[0].id == turn.head.id

    async def test_a_released_turn_is_as_if_it_had_not_begun(self, store: Queue, clock: ManualClock):
        """Parking does not count as a start; the turn and its steps stay."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await store.turns.record_step_result(turn, step(0, result={"done": True}))
        await store.turns.release(turn)
        again = await claim(store, merge=2)
        assert (again.id, again.attempts, again.fence > turn.fence) == (turn.id, 1, True)
        assert await store.turns.steps(again) == [step(0, result={"done": True})]

    async def test_steps_survive_the_start(self, store: Queue, clock: ManualClock):
        """A later start finds what was started and what was finished, by number, whatever it holds."""
        await accept(store, "a")
        turn = await claim(store)
        odd = {"text": "\udc80 ☃", "list": [1, 2.5, None, True]}
        await store.turns.record_step_result(turn, step(1, kind="model", digest="m", result=odd))
        await store.turns.record_step_start(turn, step(0))
        await store.turns.record_step_start(turn, step(2))
        await store.turns.record_step_result(turn, step(2, result={"n": 1}))
        await store.turns.record_step_result(turn, step(2, digest="other", result={"n": 2}))
        await store.maintenance.recover()
        again = await claim(store)
        assert (turn.is_new, again.is_new) == (True, False)
        assert await store.turns.steps(again) == [
            step(0),
            step(1, kind="model", digest="m", result=odd),
            step(2, digest="other", result={"n": 2}),
        ]

    async def test_the_journal_holds_lines_until_they_are_done(self, store: Queue, clock: ManualClock):
        """Lines come oldest first, of one session or all; those that are done are gone, and only those."""
        for session, name in ((ROOM, "a"), (OTHER, "b"), (ROOM, "c")):
            await accept(store, name, session=session)
            await answer(store, await claim(store, session))
        every = await store.journal.lines()
        assert [line.id for line in every] == sorted(line.id for line in every)
        assert [line.session for line in every] == [ROOM, ROOM, OTHER, OTHER, ROOM, ROOM]
        assert [line.message.content for line in await store.journal.lines(ROOM)][::2] == [
            "text of a",
            "text of c",
        ]
        await store.journal.delete_filed_lines([line.id for line in every[:3]])
        await store.journal.delete_filed_lines([])
        assert await store.journal.lines() == every[3:]
        await store.journal.delete_filed_lines([line.id for line in every])
        await accept(store, "d")
        await answer(store, await claim(store))
        await store.journal.delete_filed_lines([line.id for line in every])
        assert len(await store.journal.lines()) == 2, "an id of a line was used again"

    async def test_when_a_session_is_due(self, store: Queue, clock: ManualClock):
        """`due_in` knows the head's time; nothing waits where there is nothing or a turn is running."""
        assert await store.turns.due_in(ROOM) is None
        await accept(store, "a")
        assert await store.turns.due_in(ROOM) == 0.0
        turn = await claim(store)
        assert await store.turns.due_in(ROOM) is None
        await store.turns.retry(turn, "later", delay_s=9, deferral=True)
        assert await store.turns.due_in(ROOM) == pytest.approx(9)
        clock.advance(20)
        assert await store.turns.due_in(ROOM) == 0.0

    async def test_usage_adds_up_by_day_session_purpose_and_model(self, store: Queue, clock: ManualClock):
        """Equal keys are one row whose numbers are sums; an unknown cost does not hide the known ones."""
        spend = Usage(prompt_tokens=1, completion_tokens=2, calls=1, cost_usd=0.25, model="m")
        for _ in range(2):
            await store.usage.add(ROOM, spend, Purpose.CONSOLIDATION)
        await store.usage.add(ROOM, spend.model_copy(update={"cost_usd": None}), Purpose.CONSOLIDATION)
        await store.usage.add(ROOM, Usage(), Purpose.CHAT)
        clock.advance(86_400)
        await store.usage.add(ROOM, spend, Purpose.HEARTBEAT)
        newest, oldest = await store.usage.rows()
        assert (newest.day, newest.purpose) == ("2026-01-02", "heartbeat")
        assert oldest.usage == Usage(prompt_tokens=3, completion_tokens=6, calls=3, cost_usd=0.5, model="m")
        assert [row.day for row in await store.usage.rows(days=1)] == ["2026-01-02"]

    async def test_the_dearest_turns_are_kept_by_day(self, store: Queue, clock: ManualClock):
        """Ten of each day, by money and then by tokens, with the conversation as it is now; none without calls."""
        costs = [None, *(0.01 * number for number in range(12))]
        for number, usd in enumerate(costs):
            await accept(store, f"a{number}")
            spent = Usage(prompt_tokens=number, calls=1, cost_usd=usd)
            await store.turns.complete(await claim(store), reply("x", spent=spent))
        await accept(store, "free")
        await store.turns.complete(await claim(store), reply("x"))
        found = await store.usage.costliest_turns(since="2026-01-01", limit=20)
        assert [each.usage.prompt_tokens for each in found] == list(range(12, 2, -1))
        assert {each.session for each in found} == {str(ROOM)}
        assert {each.accepted_at for each in found} == {EPOCH}
        clock.advance(86_400)
        await accept(store, "dear")
        await store.turns.complete(await claim(store), reply("x", spent=Usage(calls=3, cost_usd=0.5)))
        assert [each.usage.calls for each in await store.usage.costliest_turns(since="2026-01-02")] == [3]
        assert [
            each.usage.calls for each in await store.usage.costliest_turns(since="2026-01-01", limit=2)
        ] == [3, 1]
        clock.advance(86_400 * 92)
        await accept(store, "late")
        await store.turns.complete(await claim(store), reply("x", spent=Usage(calls=1, cost_usd=0.1)))
        assert len(await store.usage.costliest_turns(since="2026-01-01")) == 1
