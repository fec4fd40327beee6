"""
What the stores need of a database engine: a connection, two workers, and locks by name.

The texts are the same for every engine. They are written for SQLite 3.35 and PostgreSQL 13 and use only what
means the same in both: ``?`` and ``:name`` as marks, ``RETURNING``, ``ON CONFLICT``. No text looks into a
payload; `tests/unit/gateway/queue/test_portable_sql.py` names what else is kept out, and why.

Each call of a `Writer` is a transaction, and names what it must be alone with (`Locks`). Where several
transactions run at once, the engine calls `lock_first` as the first statement of the transaction, before the
reads: a statement sees what was committed before it began, so whoever waits for a lock and reads after that
sees what the one before has done. An engine with one writer needs no locks and asks for none.

The names are taken in sorted order, all at once, so two calls never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

_Result = TypeVar("_Result")
Parameters = Sequence[Any] | Mapping[str, Any]


class Cursor(Protocol):
    """What a statement has found or changed."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed, by all of ``executemany`` together."""
        ...

    def fetchone(self) -> Any:
        """The next row as a tuple, None if there is none."""
        ...

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The rows that are left, one by one."""
        ...


class Connection(Protocol):
    """A connection inside of a transaction."""

    def execute(self, text: str, parameters: Parameters = ..., /) -> Cursor:
        """Run a statement."""
        ...

    def executemany(self, text: str, parameters: Iterable[Parameters], /) -> Cursor:
        """Run a statement once for each of ``parameters``."""
        ...

    def lock(self, *names: str) -> None:
        """
        Wait until no other transaction holds any of these names, and hold them until this one ends.

        Called by `lock_first` only, with sorted names, each once.
        """
        ...

    def note(self, fact: str, of: str) -> None:
        """Have a signal fired after the commit (`gateway.queue.sql.signals`), where no trigger does it."""
        ...


Locks = Sequence[str] | Callable[[Connection], Iterable[str]]
"""
The names that a call holds from its first statement on. A function finds them by reading: it runs before the
locks are taken, and the call reads again what it found.
"""

ALONE = ("alone",)
"""The call waits for every other call that writes: also for what a process that has died was committing."""

LEASES = "lease:"
"""How the names of the locks of leases begin (`named_lock`). All processes need them again and again."""

NOTHING: Locks = ()
"""One statement that decides by itself, or one that may meet any other: no lock is needed."""


def session_lock(session: str) -> str:
    """The lock of everything that happens in a session."""
    return f"session:{session}"


def named_lock(kind: str, name: str = "") -> str:
    """The lock of something that is no session: a lease, a person's jobs, the grants."""
    return f"{kind}:{name}"


def lock_names(db: Connection, locks: Locks) -> Iterable[str]:
    """The names, looked for where that is needed."""
    return locks(db) if callable(locks) else locks


def lock_first(db: Connection, locks: Locks) -> None:
    """Take the locks of a call; the first statement of its transaction."""
    if names := sorted(set(lock_names(db, locks))):
        db.lock(*names)


class Worker(Protocol):
    """What both workers can be asked."""

    @property
    def stalled_s(self) -> float:
        """For how long the engine has not come back from the work in hand."""
        ...

    async def aclose(self) -> None:
        """Finish what is queued, and let go of the database."""
        ...


class Fencing(Protocol):
    """What the writer of a database that several processes share can do more."""

    def work_under(self, name: str, holder: str, fence: int) -> None:
        """
        From now on each call needs this lease, but for those about leases.

        The lease is looked at behind the lock that `ALONE` waits for, so whoever takes it over and recovers
        then sees all that was done under it, and nothing is done under it afterwards. A call that comes
        later raises `Fenced`.
        """
        ...

    async def idle(self) -> None:
        """Return when no call is under way."""
        ...


class Writer(Worker, Protocol):
    """Runs what changes something, each call a transaction of its own."""

    async def call(
        self,
        name: str,
        run: Callable[[Connection], _Result],
        *,
        locks: Locks,
        durable: bool = True,
        undo: Callable[[Connection, _Result], object] | None = None,
    ) -> _Result:
        """
        Run something in a transaction and return its result when that is committed.

        Args:
            name: For errors.
            run: What to do. It may run several times, each time on the state before it.
            locks: What it must be alone with.
            durable: It must be on the disk when this returns; else surviving the process is enough.
            undo: What to do, under the same locks, if the caller was cancelled and it has happened
                nevertheless.

        Raises:
            StoreUnavailable: It has not happened, or the engine lost its connection and cannot tell.
        """
        ...

    @property
    def failing(self) -> bool:
        """Whether the newest commit was refused."""
        ...


class Reader(Worker, Protocol):
    """Runs what only looks; all of a call sees one state, at least as new as its beginning."""

    async def call(self, name: str, run: Callable[[Connection], _Result], /) -> _Result:
        """Run something and return its result. Raises `StoreUnavailable`."""
        ...
