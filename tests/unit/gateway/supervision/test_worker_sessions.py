"""Which sessions a worker takes. On virtual time; what may be claimed at all is the queue's."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agent_core.messages import SessionKey
from gateway.queue.model import Cluster, Stopped
from gateway.queue.sql.cluster import FREED
from gateway.queue.stores import StoreUnavailable
from gateway.queue.wakeups import Wakeups, Work
from gateway.supervision.other_processes import OtherProcesses
from gateway.supervision.signals import WORK, Signals
from gateway.supervision.worker_sessions import WorkerSessions

SIGNALS = Signals("a secret of the database")
WAITING = [(SessionKey("matrix", f"!{number}:hs"), False) for number in range(40)]


@pytest.fixture
def anyio_backend(virtual_backend):
    return virtual_backend


class Lease:
    """That of a process."""

    def __init__(self, holder: str) -> None:
        self.holder = holder


class Server:
    """Says who lives."""

    def __init__(self, *workers: str) -> None:
        self.workers = list(workers)
        self.away = False

    async def cluster(self) -> Cluster:
        return Cluster(["d/1/x", *self.workers], {"matrix": "d/1/x", "": "d/1/x"}, workers=self.workers)

    async def stop_worker(self, holder: str) -> None:
        self.workers.remove(holder)
        if self.away:
            raise StoreUnavailable("away")


class Told:
    """Notes what others are told."""

    listening = True

    def __init__(self) -> None:
        self.texts: list[str] = []

    def tell(self, name: str) -> None:
        self.texts.append(name)


async def worker(server: Server, name: str, places: int = 100, told: Told | None = None) -> WorkerSessions:
    maintenance: Any = server
    lease: Any = Lease(name)
    made = WorkerSessions(
        maintenance, lease, {"matrix"}, places=places, look_every_s=2.0, others=OtherProcesses(told, SIGNALS)
    )
    await made.look()
    return made


async def test_workers_do_not_meet_and_leave_nothing() -> None:
    """Each session is taken by one of two at first; what that one has not begun, the other takes two seconds later."""
    server = Server("a", "b")
    one, two = await worker(server, "a"), await worker(server, "b")
    first = [{session for session, _ in each.chosen(WAITING)} for each in (one, two)]
    assert first[0] | first[1] == {session for session, _ in WAITING} and not first[0] & first[1]
    left = [each for each in WAITING if each[0] in first[0]]  # `a` died with them
    assert two.chosen(left) == []
    await anyio.sleep(2.0)
    assert {session for session, _ in two.chosen(left)} == first[0]


async def test_a_worker_takes_what_it_has_places_for_and_as_many_again() -> None:
    """And more as soon as something has ended; what is in hand is not taken twice."""
    only = await worker(Server("a"), "a", places=2)
    assert only.chosen(WAITING) == WAITING[:4]
    assert only.chosen(WAITING) == []

    async def at_once(_: SessionKey) -> None: ...

    await only.over(at_once)(WAITING[1][0])
    assert only.chosen(WAITING[1:]) == WAITING[1:2]


async def test_what_is_left_goes_to_one_after_the_other() -> None:
    """The second worker begins two seconds later, the third one four, so that they do not meet then either."""
    names = ["a", "b", "c"]
    server = Server(*names)
    workers = [await worker(server, name) for name in names]
    began: dict[str, list[float]] = {str(session): [] for session, _ in WAITING}
    start = anyio.current_time()
    for _ in range(5):
        for one in workers:
            for session, _ in one.chosen(WAITING):
                began[str(session)].append(anyio.current_time() - start)
        await anyio.sleep(1.0)
    assert list(began.values()) == [[0.0, 2.0, 4.0]] * len(WAITING)


async def test_a_worker_that_has_enough_in_hand_does_not_look() -> None:
    """It looks once there is room for some, also for what it was told of meanwhile."""
    only, asked = await worker(Server("a"), "a", places=4), 0

    async def others(_: object) -> None:
        nonlocal asked
        asked += 1

    async def taken(_: object) -> None: ...

    async def at_once(_: SessionKey) -> None: ...

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: only.run((), (), taken=taken, others=others))
        await anyio.sleep(0.5)
        in_hand = [session for session, _ in only.chosen(WAITING[:8])]
        for session, wanted in zip(in_hand[:2], (0, 1), strict=True):
            only.hear(WORK)
            await anyio.sleep(0.2)
            assert asked == 0
            await only.over(at_once)(session)
            await anyio.sleep(0.2)
            assert asked == wanted
        tasks.cancel_scope.cancel()


async def test_what_overtakes_is_for_the_accounts_daemon() -> None:
    """A command is never a worker's."""
    only = await worker(Server("a"), "a")
    assert only.chosen([(WAITING[0][0], True)]) == []


async def test_the_accounts_daemon_is_told_what_a_worker_commits() -> None:
    """Answers, turns that were given back, histories that have grown, that somebody is at work."""
    told, wakeups, session = Told(), Wakeups(), WAITING[0][0]
    only = await worker(Server("a"), "a", told=told)
    only.tell_of(wakeups)
    wakeups.outbox.fire("matrix")
    wakeups.session.fire(Work(session, 0.0, "matrix", "@ann:hs", True, "message", False))
    wakeups.history.fire(session)
    assert told.texts[:2] == ["matrix", "matrix"]
    assert [SIGNALS.read(text) for text in told.texts[2:]] == [("grown", session)]


async def test_a_worker_looks_when_it_is_told_to_and_by_itself() -> None:
    """At once when it is called; every two seconds it sees who lives; it ends only with its process."""
    told = Told()
    only, asked = await worker(Server("a"), "a", told=told), []

    async def others(_: object) -> None:
        asked.append(anyio.current_time())

    async def taken(_: object) -> None: ...

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: only.run((), (), taken=taken, others=others))
        await anyio.sleep(0.5)
        began = anyio.current_time()
        for text in (
            WORK,
            "matrix",
            "another",
            SIGNALS.stopped(Stopped(WAITING[0][0], "1-a", "left")),
        ):
            only.hear(text)
            await anyio.sleep(0.2)
        assert [round(at - began, 1) for at in asked] == [0.0, 0.2]
        await anyio.sleep(25)
        assert 1 <= len(asked) - 2 <= 3  # rarely, while it hears
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("away", [False, True])
async def test_a_worker_that_ends_has_nothing_left_to_it(away: bool) -> None:
    """At once, whatever it has in hand still; also while the database is away it ends."""
    told, server = Told(), Server("a")
    server.away = away
    only, asked = await worker(server, "a", told=told), []

    async def others(_: object) -> None:
        asked.append(anyio.current_time())

    async def taken(_: object) -> None: ...

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: only.run((), (), taken=taken, others=others))
        await anyio.sleep(0.5)
        only.stop()
        await anyio.sleep(0.2)
        assert server.workers == [] and told.texts == [FREED] and not asked
    assert only.chosen(WAITING[:1])  # the group has ended by itself
