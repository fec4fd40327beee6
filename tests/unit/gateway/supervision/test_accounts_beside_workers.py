"""What a process with accounts does about workers: what it leaves them and tells them, and what it does when they are gone."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agent_core.messages import SessionKey
from gateway.queue.model import Stopped
from gateway.queue.shared import SHARED
from gateway.queue.sql import cluster
from gateway.queue.sql.cluster import REST
from gateway.queue.wakeups import Wakeups, Work
from gateway.supervision.accounts import Accounts
from gateway.supervision.other_processes import OtherProcesses
from gateway.supervision.signals import WORK, Signals
from tests.unit.gateway.supervision.test_accounts import NAMES, Flow, Line, Server, now

ROOM = SessionKey("matrix", "!room:hs.test")
SIGNALS = Signals("a secret of the database")


@pytest.fixture
def anyio_backend(virtual_backend):
    return virtual_backend


class WithWorkers(Server):
    """A database with workers."""

    def begin_worker(self, holder: str, ttl_s: float = 1e6) -> None:
        self.begin(holder, ttl_s)
        cluster.begin_worker(self.db, holder)

    async def end_workers(self) -> list[SessionKey]:
        cluster.end_workers(self.db, now(), now())
        return [ROOM]


async def nowhere() -> str:
    """No channel is the one by which the owner is written to."""
    return ""


class World:
    """A process that has all accounts, and what it leaves, tells and takes up."""

    def __init__(self, server: WithWorkers, *, leaves: bool = True) -> None:
        server.begin("one")
        self.holder, self.line, self.left, self.new = "one", Line(), list[bool](), list[set[str]]()
        lease: Any = self
        store: Any = server
        self.accounts = Accounts(
            store,
            lease,
            NAMES,
            look_every_s=2.0,
            drain_s=20.0,
            owners=nowhere,
            others=OtherProcesses(self.line, SIGNALS),
            leave=self.left.append if leaves else None,
        )
        self.wakeups = Wakeups()
        self.accounts.tell_of(self.wakeups)

    async def taken(self, new) -> None:
        self.new.append(set(new))

    async def others(self, _: object) -> None: ...

    async def run(self) -> None:
        await self.accounts.run([Flow()], list(NAMES), taken=self.taken, others=self.others)


def work(session: SessionKey = ROOM, after_s: float = 0.0, kind: str = "message") -> Work:
    return Work(session, after_s, "matrix", "@ann:hs.test", True, kind, True)


async def test_what_workers_can_do_is_left_while_one_lives() -> None:
    """And taken up, as if the accounts were new, when the last one has gone: in order, or at the end of its lease."""
    server = WithWorkers()
    world = World(server)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.run)
        await anyio.sleep(2.5)
        assert world.left == [] and not world.accounts.leaves(work())
        server.begin_worker("w1")
        server.begin_worker("w2", ttl_s=10)
        await anyio.sleep(2.5)
        assert world.left == [True] and world.accounts.leaves(work())
        server.end("w1")
        await anyio.sleep(2.5)
        assert world.new[1:] == [{*NAMES, REST}]  # a time that only that one knew
        assert world.left == [True]
        await anyio.sleep(8)
        assert world.left == [True, False] and not world.accounts.leaves(work())
        assert world.new[2:] == [{*NAMES, REST}]
        assert not world.accounts.found.workers
        tasks.cancel_scope.cancel()


async def test_nothing_is_left_to_a_worker_that_begins_nothing_more() -> None:
    """It has said so, and ends only when what it has in hand is done."""
    server = WithWorkers()
    world = World(server)
    server.begin_worker("w")
    await world.accounts.look()
    assert world.accounts.leaves(work())
    cluster.stop_worker(server.db, "w")
    await world.accounts.look()
    assert "w" in world.accounts.found.processes and not world.accounts.leaves(work())
    assert world.left == [True, False]


async def test_what_no_worker_can_do_is_not_left() -> None:
    """Commands, reactions, jobs, what is due later, the shared conversation, channels that are no account."""
    server = WithWorkers()
    world = World(server)
    server.begin_worker("w")
    await world.accounts.look()
    assert world.accounts.leaves(work())
    for other in (
        work(kind="alone"), work(kind="reaction"), work(kind="job"), work(kind="tick"), work(after_s=1.0),
        work(SHARED), work(SessionKey("terminal", "main")),
    ):  # fmt: skip
        assert not world.accounts.leaves(other)


async def test_a_process_in_the_role_of_all_leaves_nothing_and_offers_what_it_has_no_place_for() -> None:
    """Nobody is told anything where no worker lives: a cluster without workers costs nothing more."""
    server = WithWorkers()
    world = World(server, leaves=False)
    stop = Stopped(ROOM, "1-a", "withdrawn")
    await world.accounts.look()
    world.accounts.offer()
    world.wakeups.stopped.fire(stop)
    assert world.line.told == []
    server.begin_worker("w")
    await world.accounts.look()
    assert not world.accounts.leaves(work())
    world.accounts.offer()
    world.wakeups.stopped.fire(stop)
    assert world.line.told[0] == WORK
    assert [SIGNALS.read(text) for text in world.line.told[1:]] == [stop]
