"""Opens the queue that the settings name: the file in the home folder, or a PostgreSQL database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.ports import Clock
from gateway.errors import ConfigInvalid
from gateway.store.copy_marker import StoreMoved
from gateway.store.lease import Holders, LeaseKeeper
from gateway.store.state_key import StateKey
from gateway.store.store_errors import StoreUnusable
from gateway.store.stores import MemoryInDatabase, Queue
from gateway.store.wakeups import Wakeups

if TYPE_CHECKING:
    from gateway.store.postgres.account_documents import AccountState

_NO_DRIVER = "gateway.store: PostgreSQL needs squidbot's extra 'postgres' (pip install '.[postgres]')"


@contextmanager
def open_postgres() -> Iterator[None]:
    """Report an unusable PostgreSQL database, or a missing driver, as ConfigInvalid."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise ConfigInvalid(_NO_DRIVER) from error
    except StoreUnusable as error:
        raise ConfigInvalid(str(error), **error.fields) from error


@contextmanager
def open_sqlite() -> Iterator[None]:
    """Report that the embedded database's content was moved, as ConfigInvalid."""
    try:
        yield
    except StoreMoved as error:
        raise ConfigInvalid(str(error), **error.fields) from error


async def opened_queue(
    file: Path,
    store: str | None,
    *,
    clock: Clock,
    durable: bool = True,
    zone: tzinfo | None = UTC,
    wakeups: Wakeups | None = None,
) -> Queue:
    """
    Open the queue.

    Args:
        store: The URL of a PostgreSQL database; None: the embedded queue.
        clock: The source of every time in the database.
        durable: Results survive a power cut; in PostgreSQL always.
        zone: The time zone of the days of usage.
        wakeups: The signals fired after each commit.

    Raises:
        StoreUnavailable: Not now.
        StoreUnusable: The file is damaged or too new.
        ConfigInvalid: Its content was moved, or the PostgreSQL database is unusable.
    """
    if store is None:
        from gateway.store.sqlite.sqlite_queue import SqliteQueue  # noqa: PLC0415 - one of the two is loaded

        with open_sqlite():
            return await SqliteQueue.open(
                file, clock=clock, synchronous="full" if durable else "normal", zone=zone, wakeups=wakeups
            )
    with open_postgres():
        from gateway.store.postgres.postgres_queue import PostgresQueue  # noqa: PLC0415 - as above

        return await PostgresQueue.open(store, clock=clock, zone=zone, wakeups=wakeups)


def memory_in_database(queue: Queue, *, vectors: bool = False) -> MemoryInDatabase | None:
    """Return the histories and memory in an opened queue's database; None: they are files of the home."""
    found: MemoryInDatabase | None = None
    if (beside := getattr(queue, "memory_in_database", None)) is not None:
        found = beside(vectors=vectors)
    return found


def account_state_of(queue: Queue, key: StateKey) -> AccountState | None:
    """Return the state of accounts in the database of an opened queue; None: the state is in the home."""
    found: AccountState | None = None
    if (beside := getattr(queue, "account_state", None)) is not None:
        found = beside(key)
    return found


@asynccontextmanager
async def lock_queue(queue: Queue, store: str | None, holders: Path) -> AsyncIterator[LeaseKeeper | None]:
    """
    Keep every daemon from working on an open queue, under the home's lock.

    Yields the lease's keeper; None where the lock suffices. Raises LeaseTaken, LeaseLost (the block is
    cancelled) or StoreUnavailable.
    """
    if store is None:
        yield None
        return
    keeper = LeaseKeeper(queue.maintenance, queue.snapshots.file, Holders(holders))
    async with keeper.hold() as lease:
        yield lease


@contextmanager
def lock_queue_sync(
    file: Path, store: str | None, holders: Path, clock: Clock
) -> Iterator[LeaseKeeper | None]:
    """Do what `lock_queue` does, for a caller without an event loop; nothing is cancelled."""
    if store is None:
        yield None
        return

    from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - commands on a server alone need it

    @asynccontextmanager
    async def hold_lease() -> AsyncIterator[LeaseKeeper | None]:
        queue = await opened_queue(file, store, clock=clock)
        try:
            async with lock_queue(queue, store, holders) as lease:
                yield lease
        finally:
            await queue.aclose()

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(hold_lease()) as lease:
        yield lease


def migrate_store(store: str) -> str:
    """Create squidbot's tables; return what was done. Raises StoreUnavailable, ConfigInvalid."""
    with open_postgres():
        from gateway.store.postgres.postgres_queue import migrate  # noqa: PLC0415 - the default has no driver

        return migrate(store)
