"""One budget, from which several processes spend: their calls in flight see each other, in a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from agent_core.errors import BudgetSpent, ModelUnavailable
from agent_core.models import ModelChunk, Purpose
from gateway.budget.metering import Metering
from gateway.budget.policy import Amount
from gateway.queue.postgres.store import PostgresQueue
from gateway.queue.sql.base import journal_lines
from gateway.queue.sql.cluster import PROCESS
from gateway.queue.stores import Completion
from tests.clock import ManualClock
from tests.contract.queue_data import ROOM, accept, claim, out
from tests.doubles.budget import ASKED, Costly, limits, say
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
DAY = "2026-01-01"


class _Broken(Costly):
    """Fails before anything came of it."""

    async def _answer(self) -> AsyncIterator[ModelChunk]:
        raise ModelUnavailable("away")
        yield ""


@asynccontextmanager
async def processes(url: str, *holders: str) -> AsyncIterator[list[PostgresQueue]]:
    """A queue for each process, which holds its lease."""
    queues = [await PostgresQueue.open(url, clock=ManualClock(), journal=journal_lines) for _ in holders]
    try:
        for queue, holder in zip(queues, holders, strict=True):
            await queue.maintenance.lease(f"{PROCESS}{holder}", holder=holder, ttl_s=60)
        yield queues
    finally:
        for queue in queues:
            await queue.aclose()


def metering(queue: PostgresQueue, holder: str, tokens: int, *, others: bool = True) -> Metering:
    calls = queue.calls_in_flight(holder, lambda: others)
    return Metering(queue, queue.usage, limits(tokens), ManualClock(), calls)


async def in_flight(queue: PostgresQueue) -> int:
    query = "SELECT COUNT(*) FROM state WHERE topic LIKE 'call:%'"
    return int(await queue.database.reader.call("count", lambda db: db.execute(query).fetchone()[0]))


async def spent_by_two(url: str, *, others: bool) -> tuple[int, int]:
    """Eight runs in each of two processes, with budget for three calls: calls and tokens of the day."""
    gate = anyio.Event()
    llm = Costly(gate=gate)
    async with processes(url, "host/1/a", "host/2/b") as queues:

        async def one(spending: Metering) -> None:
            with pytest.raises(BudgetSpent):
                while True:
                    await say(llm, spending)

        async with anyio.create_task_group() as tasks:
            for queue, holder in zip(queues, ("host/1/a", "host/2/b"), strict=True):
                spending = metering(queue, holder, 3_000, others=others)
                for _ in range(8):
                    tasks.start_soon(one, spending)
            while llm.calls < 3:
                await anyio.sleep(0.02)
            await anyio.sleep(0.5)
            gate.set()
        assert await in_flight(queues[0]) == 0
        return llm.calls, Amount.of(await queues[0].usage.spent_on(DAY)).tokens


async def test_processes_go_over_by_less_than_a_call(postgres: PostgresServer):
    calls, tokens = await spent_by_two(postgres.with_tables(), others=True)
    assert calls == 3
    assert 3_000 <= tokens < 3_000 + 1_000


async def test_that_check_notices_processes_that_do_not_see_each_other(postgres: PostgresServer):
    """Control: each knows by itself alone what it has in flight."""
    calls, _ = await spent_by_two(postgres.with_tables(), others=False)
    assert calls > 3


async def test_a_call_counts_until_its_cost_is_in_the_store(postgres: PostgresServer):
    """As reserved for others, once for itself; with its answer, or as soon as it has failed, it is gone."""
    async with processes(postgres.with_tables(), "host/1/a", "host/2/b") as (one, other):
        mine, theirs = metering(one, "host/1/a", 100_000), metering(other, "host/2/b", 100_000)
        meter = mine.meter(ROOM, Purpose.CHAT, owner=True)
        await meter.enter(5_000)
        assert (await mine.spent()).tokens == (await theirs.spent()).tokens == 6_000
        await meter.enter(5_000)  # it is reserved already
        assert await in_flight(one) == 1
        llm = Costly()
        async for _ in await meter.over(llm).chat(ASKED, []):
            pass
        assert (await theirs.spent()).tokens == 6_000
        assert (await mine.spent()).tokens == 1_000
        await accept(one, "a")
        turn = await claim(one)
        done = Completion(outbound=[out("hello")], usage=meter.due(), call=meter.settled_call)
        await one.turns.complete(turn, done)
        meter.committed()
        assert (await in_flight(one), (await theirs.spent()).tokens) == (0, 1_000)
        with pytest.raises(ModelUnavailable):
            await say(_Broken(), mine)
        assert (await in_flight(one), (await theirs.spent()).tokens) == (0, 1_000)
        await meter.end()


async def test_what_is_reserved_for_the_next_call_outlives_the_record_of_the_last(postgres: PostgresServer):
    async with processes(postgres.with_tables(), "host/1/a", "host/2/b") as (one, other):
        mine, theirs = metering(one, "host/1/a", 100_000), metering(other, "host/2/b", 100_000)
        meter = mine.meter(ROOM, Purpose.CHAT, owner=True)
        async for _ in await meter.over(Costly()).chat(ASKED, []):
            pass
        assert await meter.last(2_000, begun=True) == ""
        await meter.record()
        assert (await theirs.spent()).tokens == 1_000 + 3_000
        await meter.end()
        assert (await in_flight(one), (await theirs.spent()).tokens) == (0, 1_000)


async def test_what_a_dead_process_had_in_flight_ends_with_it(postgres: PostgresServer):
    async with processes(postgres.with_tables(), "host/1/a", "host/2/b", "host/3/c") as (one, other, third):
        theirs = metering(other, "host/2/b", 100_000)
        for queue, holder in ((one, "host/1/a"), (third, "host/3/c")):
            await metering(queue, holder, 100_000).meter(ROOM, Purpose.CHAT, owner=True).enter(5_000)
        assert (await theirs.spent()).tokens == 12_000
        await other.maintenance.release_lease(f"{PROCESS}host/1/a", holder="host/1/a")
        assert (await in_flight(other), (await theirs.spent()).tokens) == (1, 6_000)
        await other.maintenance.begin_worker("host/3/c")
        over = "UPDATE leases SET expires_at = 0 WHERE name = ?"
        await other.writer.call(
            "over", lambda db: db.execute(over, (f"{PROCESS}host/3/c",)) and None, locks=()
        )
        await other.maintenance.end_workers()
        assert (await in_flight(other), (await theirs.spent()).tokens) == (0, 0)
