"""
The interface between the stores and a database engine: a connection, two workers, and named locks.

The SQL is common to SQLite 3.35 and PostgreSQL 13; `tests/unit/gateway/store/test_portable_sql.py` lists the
excluded features. Each call of a `Writer` is a transaction and names its `Locks`. With concurrent
transactions the engine calls `lock_first` first, with sorted names, so that reads see the previous holder's
writes and calls never deadlock. An engine with one writer ignores locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

_Result = TypeVar("_Result")
Parameters = Sequence[Any] | Mapping[str, Any]


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """The number of changed rows, by all of ``executemany`` together."""
        ...

    def fetchone(self) -> Any:
        """Return the next row as a tuple; None if there is none."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class ConnectionPort(Protocol):
    """A connection inside a transaction."""

    def execute(self, text: str, parameters: Parameters = ..., /) -> Cursor:
        """Run a statement."""
        ...

    def executemany(self, text: str, parameters: Iterable[Parameters], /) -> Cursor:
        """Run a statement once for each of ``parameters``."""
        ...

    def lock(self, *names: str) -> None:
        """Lock these names until the transaction ends; only `lock_first` calls it, sorted, each once."""
        ...

    def note(self, fact: str, of: str) -> None:
        """Fire a signal after the commit (`gateway.store.sql.signals`), where no trigger does it."""
        ...


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
        ...

    async def aclose(self) -> None:
        """Finish the queued calls and close the database."""
        ...


class Fencing(Protocol):
    """The additional interface of the writer of a database that several processes share."""

    def work_under(self, name: str, holder: str, fence: int) -> None:
        """
        Require this lease for every later call except those about leases; else `Fenced`.

        It is checked under the lock that `ALONE` waits for, so a successor that recovers sees all work done
        under it, and none follows.
        """
        ...

    async def idle(self) -> None:
        """Return when no call is in progress."""
        ...


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
        ...

    @property
    def failing(self) -> bool:
        """Return True if the newest commit was refused."""
        ...


class ReadPort(WorkerPort, Protocol):
    """Runs calls that only read; a call sees one state, at least as new as its beginning."""

    async def call(self, name: str, run: Callable[[ConnectionPort], _Result], /) -> _Result:
        """Run a function and return its result. Raises `StoreUnavailable`."""
        ...
