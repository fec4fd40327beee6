"""Whether turns are worked on is told from everything that only looks like it. On virtual time."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from agent_core.messages import SessionKey
from gateway.store.background_job_rows import own_session
from gateway.store.stores import StoreUnavailable
from gateway.supervision.turn_watchdog import COMMAND_LIMIT_S, IDLE_S, TurnWatchdog, allowed_seconds
from gateway.turns.dispatcher import SessionDispatcher
from tests.clock import LoopClock

pytestmark = pytest.mark.virtual_time
A, B = SessionKey("test", "a"), SessionKey("test", "b")
ALLOWED_S = allowed_seconds(600)


class Scenario:
    """A dispatcher with runs that take as long as is said, and a store that has what is said."""

    def __init__(self):
        self.takes_s = 1.0
        self.due = []
        self.store_fails = False
        self.disk_blocked = False
        self.begun = 0
        self.dispatcher = SessionDispatcher(concurrency=2)
        self.watchdog = TurnWatchdog(
            self.dispatcher,
            self.open_sessions,
            allowed_s=ALLOWED_S,
            background_s=2 * ALLOWED_S,
            clock=LoopClock(),
            blocked=lambda: self.disk_blocked,
        )

    async def open_sessions(self):
        if self.store_fails:
            raise StoreUnavailable("the disk is full")
        return self.due

    async def run_session(self, session):
        self.begun += 1
        await anyio.sleep(self.takes_s)
        self.due = [entry for entry in self.due if entry[0] != session]


@asynccontextmanager
async def running(*, dispatching=True):
    world = Scenario()
    async with anyio.create_task_group() as tasks:
        if dispatching:
            tasks.start_soon(world.dispatcher.run, world.watchdog.guard(world.run_session))
        tasks.start_soon(world.watchdog.run)
        yield world
        tasks.cancel_scope.cancel()


async def test_long_legal_turns_are_no_alarm():
    """Turns that take all of their limit, one after the other for hours, while more wait: all is well."""
    async with running() as world:
        world.takes_s = 600
        for hour in range(4):
            for number in range(12):
                world.dispatcher.wake(SessionKey("test", str(number)))
            world.due = [(SessionKey("test", str(number)), 0.0) for number in range(12)]
            await anyio.sleep(3600)
            assert world.watchdog.reason() is None, hour


async def test_a_turn_that_never_comes_back_is_told():
    """Not before the limit, and soon after it; nobody is named. Another one that ends in time is none."""
    async with running() as world:
        world.takes_s = 10 * ALLOWED_S
        world.dispatcher.wake(A)
        await anyio.sleep(ALLOWED_S - 1)
        assert world.watchdog.reason() is None
        await anyio.sleep(90)
        told = world.watchdog.reason()
        assert told is not None
        assert "a turn has been running" in told
        assert "test" not in told
        await anyio.sleep(10 * ALLOWED_S)
        assert world.watchdog.reason() is None


async def test_a_background_job_may_take_longer_and_is_told_as_well():
    """A person's turn in its place would be told by then: see above."""
    async with running() as world:
        world.takes_s = 10 * ALLOWED_S
        world.dispatcher.wake(own_session(A, "abc234"))
        await anyio.sleep(1.5 * ALLOWED_S)
        assert world.watchdog.reason() is None
        await anyio.sleep(ALLOWED_S)
        assert "a turn has been running" in world.watchdog.reason()


async def test_a_command_that_never_comes_back_is_told():
    """
    Beside the turns, and much sooner than a turn; one of the same session that is in order goes on as it may.
    """
    async with running() as world:
        world.takes_s = 600
        world.dispatcher.wake(A)
        beside = SessionDispatcher(concurrency=2)

        async def hangs(session):
            await anyio.sleep(10 * COMMAND_LIMIT_S if session == A else 1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beside.run, world.watchdog.watch(hangs))
            beside.wake(B)
            beside.wake(A)
            await anyio.sleep(COMMAND_LIMIT_S - 1)
            assert world.watchdog.reason() is None
            await anyio.sleep(90)
            assert "a command has been running" in (world.watchdog.reason() or "")
            await anyio.sleep(10 * COMMAND_LIMIT_S)
            assert world.watchdog.reason() is None
            tasks.cancel_scope.cancel()


async def test_a_dispatcher_that_does_not_move_is_told():
    """Work is due, places are free, and no run begins."""
    async with running(dispatching=False) as world:
        world.due = [(A, 0.0)]
        await anyio.sleep(IDLE_S - 60)
        assert world.watchdog.reason() is None
        await anyio.sleep(120)
        assert "no turn begins" in (world.watchdog.reason() or "")


async def test_nothing_to_do_is_no_alarm():
    """Neither without any work, nor while all of it is due only later."""
    async with running(dispatching=False) as world:
        await anyio.sleep(7_200)
        assert world.watchdog.reason() is None
        world.due = [(A, 3600.0)]
        await anyio.sleep(7_200)
        assert world.watchdog.reason() is None


async def test_a_lost_wake_up_is_made_good():
    """What is due in the store and was forgotten in memory runs after the next look."""
    async with running() as world:
        await anyio.sleep(10)
        world.due = [(B, 0.0)]
        await anyio.sleep(120)
        assert (world.begun, world.due) == (1, [])
        assert world.watchdog.reason() is None


async def test_sessions_of_a_channel_that_is_off_are_no_alarm():
    """They stay due for ever, and their runs end at once: that is movement enough."""
    async with running() as world:
        world.due = [(A, 0.0)]

        async def ends_at_once(_session):
            world.begun += 1

        world.run_session = ends_at_once
        await anyio.sleep(7_200)
        assert world.watchdog.reason() is None


async def test_a_blocked_disk_is_no_alarm():
    """Turns wait for the disk as long as it takes; what they waited is not counted."""
    async with running() as world:
        world.takes_s = 20 * ALLOWED_S
        world.disk_blocked = True
        world.dispatcher.wake(A)
        world.due = [(B, 0.0)]
        await anyio.sleep(10 * ALLOWED_S)
        assert world.watchdog.reason() is None
        world.disk_blocked = False
        await anyio.sleep(ALLOWED_S - 60)
        assert world.watchdog.reason() is None
        await anyio.sleep(180)
        assert "a turn has been running" in (world.watchdog.reason() or "")


async def test_a_store_that_cannot_be_read_is_no_alarm():
    """Nobody knows whether anything is due."""
    async with running(dispatching=False) as world:
        world.due, world.store_fails = [(A, 0.0)], True
        await anyio.sleep(7_200)
        assert world.watchdog.reason() is None


async def test_a_drain_is_no_alarm():
    """While it stops nothing has to begin."""
    async with running() as world:
        world.due = [(A, 0.0)]
        world.dispatcher.stop()
        world.watchdog.stop()
        await anyio.sleep(3600)
        assert world.watchdog.reason() is None


async def test_the_watch_is_watched():
    """When nobody looks any more, that is told as well."""
    world = Scenario()
    await world.watchdog.check_once()
    assert world.watchdog.reason() is None
    await anyio.sleep(3600)
    assert world.watchdog.reason() == "the turn watchdog has stopped"
