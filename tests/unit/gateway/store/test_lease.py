"""The lease on a database of several machines: kept, lost in time, and never given back to whoever slept. On virtual time."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time

import anyio
import pytest

from gateway.store.lease import DAEMON, Holders, LeaseKeeper, LeaseLost, LeaseTaken, unwrap_lost_lease
from gateway.store.sql import lease_rows as leases
from gateway.store.sql.tables import TABLES
from gateway.store.stores import Lease, StoreUnavailable
from gateway.system.process_tuning import WakingLoop, loop_for

pytestmark = pytest.mark.virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


class LeaseDatabase:
    """A database that can be away, or hang; its clock is the loop's."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.db.executescript(TABLES)
        self.away = self.hangs = False
        self.renewals = 0

    def __del__(self) -> None:
        self.db.close()

    async def _reach(self) -> None:
        if self.hangs:
            await anyio.sleep_forever()
        if self.away:
            raise StoreUnavailable("away")

    async def lease(self, name, *, holder, ttl_s, instead_of=()):
        await self._reach()
        return leases.lease(self.db, name, holder, ttl_s, now(), instead_of)

    async def renew_lease(self, name, *, holder, fence, ttl_s):
        await self._reach()
        self.renewals += 1
        return leases.renew_lease(self.db, name, holder, fence, ttl_s, now())

    def require_lease(self, name, *, holder, fence):
        """That nothing is written without it is the database's matter."""

    async def release_lease(self, name, *, holder):
        await self._reach()
        leases.release_lease(self.db, name, holder)

    async def leases(self):
        await self._reach()
        return [Lease(*row) for row in leases.leases(self.db, now())]


class Scenario:
    """Processes of several homes on one server."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.server = LeaseDatabase()
        self.slept_s = 0.0
        self.ended: list[int] = []

    def keeper(self, home: str) -> LeaseKeeper:
        return LeaseKeeper(
            self.server,
            "postgresql://host/db",
            Holders(self.folder / home / "state" / "lease-holders.json"),
            clock=lambda: now() + self.slept_s,
            end=self.ended.append,
        )

    async def is_free(self) -> bool:
        """Whether another machine could begin."""
        try:
            other = self.keeper("other")
            await other.take()
        except LeaseTaken:
            return False
        await other.release()
        return True


@pytest.fixture
def world(tmp_path):
    for home in ("one", "two", "other"):
        (tmp_path / home).mkdir()
    return Scenario(tmp_path)


async def test_it_is_kept_for_as_long_as_it_is_renewed_with_one_fence(world):
    one, two = world.keeper("one"), world.keeper("two")
    await one.take()
    [first] = await world.server.leases()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        for _ in range(40):
            await anyio.sleep(9)
            with pytest.raises(
                LeaseTaken, match=r"another squidbot works on postgresql://host/db, .*process \d+ on"
            ):
                await two.take()
        [held] = await world.server.leases()
        assert (held.name, held.holder, held.fence) == (DAEMON, first.holder, first.fence)
        assert world.server.renewals >= 30 and not world.ended
        await one.release()  # and `run` ends by itself
    await two.take()


@pytest.mark.parametrize("fault", ["away", "hangs"])
async def test_without_a_renewal_it_ends_before_another_can_begin(world, fault):
    """The server says no, or nothing at all."""
    one = world.keeper("one")
    await one.take()
    began = now()
    setattr(world.server, fault, True)
    with pytest.raises(LeaseLost, match=r"has not been reached for 20 seconds, .* so this one ends") as lost:
        await one.run()
    assert lost.value.exit_code == 75
    assert 20 <= now() - began < 21
    setattr(world.server, fault, False)
    assert not await world.is_free()
    await anyio.sleep(30)
    assert await world.is_free()  # the control: it would have been


async def test_an_outage_that_is_over_in_time_ends_nothing(world):
    one = world.keeper("one")
    await one.take()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        for _ in range(5):
            await anyio.sleep(10.5)
            world.server.away = True
            await anyio.sleep(8)
            world.server.away = False
            await anyio.sleep(2.5)
            assert not await world.is_free()
        await one.release()
    assert not world.ended


async def test_whoever_is_not_done_with_ending_is_ended(world):
    """Closing may take long; the process is gone before another one can begin."""
    one = world.keeper("one")
    await one.take()
    await one.begin()
    world.server.away = True
    await anyio.sleep(24.9)
    assert world.ended == []
    await anyio.sleep(0.2)
    assert world.ended == [75]
    world.server.away = False
    assert not await world.is_free()


async def test_whoever_slept_is_ended_before_it_does_anything(world, capsys):
    """By a clock that goes on meanwhile: the loop's own has moved on by a second."""
    one = world.keeper("one")
    await one.take()
    await one.begin()
    await anyio.sleep(1)
    one.check()
    one.confirm()
    world.slept_s = 60
    with pytest.raises(LeaseLost):
        one.confirm()
    one.check()
    assert world.ended == [75]
    assert "another squidbot may work on it now, so this one ends" in capsys.readouterr().err


async def test_who_has_given_it_back_may_sleep(world):
    one = world.keeper("one")
    await one.take()
    await one.release()
    world.slept_s = 60
    one.check()
    one.confirm()
    await anyio.sleep(60)
    assert not world.ended


async def test_a_lease_that_another_one_has_had_is_not_renewed(world):
    """Also when it is nobody's again: what was in hand has been taken up by the other."""
    one, two = world.keeper("one"), world.keeper("two")
    await one.take()
    world.server.db.execute("UPDATE leases SET expires_at = 0")
    await two.take()
    with pytest.raises(LeaseLost, match=r"another squidbot has taken over .*process \d+ on"):
        await one.run()
    await two.release()
    with pytest.raises(LeaseLost):
        await one.run()


async def test_the_next_start_in_the_same_home_does_not_wait(world):
    """The lock on the home tells that the one before is dead; its own fence is gone for good."""
    dead = world.keeper("one")
    await dead.take()
    [before] = await world.server.leases()
    for _ in range(3):
        await world.keeper("one").take()
    [after] = await world.server.leases()
    assert after.fence == before.fence + 3
    with pytest.raises(LeaseLost):
        await dead.run()


async def test_starts_that_never_got_it_do_not_forget_who_has_it(world):
    """A start while the server is away notes its name, and the one before keeps the lease."""
    await world.keeper("one").take()
    world.server.away = True
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await world.keeper("one").take()
    world.server.away = False
    await world.keeper("one").take()


@pytest.mark.parametrize("how", ["copied", "after a restart of the machine", "unreadable"])
async def test_another_place_waits(world, how, monkeypatch):
    """A copy of the home, or the same disk elsewhere, knows the name and must wait all the same."""
    await world.keeper("one").take()
    if how == "copied":
        shutil.rmtree(world.folder / "two")
        shutil.copytree(world.folder / "one", world.folder / "two")
        home = "two"
    else:
        home = "one"
        if how == "unreadable":
            (world.folder / "one" / "state" / "lease-holders.json").write_text("{")
        else:
            boot = world.folder / "boot"
            boot.write_text("another-boot")
            monkeypatch.setattr("gateway.store.lease._BOOT", boot)
    with pytest.raises(LeaseTaken):
        await world.keeper(home).take()
    await anyio.sleep(30)
    await world.keeper(home).take()


async def test_what_is_done_under_it_is_cancelled_when_it_is_lost(world):
    one, done = world.keeper("one"), []
    with pytest.raises(LeaseLost):
        async with one.hold():
            world.server.away = True
            await anyio.sleep(25)
            done.append("too late")
    assert not done
    world.server.away = False
    with pytest.raises(ValueError, match="its own"):
        async with world.keeper("one").hold():
            raise ValueError("its own")
    assert await world.is_free()


async def test_a_lost_lease_is_told_whatever_else_ended_with_it():
    with pytest.raises(LeaseLost):
        with unwrap_lost_lease():
            raise ExceptionGroup("", [ValueError(), ExceptionGroup("", [LeaseLost("why")])])
    with pytest.raises(ExceptionGroup):
        with unwrap_lost_lease():
            raise ExceptionGroup("", [ValueError()])


def test_the_loop_says_that_it_woke_before_it_runs_anything():
    """The control is a timer of its own, which comes after what was due before it."""
    order: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WakingLoop)
        loop.on_wake(lambda: order.append("look"))
        loop.call_later(0.02, order.append, "work")
        loop.call_later(0.03, order.append, "timer")
        time.sleep(0.05)
        await anyio.sleep(0.05)
        loop.on_wake(None)

    anyio.run(main, backend_options=loop_for("postgresql://host/db"))
    assert order.index("look") < order.index("work") < order.index("timer")
    assert loop_for(None) == {}


async def test_a_slow_start_is_no_reason_to_end(world):
    """Nothing is in hand before `begin`, which holds it anew; whoever has the database alone by then keeps it."""
    one, two = world.keeper("one"), world.keeper("two")
    await one.take()
    await anyio.sleep(100)
    one.check()
    assert world.ended == []
    await one.begin()
    assert one.age_s == 0
    with pytest.raises(LeaseTaken):
        await two.take()
    await anyio.sleep(100)
    assert world.ended == [75]

    late = world.keeper("late")
    await late.take()
    await anyio.sleep(100)
    await two.take()
    with pytest.raises(LeaseLost):
        await late.begin()


async def test_a_command_that_is_refused_names_the_daemon_and_says_what_helps(world):
    await world.server.lease(DAEMON, holder="one/11/a", ttl_s=30)
    with pytest.raises(LeaseTaken) as refused:
        await world.keeper("command").take()
    told = str(refused.value)
    assert "process 11 on one" in told
    assert told.endswith("on that machine, or stop squidbot on all machines first.")


async def test_a_standby_takes_the_lease_at_most_a_second_after_its_end(world):
    """After a kill when it has ended; at once after it was given back; the control is one that is renewed."""
    one, two, stop, standing_by = world.keeper("one"), world.keeper("two"), anyio.Event(), anyio.Event()
    await one.take()
    await one.begin()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(two.wait, stop, standing_by)
        tasks.start_soon(one.run)
        await anyio.sleep(100)
        assert standing_by.is_set() and not two.is_held
        tasks.cancel_scope.cancel()
    killed_at = now()
    one._deadline.cancel()  # what a kill does
    assert await two.wait(stop, standing_by)
    assert now() - killed_at <= 31
    given_back_at = now()
    await two.release()
    three = world.keeper("three")
    assert await three.wait(stop, standing_by)
    assert now() - given_back_at <= 1


async def test_a_standby_outlives_a_server_that_is_away_and_ends_when_it_is_told_to(world):
    one, stop = world.keeper("one"), anyio.Event()
    async with anyio.create_task_group() as tasks:
        world.server.away = True
        tasks.start_soon(one.wait, stop, anyio.Event())
        await anyio.sleep(100)
        world.server.away = False
        await anyio.sleep(2)
        assert one.is_held
    await world.keeper("one").take()
    two = world.keeper("two")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(two.wait, stop, anyio.Event())
        await anyio.sleep(10)
        stop.set()
    assert not two.is_held
