"""The promises of `Queue` about workers, which work in conversations of accounts that others have."""

from __future__ import annotations

from typing import Any

import pytest

from agent_core.messages import Amendment, SessionKey
from gateway.queue.background import own_session
from gateway.queue.shared import SHARED
from gateway.queue.sql.cluster import PROCESS
from gateway.queue.sql.shared_turns import SharedTurns
from gateway.queue.states import ACCOUNT, InboxState
from gateway.queue.stores import Completion, LostTurn, Queue
from tests.clock import ManualClock
from tests.contract.queue_accept import natives
from tests.contract.queue_cluster import ALL, begin, take
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, answer, claim, step
from tests.contract.queue_overtaking import ask

READY, RUNNING = InboxState.READY, InboxState.RUNNING


def share(store: Any, holder: str, *, is_worker: bool = True) -> SharedTurns:
    """Turns as another process on the same database claims them."""
    turns = SharedTurns(store.database, ALL)
    turns.work_as(holder, is_worker=is_worker)
    if not is_worker:
        turns.leave_to_workers(True)
    return turns


async def worker(store: Queue, holder: str, *, ttl_s: float = 30) -> SharedTurns:
    """A worker that has begun."""
    await begin(store, holder, ttl_s=ttl_s)
    await store.maintenance.begin_worker(holder)
    return share(store, holder)


async def held(store: Any) -> list[tuple[str, str, int]]:
    """Which turns are held, by whom, with which fence."""
    query = "SELECT name, holder, fence FROM leases WHERE name LIKE 'turn:%' ORDER BY name"
    rows = await store.turns._reader.call("held", lambda db: db.execute(query).fetchall())
    return [(name.removeprefix("turn:"), holder, fence) for name, holder, fence in rows]


async def states(store: Queue) -> dict[str, InboxState]:
    return {row.message.native_id: row.state for row in await store.inbox.rows()}


class WorkersContract:
    """A worker holds what it works on; whoever takes the account leaves that alone while the worker lives."""

    async def lease_time_passes(self, store: Queue, clock: ManualClock, seconds: float) -> None:
        raise NotImplementedError

    async def test_a_worker_is_a_process_and_no_taker(self, store: Queue):
        await begin(store, "a")
        await take(store, "a", *ALL)
        await worker(store, "w")
        found = await store.maintenance.cluster()
        assert (list(found.processes), list(found.takers), list(found.workers)) == (["a", "w"], ["a"], ["w"])
        assert (list(found.lost_workers), found.turns) == ([], {})
        await store.maintenance.release_lease(f"{PROCESS}w", holder="w")
        found = await store.maintenance.cluster()
        assert (list(found.processes), list(found.workers), list(found.lost_workers)) == (["a"], [], [])

    async def test_a_worker_claims_only_what_is_said_in_conversations_of_accounts(self, store: Queue):
        """No command, reaction, job, check-in, no conversation of another kind; a daemon claims all of them."""
        turns = await worker(store, "w")
        others = {
            "command": SessionKey("matrix", "!command"),
            "reaction": SessionKey("matrix", "!reaction"),
            "job": SessionKey("matrix", "!job"),
            "tick": SessionKey("matrix", "!tick"),
            "background": own_session(ROOM, "abc234"),
            "elsewhere": SessionKey("switched-off", "somebody"),
            "shared": SHARED,
        }
        kinds = {"reaction": "reaction", "job": "job", "tick": "tick", "background": "background_job"}
        for name, session in others.items():
            at = OTHER if session == SHARED else session
            kind = {"kind": kinds[name]} if name in kinds else {}
            [row] = await accept(store, name, session=at, alone=name == "command", **kind)
            if session == SHARED:
                await store.inbox.work_in({row.id: SHARED})
        for session in others.values():
            assert await turns.claim(session) is None
            assert await turns.claim(session, out_of_band=True) is None
            assert await turns.due_in(session) is None
        assert await turns.due_for_workers() == []
        account = share(store, "a", is_worker=False)
        for session in others.values():
            assert await account.due_in(session) == 0.0
            assert await account.claim(session) is not None

    async def test_a_daemon_that_leaves_it_to_workers_claims_the_rest(self, store: Queue):
        """What both kinds of claims take is everything, and never the same."""
        account, turns = share(store, "a", is_worker=False), await worker(store, "w")
        await accept(store, "a")
        await accept(store, "x", session=OTHER, alone=True)
        assert await account.due_sessions() == [(OTHER, False), (OTHER, True)]
        assert (await account.claim(ROOM), await account.due_in(ROOM)) == (None, None)
        assert await turns.due_sessions() == [(ROOM, False)]
        turn = await turns.claim(ROOM)
        assert turn is not None
        await accept(store, "stop", alone=True)
        command = await account.claim(ROOM, out_of_band=True)  # beside the worker's turn
        assert command is not None and natives(command) == ["stop"]
        await answer(store, command)
        await turns.postpone(turn, "a file", delay_s=0.0, waits_for=ACCOUNT)
        assert (await account.due_sessions())[0] == (ROOM, False)
        assert await account.claim(ROOM) is not None
        account.leave_to_workers(False)
        assert await account.claim(OTHER) is not None

    @pytest.mark.parametrize("end", ["complete", "retry", "postpone", "release", "dead_letter", "undone"])
    async def test_each_end_lets_go(self, store: Queue, end: str):
        turns = await worker(store, "w")
        await accept(store, "a", "b")
        turn = await turns.claim(ROOM, merge=2)
        assert turn is not None
        assert await held(store) == [(turn.id, "w", turn.fence)]
        assert (await store.maintenance.cluster()).turns == {"w": 1}
        match end:
            case "complete":
                await answer(store, turn)
            case "retry":
                await turns.retry(turn, "no", delay_s=5, deferral=True)
            case "postpone":
                await turns.postpone(turn, "no", delay_s=5)
            case "release":
                await turns.release(turn)
            case "dead_letter":
                await turns.dead_letter(turn, "no")
            case "undone":
                await store.turns.release(turn)  # what undoes a claim does
        assert await held(store) == []

    async def test_what_is_given_back_is_for_the_account_alone(self, store: Queue, clock: ManualClock):
        """The same turn with its steps; neither the worker's start nor the giving back counts."""
        turns = await worker(store, "w")
        await accept(store, "a", "b")
        turn = await turns.claim(ROOM, merge=2)
        assert turn is not None
        await turns.step_finished(turn, step(0, kind="model", result={"text": "I look at the file"}))
        await turns.postpone(turn, "a file", delay_s=0.0, waits_for=ACCOUNT)
        clock.advance(1)
        for _ in range(2):
            assert await turns.claim(ROOM, merge=2) is None
            assert (await turns.due_in(ROOM), await turns.due_for_workers()) == (None, [])
        again = await share(store, "a", is_worker=False).claim(ROOM, merge=2)
        assert again is not None
        assert (again.id, natives(again), again.attempts, again.deferrals) == (turn.id, ["a", "b"], 1, 0)
        assert [one.kind for one in await store.turns.steps(again)] == ["model"]
        # What follows it is for workers again.
        await answer(store, again)
        await accept(store, "c")
        assert await turns.due_for_workers() == [(ROOM, 0.0)]

    async def test_a_worker_keeps_the_order_of_a_conversation(self, store: Queue, clock: ManualClock):
        """Behind a head that waits, and behind one that is for the account, nothing is taken."""
        turns = await worker(store, "w")
        await accept(store, "a")
        turn = await turns.claim(ROOM)
        assert turn is not None
        await accept(store, "b")
        assert await turns.claim(ROOM) is None
        await turns.retry(turn, "away", delay_s=60, deferral=True)
        assert await turns.claim(ROOM) is None
        assert await turns.due_in(ROOM) == pytest.approx(60)
        assert await turns.due_for_workers() == []
        clock.advance(61)
        assert await turns.due_for_workers() == [(ROOM, pytest.approx(1))]
        again = await turns.claim(ROOM)
        assert again is not None
        await turns.postpone(again, "a file", delay_s=0.0, waits_for=ACCOUNT)
        assert await turns.claim(ROOM) is None
        assert await turns.due_for_workers() == []

    async def test_a_worker_goes_past_a_turn_that_waits_for_a_yes(self, store: Queue, clock: ManualClock):
        turns = await worker(store, "w")
        await accept(store, "a")
        await ask(store, clock, await claim(store))
        assert (await turns.due_for_workers(), await turns.due_in(ROOM)) == ([], None)
        await accept(store, "b")
        assert (await turns.due_for_workers(), await turns.due_in(ROOM)) == ([(ROOM, 0.0)], 0.0)
        turn = await turns.claim(ROOM)
        assert turn is not None and natives(turn) == ["b"]
        await turns.postpone(turn, "a file", delay_s=0.0, waits_for=ACCOUNT)
        account = share(store, "a", is_worker=False)
        assert (await turns.due_for_workers(), await account.due_in(ROOM)) == ([], 0.0)
        assert await account.due_sessions() == await store.turns.due_sessions() == [(ROOM, False)]
        again = await account.claim(ROOM)
        assert again is not None and natives(again) == ["b"]

    async def test_a_takeover_leaves_a_living_workers_turns_alone(self, store: Queue, clock: ManualClock):
        """What the dead daemon had in the same conversation is put right."""
        await begin(store, "a", "b")
        await take(store, "a", *ALL)
        turns = await worker(store, "w")
        await accept(store, "a")
        await accept(store, "x", session=OTHER)
        turn = await turns.claim(ROOM)
        assert turn is not None
        await accept(store, "stop", alone=True)
        beside = await store.turns.claim(ROOM, out_of_band=True)
        assert beside is not None and await store.turns.claim(OTHER) is not None
        await store.maintenance.release_lease(f"{PROCESS}a", holder="a")
        assert await take(store, "b", *ALL) == [*ALL]
        assert await states(store) == {"a": RUNNING, "stop": READY, "x": READY}
        assert [one.turn for one in await store.maintenance.suspects() if one.session == ROOM] == [beside.id]
        assert await answer(store, turn)
        with pytest.raises(LostTurn):
            await answer(store, beside)

    async def test_what_a_worker_left_behind_protects_nothing_else(self, store: Queue):
        """Its turn was stopped, or an earlier version took the account: a later claim is another one."""
        await begin(store, "a", "b")
        await take(store, "a", *ALL)
        turns = await worker(store, "w")
        await accept(store, "a")
        turn = await turns.claim(ROOM)
        assert turn is not None
        await store.maintenance.recover()  # as an earlier version would
        again = await claim(store)
        assert (again.id, again.fence) == (turn.id, turn.fence + 1)
        assert await held(store) == [(turn.id, "w", turn.fence)]
        await store.maintenance.release_lease(f"{PROCESS}a", holder="a")
        await take(store, "b", *ALL)
        assert await states(store) == {"a": READY}
        with pytest.raises(LostTurn):
            await turns.complete(turn, Completion())
        await accept(store, "x", session=OTHER)
        other = await turns.claim(OTHER)
        assert other is not None
        assert await held(store) == [(other.id, "w", other.fence)]

    async def test_a_stopped_turn_is_let_go_of_with_the_next_claim(self, store: Queue):
        turns = await worker(store, "w")
        await accept(store, "a")
        turn = await turns.claim(ROOM)
        assert turn is not None
        await store.inbox.accept("matrix", BOT, [], {}, [Amendment(kind="stop", session=ROOM)])
        with pytest.raises(LostTurn):
            await turns.release(turn)
        assert await turns.claim(ROOM) is None
        assert await held(store) == []

    async def test_the_turns_of_a_dead_worker_are_put_right(self, store: Queue, clock: ManualClock):
        """Not before its lease is over, by whoever looks, once; and it cannot come back."""
        await begin(store, "a")
        await take(store, "a", *ALL)
        turns, other = await worker(store, "w"), await worker(store, "v")
        await accept(store, "a")
        await accept(store, "x", session=OTHER)
        turn, living = await turns.claim(ROOM), await other.claim(OTHER)
        assert turn is not None and living is not None
        await turns.step_finished(turn, step(0, kind="model", result={"text": "well"}))
        assert await store.maintenance.end_workers() == []
        await self.lease_time_passes(store, clock, 20)
        for name in ("a", "v"):
            assert await store.maintenance.renew_lease(f"{PROCESS}{name}", holder=name, fence=1, ttl_s=60)
        assert list((await store.maintenance.cluster()).lost_workers) == []
        await self.lease_time_passes(store, clock, 11)
        found = await store.maintenance.cluster()
        assert (list(found.workers), list(found.lost_workers)) == (["v"], ["w"])
        assert await store.maintenance.end_workers() == [ROOM]
        assert await store.maintenance.end_workers() == []
        assert list((await store.maintenance.cluster()).lost_workers) == []
        assert not await store.maintenance.renew_lease(f"{PROCESS}w", holder="w", fence=1, ttl_s=30)
        assert await states(store) == {"a": READY, "x": RUNNING}
        with pytest.raises(LostTurn):
            await answer(store, turn)
        again = await other.claim(ROOM)
        assert again is not None
        assert (again.id, again.attempts) == (turn.id, 2)
        assert [one.kind for one in await store.turns.steps(again)] == ["model"]
        assert await answer(store, living)

    async def test_a_dead_worker_blames_what_it_had_in_hand_itself(self, store: Queue, clock: ManualClock):
        """Its only turn was alone in flight, whatever others did; a dead daemon's turns are another death."""
        await begin(store, "a", "b")
        await take(store, "a", *ALL)
        one, two = await worker(store, "v"), await worker(store, "w")
        rooms = [SessionKey("matrix", f"!{number}") for number in range(6)]
        for number, room in enumerate(rooms):
            await accept(store, f"m{number}", session=room)
        await one.claim(rooms[0])
        for room in rooms[1:3]:
            await two.claim(room)
        for room in rooms[3:]:
            await claim(store, room)
        await self.lease_time_passes(store, clock, 25)
        assert await store.maintenance.renew_lease(f"{PROCESS}b", holder="b", fence=1, ttl_s=60)
        await self.lease_time_passes(store, clock, 10)
        assert sorted(await store.maintenance.end_workers(), key=str) == rooms[:3]
        await take(store, "b", *ALL)
        found = {one.session: one.record for one in await store.maintenance.suspects()}
        assert [(found[room].deaths, found[room].alone) for room in rooms] == [(1, 1), *[(1, 0)] * 5]

    async def test_of_a_worker_that_ends_in_the_middle_its_turn_is_found(self, store: Queue):
        """Its lease was given back, or ended by the next process of its home, and its turn was not."""
        turns = await worker(store, "w")
        await accept(store, "a")
        assert await turns.claim(ROOM) is not None
        assert await store.maintenance.lease(f"{PROCESS}x", holder="x", ttl_s=30, instead_of=["w"]) == 1
        assert list((await store.maintenance.cluster()).lost_workers) == ["w"]
        assert await store.maintenance.end_workers() == [ROOM]
        assert await states(store) == {"a": READY}
        assert await held(store) == []
