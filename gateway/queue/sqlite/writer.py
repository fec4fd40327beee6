"""
The two workers of the embedded store: `Writer` with group commit, `Reader` with snapshots.

The writer makes one transaction of a batch. If a call in it fails, everything is rolled back and the calls
run once more, each in a transaction of its own, so that the one that fails takes nobody along. That is slow
and hardly ever happens; savepoints, or single transactions from the start, would cost every call. Results are
given out after the commit only. If every call of a batch is content with surviving the process (claims,
``sending`` marks), the commit is not synced: a later synced commit of the same log covers it, and after a
power cut it is merely as if it had not happened.

A file that is removed or replaced while it is open goes on taking writes, which nobody will ever read. So
the writer looks before each batch whether its files are still in their place, and otherwise does nothing. It
keeps its connection: when the files are put back, it goes on.

The reader wraps a batch in one transaction too: all its calls see one state, which is at least as new as
their beginning.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import structlog

from gateway.queue.ports import StoreUnavailable
from gateway.queue.sqlite.connection import Call, Worker
from gateway.queue.sqlite.errors import name_of, needs_reopening, unavailable

__all__ = ["Reader", "Synchronous", "Writer"]

Synchronous = Literal["full", "normal"]
_log = structlog.get_logger(__name__)


class Writer(Worker):
    """
    The one thread that writes.

    Args:
        path: The database.
        connect: Makes the connection.
        synchronous: ``full`` syncs each commit that asks for it; ``normal`` none, so that a power cut may
            take the last moments back, which a kill of the process does not.
    """

    def __init__(
        self, path: Path, connect: Callable[[], sqlite3.Connection], *, synchronous: Synchronous
    ) -> None:
        self._full = synchronous == "full"
        self._level: str | None = None
        self._failing = False
        self._places: dict[Path, tuple[int, int]] = {}
        super().__init__("store-writer", path, connect)

    @property
    def failing(self) -> bool:
        """Whether the newest commit was refused."""
        return self._failing

    def _disconnect(self) -> None:
        self._level = None
        self._places.clear()
        super()._disconnect()

    def _serve(self, db: sqlite3.Connection, calls: Sequence[Call]) -> None:
        self._look_after_files(calls[0].name)
        try:
            self._set_level(db, "FULL" if self._full and any(call.durable for call in calls) else "NORMAL")
            db.execute("BEGIN IMMEDIATE")
            if self._run_all(db, calls):
                db.execute("COMMIT")
            else:
                self._run_each(db, calls)
        except BaseException as error:
            if isinstance(error, sqlite3.Error):
                self._note_failure(error)
            if not isinstance(error, sqlite3.Error) or needs_reopening(error):
                self._disconnect()
            elif db.in_transaction:
                db.execute("ROLLBACK")
            raise
        if self._failing and all(call.done for call in calls):
            self._failing = False
            _log.info("store.recovered", path=str(self.path))

    def _look_after_files(self, operation: str) -> None:
        """
        Remember which files are in use, and see that they still are what their names lead to.

        Raises:
            StoreUnavailable: Somebody has taken them away.
        """
        for ending in ("", "-wal"):
            path = self.path.with_name(self.path.name + ending)
            try:
                state = path.stat()
                place = (state.st_dev, state.st_ino)
            except OSError:
                place = None
            known = self._places.get(path)
            if known is None and place is not None:
                self._places[path] = place
            elif known != place:
                if not self._failing:
                    self._failing = True
                    _log.error("store.taken_away", path=str(path))
                raise StoreUnavailable(
                    f"{path} was removed or replaced while squidbot was running: put it back, or restart "
                    "squidbot to go on with what is there now",
                    path=str(path),
                    operation=operation,
                )

    def _set_level(self, db: sqlite3.Connection, level: str) -> None:
        if level != self._level:
            db.execute(f"PRAGMA synchronous = {level}")
            self._level = level

    def _run_all(self, db: sqlite3.Connection, calls: Sequence[Call]) -> bool:
        """Run all calls as if none could fail; if one does, undo everything and say so."""
        try:
            for call in calls:
                call.value = call.run(db)
                call.done = True
        except Exception as error:
            if isinstance(error, sqlite3.Error) and needs_reopening(error):
                raise
            if db.in_transaction:  # on a full disk SQLite may have ended it by itself
                db.execute("ROLLBACK")
            return False
        return True

    def _run_each(self, db: sqlite3.Connection, calls: Sequence[Call]) -> None:
        """Run the calls again, each a transaction of its own."""
        for number, call in enumerate(calls):
            call.done = False
            try:
                db.execute("BEGIN IMMEDIATE")
                call.value = call.run(db)
                db.execute("COMMIT")
                call.done = True
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                call.failed(error)
                if isinstance(error, sqlite3.Error):
                    self._note_failure(error)
                    call.failed(unavailable(error, self.path, call.name))
                    if needs_reopening(error):
                        for later in calls[number + 1 :]:
                            later.failed(unavailable(error, self.path, later.name))
                        self._disconnect()
                        return
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _note_failure(self, error: sqlite3.Error) -> None:
        if not self._failing:
            self._failing = True
            _log.error("store.failed", path=str(self.path), sqlite=name_of(error), detail=str(error))


class Reader(Worker):
    """The thread that looks things up; its connection cannot write."""

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        super().__init__("store-reader", path, connect)

    def _serve(self, db: sqlite3.Connection, calls: Sequence[Call]) -> None:
        try:
            db.execute("BEGIN")
            for call in calls:
                try:
                    call.value = call.run(db)
                    call.done = True
                except sqlite3.Error:
                    raise
                except Exception as error:  # noqa: BLE001 - it belongs to the caller
                    call.failed(error)
            db.execute("COMMIT")
        except BaseException:
            self._disconnect()
            raise
