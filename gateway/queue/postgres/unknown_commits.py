"""
Finds out the outcome of calls whose connection was lost during the commit.

The server remembers each transaction's status, so the call waits until it is reachable, and then returns or
is repeated. After a takeover ids are reused and the outcome is unknowable: a claim is undone, and others get
`StoreUnavailable`, as do callers (except claims, which would meet themselves) after `TOLD_WITHIN_S`. Recorded
facts are lost, so all signals fire.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
import structlog

from gateway.queue.errors import Fenced, LostTurn
from gateway.queue.postgres.connection import Transaction, outcome_of
from gateway.queue.sql.all_signals import waiting_facts
from gateway.queue.sql.engine import ConnectionPort, Locks, lock_first

TOLD_WITHIN_S = 60.0
REPEATED_AFTER_S = 1.0
_LOOK_S = 0.05
_PAUSE_S = 0.05
_FIRST_PAUSE_S = 0.1
_LONGEST_REACH_S = 5.0
_LONGEST_PAUSE_S = 2.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Doubt:
    """The id of a transaction that may or may not have been committed, and the server's timeline."""

    number: str
    timeline: str


@dataclass(slots=True, eq=False)
class ServerCall:
    """One call: what to run, and its outcome."""

    name: str
    run: Callable[[ConnectionPort], Any]
    locks: Locks
    undo: Callable[[ConnectionPort, Any], object] | None
    future: asyncio.Future[Any] | None
    undoes: bool = False
    """The call undoes another one, and is repeated until the server accepts it."""
    abandoned: bool = False
    delivered: bool = False
    value: Any = None
    error: BaseException | None = None
    facts: str = ""
    doubt: Doubt | None = None
    was_in_doubt: bool = False
    told: bool = False


class ServerReach:
    """Decides when the next connection may be tried; shared by the threads of a pool."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._not_before = 0.0
        self._why: psycopg.Error | None = None

    def retry_error(self) -> psycopg.Error | None:
        """Return why it is too early for another try; None if it is not."""
        with self._lock:
            return self._why if time.monotonic() < self._not_before else None

    def note_failure(self, why: psycopg.Error) -> None:
        """Record that the server could not be reached."""
        with self._lock:
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_REACH_S)
            self._not_before = time.monotonic() + self._pause_s * random.uniform(0.5, 1.0)
            self._why = why

    def note_success(self) -> None:
        """Record that the server was reached."""
        with self._lock:
            self._pause_s, self._not_before, self._why = 0.0, 0.0, None


class Waiting(Protocol):
    """The pool to which the calls belong (`gateway.queue.postgres.pool.Pool`)."""

    home: int

    def transaction(self, db: psycopg.Connection, name: str) -> Transaction:
        """Return a transaction for a call of this name."""
        ...

    @property
    def closing(self) -> bool:
        """Return True if the pool is closing, so that waits are short."""
        ...

    def connect(self) -> tuple[psycopg.Connection, str]:
        """Return a new connection, and the timeline of its server."""
        ...

    def repeat(self, call: ServerCall) -> None:
        """Repeat a call of which nothing has happened."""
        ...

    def fail_call(self, call: ServerCall) -> None:
        """Give the caller the error."""
        ...

    def end(self, call: ServerCall) -> None:
        """Return the call with its outcome."""
        ...


class Doubts:
    """Resolves calls in doubt, on a thread that runs while there are any."""

    def __init__(self, pool: Waiting) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._calls: list[tuple[float, ServerCall]] = []
        self._runs = False

    def add(self, call: ServerCall) -> None:
        """Resolve a call, or wait with it for the server; called on the thread that ran it."""
        call.was_in_doubt = True
        if call.doubt is not None:
            _log.warning("queue.commit_in_doubt", operation=call.name, detail=str(call.error))
        with self._lock:
            self._calls.append((time.monotonic(), call))
            if self._runs:
                return
            self._runs = True
        threading.Thread(target=self._main, name="store-doubts", daemon=True).start()

    def _main(self) -> None:
        pause_s = _PAUSE_S
        while True:
            last = self._pool.closing
            if not last and not self._due():
                time.sleep(_LOOK_S)
                continue
            try:
                db, timeline = self._pool.connect()
            except psycopg.Error:
                pass
            else:
                pause_s = _PAUSE_S
                with contextlib.closing(db):
                    try:
                        self._settle(db, timeline)
                    except Exception as error:  # noqa: BLE001 - the calls wait for this thread
                        _log.warning("queue.doubt_stays", detail=str(error))
            with self._lock:
                waiting = list(self._calls)
                if not waiting:
                    self._runs = False
                    return
            for since, call in waiting:
                if last:
                    self._end(call)
                elif time.monotonic() - since > TOLD_WITHIN_S and call.undo is None and not call.told:
                    call.told = True
                    self._pool.fail_call(call)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _due(self) -> bool:
        with self._lock:
            return any(_is_due(since, call) for since, call in self._calls)

    def _settle(self, db: psycopg.Connection, timeline: str) -> None:
        with self._lock:
            waiting = [call for since, call in self._calls if _is_due(since, call)]
        for call in waiting:
            outcome = _outcome(db, call, timeline)
            if outcome == "in progress":
                continue
            if outcome == "aborted" and not call.told:
                self._remove(call)
                self._pool.repeat(call)
                continue
            if outcome == "committed":
                call.error = None
            elif outcome == "unknown" and call.undo is not None:
                self._undo(db, call)
            transaction = Transaction(db, self._pool.home, look_only=True)
            call.facts = all_facts(transaction)
            transaction.commit()
            _log.info("queue.doubt_ended", operation=call.name, outcome=outcome)
            self._end(call)

    def _undo(self, db: psycopg.Connection, call: ServerCall) -> None:
        assert call.undo is not None
        transaction = self._pool.transaction(db, call.name)
        try:
            lock_first(transaction, call.locks)
            call.undo(transaction, call.value)
        except (LostTurn, Fenced):  # it has not happened, or is already undone
            transaction.undo()
        else:
            transaction.commit()

    def _remove(self, call: ServerCall) -> None:
        with self._lock:
            self._calls = [each for each in self._calls if each[1] is not call]

    def _end(self, call: ServerCall) -> None:
        self._remove(call)
        self._pool.end(call)


def _is_due(since: float, call: ServerCall) -> bool:
    """Return True if a call may be repeated now; a refused one waits, as the disk may stay full."""
    return call.doubt is not None or time.monotonic() - since >= REPEATED_AFTER_S


def _outcome(db: psycopg.Connection, call: ServerCall, timeline: str) -> str:
    """Return ``committed``, ``aborted`` (repeat it), ``in progress`` or ``unknown``."""
    if call.doubt is None:
        return "aborted"
    found = "unknown"
    if timeline and timeline == call.doubt.timeline:
        found = outcome_of(db, call.doubt.number) or "unknown"
    return "aborted" if found == "unknown" and call.undoes else found  # undo is idempotent


def all_facts(db: ConnectionPort) -> str:
    """Return the facts of everything that waits, in the triggers' format."""
    return "".join(f"{json.dumps(fact)}\n" for fact in waiting_facts(db))
