"""Calls of the thread that writes: several at once, and what SQLite says of its settings."""

from __future__ import annotations

import anyio

from gateway.store.sqlite.sqlite_queue import SqliteQueue


async def pragma(store: SqliteQueue, text: str):
    return await store.database.writer.call("pragma", lambda db: db.execute(f"PRAGMA {text}").fetchone())


async def together(*calls):
    """Run calls so that they reach the writer in one batch; results or exceptions, in order."""
    outcomes: list[object] = [None] * len(calls)

    async def run(number, call):
        try:
            outcomes[number] = await call
        except Exception as error:
            outcomes[number] = error

    async with anyio.create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(run, number, call)
    return outcomes
