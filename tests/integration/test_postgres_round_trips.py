"""How often a message goes to the server and back: each time is a third of a millisecond in a real network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import psycopg
import pytest

from gateway.queue.postgres.store import PostgresQueue
from gateway.queue.sql.base import journal_lines
from gateway.queue.wakeups import Wakeups
from tests.clock import ManualClock
from tests.contract.queue_data import accept, claim, reply
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
ROUND_TRIPS = {"accept": 5, "claim": 5, "complete": 5, "next_sends": 3, "sending": 3, "sent": 8}


async def test_a_message_takes_few_round_trips(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    """Statements are counted where they are sent; many of one text are one."""
    count = 0
    execute, executemany = psycopg.Connection.execute, psycopg.Cursor.executemany

    def one(*given, **more):
        nonlocal count
        count += 1
        return execute(*given, **more)

    def many(*given, **more):
        nonlocal count
        count += 1
        return executemany(*given, **more)

    url = postgres.with_tables()
    monkeypatch.setattr(psycopg.Connection, "execute", one)
    monkeypatch.setattr(psycopg.Cursor, "executemany", many)
    found: dict[str, int] = {}
    clock, wakeups = ManualClock(), Wakeups()
    async with await PostgresQueue.open(url, clock=clock, wakeups=wakeups, journal=journal_lines) as store:

        async def counted(name: str, call: Callable[[], Awaitable[object]]) -> object:
            nonlocal count
            count = 0
            done = await call()
            found[name] = count
            return done

        for number in range(10):  # the first ones connect, too
            await counted("accept", lambda number=number: accept(store, f"m{number}"))
            turn = await counted("claim", lambda: claim(store))
            [row] = await counted("complete", lambda turn=turn: store.turns.complete(turn, reply("Hi")))
            to = (row.message.channel, row.message.account)
            await counted("next_sends", lambda to=to: store.outbox.next_sends(*to))
            await counted("sending", lambda row=row: store.outbox.sending(row))
            await counted("sent", lambda row=row, number=number: store.outbox.sent(row, f"id{number}"))
    assert found == ROUND_TRIPS
