"""The promises of `Queue` about processes and the accounts that they work for."""

from __future__ import annotations

from typing import Any

import pytest

from agent_core.messages import SessionKey
from gateway.queue.shared import SHARED
from gateway.queue.sql.cluster import COMMAND, EVERYTHING, PROCESS, REST
from gateway.queue.sql.engine import ALONE
from gateway.queue.states import InboxState, OutboxState
from gateway.queue.stores import LostTurn, NewOutbound, Queue
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, ROOM, accept, answer, claim, out

ALL = {"matrix": BOT, "email": "bot@mail.test"}
MAIL = SessionKey("email", "thread")
UNKNOWN = SessionKey("switched-off", "somebody")


async def begin(store: Queue, *holders: str, ttl_s: float = 30) -> None:
    for holder in holders:
        fence = await store.maintenance.lease(f"{PROCESS}{holder}", holder=holder, ttl_s=ttl_s)
        assert fence == 1


async def take(store: Queue, holder: str, *names: str) -> list[str]:
    return await store.maintenance.take_accounts(names, configured=ALL, holder=holder)


class ClusterContract:
    """Accounts have one process; they go to another one when it gives them back or its lease has ended."""

    async def lease_time_passes(self, store: Queue, clock: ManualClock, seconds: float) -> None:
        raise NotImplementedError

    async def test_an_account_has_one_process_until_that_gives_it_back(self, store: Queue):
        await begin(store, "a", "b")
        assert await take(store, "a", "matrix", REST) == ["matrix", REST]
        assert await take(store, "b", *ALL) == ["email"]
        assert await take(store, "a", *ALL) == ["matrix"]  # it has that already
        found = await store.maintenance.cluster()
        assert (list(found.processes), found.owners) == (["a", "b"], {"matrix": "a", REST: "a", "email": "b"})
        await store.maintenance.give_account("matrix", holder="b")  # it is none of its own
        assert (await store.maintenance.cluster()).owners["matrix"] == "a"
        await store.maintenance.give_account("matrix", holder="a")
        assert await take(store, "b", "matrix") == ["matrix"]

    async def test_a_process_counts_as_a_taker_from_its_first_look_to_its_end(
        self, store: Queue, clock: ManualClock
    ):
        """Also if it finds nothing to take; with its lease ends that, too."""
        await begin(store, "a", "b", "c")
        assert list((await store.maintenance.cluster()).takers) == []
        await take(store, "a", *ALL)
        assert await take(store, "b") == []
        found = await store.maintenance.cluster()
        assert (list(found.processes), list(found.takers)) == (["a", "b", "c"], ["a", "b"])
        await store.maintenance.release_lease(f"{PROCESS}b", holder="b")
        assert list((await store.maintenance.cluster()).takers) == ["a"]
        await self.lease_time_passes(store, clock, 31)
        await begin(store, "d")
        assert list((await store.maintenance.cluster()).takers) == []
        await take(store, "d", *ALL)
        assert list((await store.maintenance.cluster()).takers) == ["d"]
        assert {lease.holder for lease in await store.maintenance.leases()} == {"d"}

    async def test_a_command_beside_processes_is_seen_and_has_no_account(
        self, store: Queue, clock: ManualClock
    ):
        """It keeps away only whoever needs the database alone, until it ends; then nothing of it is left."""
        maintenance, name = store.maintenance, f"{COMMAND}c"
        await begin(store, "a")
        assert not (await maintenance.cluster()).written
        assert await maintenance.lease(name, holder="c", ttl_s=10) == 1
        await begin(store, "b")
        found = await maintenance.cluster()
        assert (list(found.processes), found.owners, found.written) == (["a", "b"], {}, True)
        for process in ("a", "b"):
            await maintenance.release_lease(f"{PROCESS}{process}", holder=process)
        assert await maintenance.lease(EVERYTHING, holder="d", ttl_s=5) is None
        await self.lease_time_passes(store, clock, 11)
        assert not (await maintenance.cluster()).written
        assert await maintenance.lease(EVERYTHING, holder="d", ttl_s=5) == 1
        assert [lease.name for lease in await maintenance.leases()] == [EVERYTHING]
        assert await maintenance.lease(name, holder="c", ttl_s=10) is None
        assert not await maintenance.renew_lease(name, holder="c", fence=1, ttl_s=10)

    async def test_the_accounts_of_a_process_go_with_its_lease(self, store: Queue, clock: ManualClock):
        """Not before its end, also when it is renewed late; afterwards it cannot come back by that name."""
        await begin(store, "a", "b")
        await take(store, "a", *ALL, REST)
        await self.lease_time_passes(store, clock, 20)
        assert await store.maintenance.renew_lease(f"{PROCESS}b", holder="b", fence=1, ttl_s=60)
        assert await take(store, "b", *ALL) == []
        await self.lease_time_passes(store, clock, 11)
        assert await store.maintenance.renew_lease(f"{PROCESS}a", holder="a", fence=1, ttl_s=30)
        assert await take(store, "b", *ALL) == []  # nobody was faster
        await self.lease_time_passes(store, clock, 31)
        assert (await store.maintenance.cluster()).owners == {}
        assert await take(store, "b", "matrix") == ["matrix"]
        assert not await store.maintenance.renew_lease(f"{PROCESS}a", holder="a", fence=1, ttl_s=30)
        assert (await store.maintenance.cluster()).owners == {"matrix": "b"}

    async def test_what_a_dead_process_had_in_hand_is_put_right_where_it_was_taken(
        self, store: Queue, clock: ManualClock
    ):
        """Of that account alone, and what belongs to none goes with `REST`: a switched-off channel's, too."""
        await begin(store, "a", "b")
        await take(store, "a", *ALL, REST)
        turns = {}
        for session in (ROOM, MAIL, UNKNOWN):
            await accept(store, f"of {session.channel}", session=session)
            turns[session] = await claim(store, session)

        async def states() -> dict[str, InboxState]:
            return {row.message.channel: row.state for row in await store.inbox.rows()}

        await self.lease_time_passes(store, clock, 25)
        assert await store.maintenance.renew_lease(f"{PROCESS}b", holder="b", fence=1, ttl_s=60)
        await self.lease_time_passes(store, clock, 10)
        await take(store, "b", "matrix")
        running, ready = InboxState.RUNNING, InboxState.READY
        assert await states() == {"matrix": ready, "email": running, "switched-off": running}
        await take(store, "b", REST)
        assert await states() == {"matrix": ready, "email": running, "switched-off": ready}
        await take(store, "b", "email")
        assert await states() == {"matrix": ready, "email": ready, "switched-off": ready}
        for turn in turns.values():
            with pytest.raises(LostTurn):
                await answer(store, turn)

    async def test_what_a_worker_of_an_earlier_version_has_in_hand_is_put_right_with_its_account(
        self, store: Any
    ):
        """Such a process had no account, and a row of its own for each turn. Nothing of it counts any more."""
        await begin(store, "a", "w")
        await accept(store, "a")
        turn = await claim(store)
        rows = [("worker:w", "w", 1), (f"turn:{turn.id}", "w", turn.fence)]
        insert = "INSERT INTO leases (name, holder, fence, expires_at) VALUES (?, ?, ?, 0)"
        await store.turns._writer.call("worker", lambda db: db.executemany(insert, rows), locks=ALONE)
        assert await take(store, "a", *ALL) == [*ALL]
        assert list((await store.maintenance.cluster()).takers) == ["a"]
        with pytest.raises(LostTurn):
            await answer(store, turn)
        again = await claim(store)
        assert (again.id, again.fence) == (turn.id, turn.fence + 1)
        assert await answer(store, again)

    async def test_only_what_a_dead_owner_had_is_recovered(self, store: Queue):
        """Turns and sends of its account, which were in flight alone; others keep theirs, and are no suspects."""
        mine, theirs = SessionKey("matrix", "!mine"), SessionKey("email", "theirs")
        await begin(store, "a", "b")
        assert (await take(store, "a", "matrix"), await take(store, "b", "email")) == (["matrix"], ["email"])
        turns = []
        for session in (mine, theirs):
            await accept(store, f"a-{session.channel}", session=session)
            [sent] = await store.outbox.post([out("1", session=session)])
            [doubtful] = await store.outbox.post([out("2", session=SessionKey(session.channel, "other"))])
            await store.outbox.sending(sent)
            await store.outbox.sending(doubtful)
            await store.outbox.uncertain(doubtful)
            await store.outbox.sending(doubtful)
            turns.append((await claim(store, session), sent, doubtful))
        await store.maintenance.release_lease(f"{PROCESS}a", holder="a")
        assert await store.maintenance.suspects() == []
        assert await take(store, "b", "matrix") == ["matrix"]
        for (_, sent, doubtful), pending_now, doubtful_now in zip(
            turns,
            (OutboxState.PENDING, OutboxState.SENDING),
            (OutboxState.UNCERTAIN, OutboxState.SENDING),
            strict=True,
        ):
            rows = [await store.outbox.row(row.id) for row in (sent, doubtful)]
            assert [row.state for row in rows if row is not None] == [pending_now, doubtful_now]
        suspects = await store.maintenance.suspects()
        assert {(one.session.channel, one.record.deaths) for one in suspects} == {("matrix", 1)}
        with pytest.raises(LostTurn):
            await answer(store, turns[0][0])
        assert await answer(store, turns[1][0])  # its owner lives
        assert [session for session, _ in await store.turns.open_sessions()] == [mine]

    async def test_what_goes_out_belongs_to_the_account_by_which_it_does(self, store: Queue):
        """In whichever session it was thought of, and if it is spoken first; whoever has the rest touches none of it."""
        await begin(store, "a", "b")
        await take(store, "a", "matrix")
        rows = await store.outbox.post(
            [NewOutbound(name, BOT, session, "hi") for name, session in (("speech", ROOM), ("matrix", MAIL))]
        )
        for row in rows:
            await store.outbox.sending(row)

        async def states() -> set[OutboxState]:
            return {found.state for row in rows if (found := await store.outbox.row(row.id))}

        await take(store, "b", REST, "email")
        assert await states() == {OutboxState.SENDING}
        await store.maintenance.release_lease(f"{PROCESS}a", holder="a")
        await take(store, "b", "matrix")
        assert await states() == {OutboxState.PENDING}

    async def test_turns_in_a_conversation_of_no_account_go_with_the_rest(self, store: Queue):
        """As the one that all private conversations of the owner are; its messages came by some account."""
        await begin(store, "a", "b")
        await take(store, "a", "matrix")
        await take(store, "b", REST)
        await accept(store, "shared")
        [row] = await store.inbox.rows()
        await store.inbox.work_in({row.id: SHARED})
        await claim(store, SHARED)
        await store.maintenance.release_lease(f"{PROCESS}a", holder="a")
        await take(store, "b", "matrix")
        assert [one.state for one in await store.inbox.rows()] == [InboxState.RUNNING]
        await store.maintenance.release_lease(f"{PROCESS}b", holder="b")
        await begin(store, "c")
        await take(store, "c", REST)
        assert [one.state for one in await store.inbox.rows()] == [InboxState.READY]

    async def test_of_a_process_that_ends_in_order_nothing_is_left(self, store: Queue):
        await begin(store, "a", "b")
        await take(store, "a", *ALL)
        await store.maintenance.release_lease(f"{PROCESS}a", holder="a")
        found = await store.maintenance.cluster()
        assert (list(found.processes), found.owners) == (["b"], {})
        assert await take(store, "b", *ALL) == [*ALL]

    async def test_whoever_needs_everything_is_alone(self, store: Queue, clock: ManualClock):
        """No process lives meanwhile and none begins; what is over ends for good."""
        maintenance = store.maintenance
        await begin(store, "a")
        assert await maintenance.lease(EVERYTHING, holder="forget", ttl_s=30) is None
        assert (
            await maintenance.lease("attachments", holder="forget", ttl_s=30) == 1
        )  # that is another matter
        await self.lease_time_passes(store, clock, 31)
        fence = await maintenance.lease(EVERYTHING, holder="forget", ttl_s=30)
        assert fence is not None
        assert not await maintenance.renew_lease(f"{PROCESS}a", holder="a", fence=1, ttl_s=30)
        assert await maintenance.lease(f"{PROCESS}b", holder="b", ttl_s=30) is None
        await self.lease_time_passes(store, clock, 31)
        await begin(store, "b")
        assert not await maintenance.renew_lease(EVERYTHING, holder="forget", fence=fence, ttl_s=30)

    async def test_a_process_that_is_known_to_be_dead_is_not_waited_for(self, store: Queue):
        """The next one in its home has its accounts at once, and a command there works at once."""
        maintenance = store.maintenance
        await begin(store, "a", "c")
        await take(store, "a", *ALL)
        assert await maintenance.lease(f"{PROCESS}b", holder="b", ttl_s=30, instead_of=["a"]) == 1
        assert await take(store, "b", *ALL) == [*ALL]
        assert not await maintenance.renew_lease(f"{PROCESS}a", holder="a", fence=1, ttl_s=30)
        assert list((await maintenance.cluster()).processes) == ["b", "c"]
        assert await maintenance.lease(EVERYTHING, holder="d", ttl_s=30, instead_of=["b"]) is None
        assert await maintenance.lease(EVERYTHING, holder="d", ttl_s=30, instead_of=["b", "c"]) is not None
