"""Processes with clocks minutes apart on one database: what one has put back is due in time for another."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.stores import NewOutbound
from gateway.system.clock import SystemClock
from tests.contract.queue_data import BOT, ROOM, accept, claim
from tests.kill.late_daemon import ShiftedClock
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration]
DELAY_S = 300.0
NEAR_S = 120.0


class StubbornClock(ShiftedClock):
    """The control: it follows nobody."""

    def follow(self, ask: Callable[[], float]) -> float:
        """Stay as it is."""
        return ask()


async def waits(url: str, clock: SystemClock) -> tuple[float | None, float | None]:
    """In how many seconds another process finds a turn and a send due that were put off by one with this clock."""
    async with (
        await PostgresQueue.open(url, clock=clock) as wrong,
        await PostgresQueue.open(url, clock=SystemClock()) as right,
    ):
        await accept(wrong, "$one")
        await wrong.turns.retry(await claim(wrong), "not now", delay_s=DELAY_S, deferral=True)
        [row] = await wrong.outbox.post([NewOutbound(ROOM.channel, BOT, ROOM, "hello")])
        await wrong.outbox.sending(row)
        await wrong.outbox.record_failure(row, "not now", delay_s=DELAY_S)
        return (
            await right.turns.due_in(ROOM),
            await right.outbox.next_send_in(ROOM.channel, BOT),
        )


@pytest.mark.parametrize("ahead_s", [-600.0, 0.0, 600.0])
async def test_a_wait_is_as_long_for_a_process_whose_clock_says_another_time(
    postgres: PostgresServer, ahead_s: float
):
    turn_s, send_s = await waits(postgres.with_tables(), ShiftedClock(ahead_s))
    assert turn_s == pytest.approx(DELAY_S, abs=NEAR_S)
    assert send_s == pytest.approx(DELAY_S, abs=NEAR_S)


@pytest.mark.parametrize(("ahead_s", "wait_s"), [(-600.0, 0.0), (600.0, 900.0)])
async def test_without_the_clock_of_the_server_it_is_another(
    postgres: PostgresServer, ahead_s: float, wait_s: float
):
    turn_s, send_s = await waits(postgres.with_tables(), StubbornClock(ahead_s))
    assert turn_s == pytest.approx(wait_s, abs=NEAR_S)
    assert send_s == pytest.approx(wait_s, abs=NEAR_S)


@pytest.mark.parametrize("by_s", [-600.0, 600.0])
async def test_a_clock_that_jumps_is_right_again_with_the_next_renewal(postgres: PostgresServer, by_s: float):
    """Of the lease. The control is the time before it."""
    clock = ShiftedClock(0.0)

    def wrong_by_s() -> float:
        return (clock.now() - datetime.now(UTC)).total_seconds()

    async with await PostgresQueue.open(postgres.with_tables(), clock=clock) as queue:
        clock._ahead = timedelta(seconds=by_s)
        assert wrong_by_s() == pytest.approx(by_s, abs=2.0)
        await queue.maintenance.renew_lease("daemon", holder="nobody", fence=1, ttl_s=30)
        assert wrong_by_s() == pytest.approx(0.0, abs=2.0)
