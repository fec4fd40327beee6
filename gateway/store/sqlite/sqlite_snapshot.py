"""
Copies ``gateway.db`` at one moment, and measures the histories' lengths at that moment. While the writing
thread is paused nothing is committed or cleared, so that every line not in the journal is in its file, and no
file has a line unknown to the database. The pause covers the begin of a read transaction and a stat per file;
the copy is made from that transaction on another thread.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import anyio.to_thread

from agent_core.files import sync
from gateway.store.sqlite.sqlite_connection import Writer
from gateway.store.sqlite.sqlite_errors import unavailable
from gateway.store.stores import Snapshot


class SqliteSnapshots:
    """Implements `gateway.store.stores.SnapshotStore`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def file(self) -> str:
        """See `SnapshotStore`."""
        return str(self._writer.path)

    async def snapshot(self, target: str, histories: str) -> Snapshot:
        """See `SnapshotStore`."""
        path = self._writer.path
        held: list[sqlite3.Connection] = []
        lengths: dict[str, int] = {}

        def stand_still(_: sqlite3.Connection) -> None:
            # It may run twice; then the result from the batch that was rolled back is no longer true.
            _let_go(held)
            lengths.clear()
            held.append(_reading(path))
            lengths.update(_sizes(Path(histories)))

        try:
            await self._writer.call("snapshot", stand_still)
            # anyio waits for the thread even if cancelled, so the connection closed below is not in use then.
            return await anyio.to_thread.run_sync(_copied, held[0], Path(target), lengths)
        except sqlite3.Error as error:
            raise unavailable(error, path, "snapshot") from error
        finally:
            _let_go(held)


def _let_go(held: list[sqlite3.Connection]) -> None:
    while held:
        held.pop().close()


def _reading(path: Path) -> sqlite3.Connection:
    """Open a connection that sees the last commit, and nothing later."""
    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro",
        uri=True,
        isolation_level=None,
        timeout=5.0,
        check_same_thread=False,  # opened on the writing thread, used on another
    )
    try:
        db.execute("BEGIN")
        db.execute("SELECT COUNT(*) FROM meta").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def _sizes(folder: Path) -> dict[str, int]:
    try:
        with os.scandir(folder) as found:
            return {
                entry.name: entry.stat(follow_symlinks=False).st_size
                for entry in found
                if entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False)
            }
    except FileNotFoundError:
        return {}


def _copied(source: sqlite3.Connection, target: Path, lengths: dict[str, int]) -> Snapshot:
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        (schema,) = copy.execute("PRAGMA user_version").fetchone()
        (secret,) = copy.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
        inbox, outbox = copy.execute(
            "SELECT COALESCE((SELECT MAX(id) FROM inbox), 0), COALESCE((SELECT MAX(id) FROM outbox), 0)"
        ).fetchone()
    sync(target)
    return Snapshot(schema, inbox, outbox, secret, lengths)
