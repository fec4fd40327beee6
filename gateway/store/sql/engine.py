"""
The interface between the stores and a database engine: a connection, two workers, named locks, and a limit on
concurrent calls. The SQL is common to SQLite 3.35 and PostgreSQL 13. Each call of a `Writer` is a transaction
and names its `Locks`, taken first in sorted order, so that reads see the previous holder's writes and calls
never deadlock. An engine with one writer ignores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any, Protocol, TypeVar

import anyio

from agent_core.messages import OutboundMessage
from agent_core.ports import Clock
from gateway.store.model import OutboxRow
from gateway.store.sql.row_codec import instant
from gateway.store.states import OutboxState
from gateway.store.store_errors import StoreUnavailable

_Result = TypeVar("_Result")
Parameters = Sequence[Any] | Mapping[str, Any]


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """The number of changed rows, by all of ``executemany`` together."""

    def fetchone(self) -> Any:
        """Return the next row as a tuple; None if there is none."""

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""

    def __iter__(self) -> Iterator[Any]: ...


class ConnectionPort(Protocol):
    """A connection inside a transaction."""

    def execute(self, text: str, parameters: Parameters = ..., /) -> Cursor:
        """Run a statement."""

    def executemany(self, text: str, parameters: Iterable[Parameters], /) -> Cursor:
        """Run a statement once for each of ``parameters``."""

    def lock(self, *names: str) -> None:
        """Lock these names until the transaction ends; only `lock_first` calls it, sorted, each once."""

    def note(self, fact: str, of: str) -> None:
        """Fire a signal after the commit (`gateway.store.sql.signals`), where no trigger does it."""


Locks = Sequence[str] | Callable[[ConnectionPort], Iterable[str]]
"""
The names that a call locks with its first statement. A function finds them by reading: it runs before the
locks are taken, and the call reads again what it found.
"""

ALONE = ("alone",)
"""The call waits for every other call that writes, including what a dead process was still committing."""

LEASES = "lease:"
"""The prefix of the names of leases' locks (`named_lock`). All processes need them again and again."""

NOTHING: Locks = ()
"""No lock: the call is one statement that decides by itself, or may run beside any other."""


def session_lock(session: str) -> str:
    """Return the lock of everything in a session."""
    return f"session:{session}"


def named_lock(kind: str, name: str = "") -> str:
    """Return the lock of something other than a session: a lease, a person's jobs, the grants."""
    return f"{kind}:{name}"


def lock_names(db: ConnectionPort, locks: Locks) -> Iterable[str]:
    """Return the names, looked up if necessary."""
    return locks(db) if callable(locks) else locks


def lock_first(db: ConnectionPort, locks: Locks) -> None:
    """Take the locks of a call, as the first statement of its transaction."""
    if names := sorted(set(lock_names(db, locks))):
        db.lock(*names)


class WorkerPort(Protocol):
    """The interface that both workers share."""

    @property
    def stalled_s(self) -> float:
        """The time for which the engine has not returned from the current work."""

    async def aclose(self) -> None:
        """Finish the queued calls and close the database."""


class Fencing(Protocol):
    """The additional interface of the writer of a database that several processes share."""

    def require_lease(self, name: str, holder: str, fence: int) -> None:
        """
        Require this lease for every later call except those about leases; else `Fenced`.

        It is checked under the lock that `ALONE` waits for, so a successor that recovers sees all work done
        under it, and none follows.
        """

    async def idle(self) -> None:
        """Return when no call is in progress."""


class WritePort(WorkerPort, Protocol):
    """Runs calls that write, each in its own transaction."""

    async def call(
        self,
        name: str,
        run: Callable[[ConnectionPort], _Result],
        *,
        locks: Locks,
        durable: bool = True,
        undo: Callable[[ConnectionPort, _Result], object] | None = None,
    ) -> _Result:
        """
        Run a function in a transaction and return its result after the commit.

        Args:
            run: May run several times, each time on the state before the call.
            locks: The names to lock.
            durable: The commit must be on the disk on return; otherwise it need only survive the process.
            undo: Reverts the call, under the same locks, if it has happened although the caller was
                cancelled.

        Raises:
            StoreUnavailable: The call has not happened, or a lost connection hides it.
        """

    @property
    def failing(self) -> bool:
        """Return True if the newest commit was refused."""


class ReadPort(WorkerPort, Protocol):
    """Runs calls that only read; a call sees one state, at least as new as its beginning."""

    async def call(self, name: str, run: Callable[[ConnectionPort], _Result], /) -> _Result:
        """Run a function and return its result. Raises `StoreUnavailable`."""


Journal = Callable[[ConnectionPort, str, Sequence[str], float], None]
"""Commits history lines, as JSON and with a time, under the lock of their session."""


def journal_lines(db: ConnectionPort, session: str, lines: Sequence[str], now: float) -> None:  # noqa: ARG001 - a line that has no time gets it in the file
    """Commit lines to the journal; they stay there until they are in the history file."""
    db.executemany(
        "INSERT INTO history_journal (session, line) VALUES (?, ?)", [(session, line) for line in lines]
    )


@dataclass(frozen=True, slots=True)
class Database:
    """
    An open database, shared by all its stores.

    Args:
        secret: The database's identity.
        clock: Read on the event loop only.
        zone: The time zone of the days of usage; None: this machine's.
        journal: Stores the lines of histories.
        fencing: Refuses writes under a lost lease; None: one process.
        server_clock: Reads the clock that all processes share; None: ``clock``.
    """

    writer: WritePort
    reader: ReadPort
    secret: str
    clock: Clock
    zone: tzinfo | None = UTC
    journal: Journal = journal_lines
    server_clock: Callable[[ConnectionPort], float] | None = None
    fencing: Fencing | None = None

    def now(self) -> float:
        """Return the time as the tables store it."""
        return self.clock.now().timestamp()

    def lease_clock(self) -> Callable[[ConnectionPort], float]:
        """Return a function that reads the clock of the leases, inside a transaction."""
        now = self.now()
        return self.server_clock or (lambda _: now)

    def day(self, now: float) -> str:
        """Return the current day of usage."""
        return instant(now).astimezone(self.zone).strftime("%Y-%m-%d")


class Store:
    """The base of a store over some tables of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = database.writer
        self._reader = database.reader
        self._secret = database.secret
        self._now = database.now
        self._day = database.day
        self._journal = database.journal


def pending(
    ids: Sequence[int],
    messages: Sequence[tuple[OutboundMessage, str]],
    inbox_id: int | None,
    held: Sequence[bool],
) -> list[OutboxRow]:
    """Return messages that have just become rows, as pending or held."""
    return [
        OutboxRow(
            row_id, inbox_id, message, OutboxState.HELD if hold else OutboxState.PENDING, 0, None, None, None
        )
        for row_id, (message, _), hold in zip(ids, messages, held, strict=True)
    ]


WAITING = 4096
WITHIN_S = 10.0


class CallLimit:
    """Limits the concurrent calls to ``size``; further callers wait, at most for `WITHIN_S`."""

    def __init__(self, where: str, size: int = WAITING) -> None:
        self._where = where
        self._free = anyio.Semaphore(size, fast_acquire=True)
        self._closed = False

    def close(self) -> None:
        """Admit nobody any more; those who wait are refused."""
        self._closed = True

    async def enter(self, operation: str) -> None:
        """Take a place until `leave`. Raises `StoreUnavailable` if none is free in time, or after `close`."""
        if not self._closed:
            try:
                self._free.acquire_nowait()
            except anyio.WouldBlock:
                with anyio.move_on_after(WITHIN_S) as limit:
                    await self._free.acquire()
                if limit.cancelled_caught:
                    raise StoreUnavailable(
                        "too many calls wait", path=self._where, operation=operation
                    ) from None
            if not self._closed:
                return
            self.leave()
        raise StoreUnavailable("the store is closed", path=self._where, operation=operation)

    def leave(self) -> None:
        """Give a place to the next caller."""
        self._free.release()
