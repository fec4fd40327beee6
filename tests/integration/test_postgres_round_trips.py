"""How often a message goes to the server and back: each time is a third of a millisecond in a real network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.sql.engine import journal_lines
from gateway.store.wakeups import Wakeups
from tests.clock import ManualClock
from tests.contract.queue_data import accept, claim, reply
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration]
ROUND_TRIPS = {"accept": 5, "claim": 5, "complete": 5, "next_sends": 3, "sending": 3, "sent": 8}


class _Counted:
    """Counts statements where they are sent; many of one text are one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: dict[str, int] = {}
        self._count = 0
        execute, executemany = psycopg.Connection.execute, psycopg.Cursor.executemany

        def one(*given: Any, **more: Any) -> Any:
            self._count += 1
            return execute(*given, **more)

        def many(*given: Any, **more: Any) -> Any:
            self._count += 1
            return executemany(*given, **more)

        monkeypatch.setattr(psycopg.Connection, "execute", one)
        monkeypatch.setattr(psycopg.Cursor, "executemany", many)

    async def __call__(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self._count = 0
        done = await call()
        self.found[name] = self._count
        return done


async def test_a_message_takes_few_round_trips(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    url, clock, wakeups = postgres.with_tables(), ManualClock(), Wakeups()
    counted = _Counted(monkeypatch)
    async with await PostgresQueue.open(url, clock=clock, wakeups=wakeups, journal=journal_lines) as store:
        for number in range(10):  # the first ones connect, too
            await counted("accept", lambda number=number: accept(store, f"m{number}"))
            turn = await counted("claim", lambda: claim(store))
            [row] = await counted("complete", lambda turn=turn: store.turns.complete(turn, reply("Hi")))
            to = (row.message.channel, row.message.account)
            await counted("next_sends", lambda to=to: store.outbox.next_sends(*to))
            await counted("sending", lambda row=row: store.outbox.sending(row))
            await counted("sent", lambda row=row, number=number: store.outbox.record_send(row, f"id{number}"))
    assert counted.found == ROUND_TRIPS
