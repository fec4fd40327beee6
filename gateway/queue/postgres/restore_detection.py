"""
Detects a database that was restored to an earlier moment, or taken over by another server.

``meta`` records the server on which a daemon last began, and its timeline. A restore with archived WAL begins
another timeline, a restored dump is on another server, and so is a promoted replica. None of them can tell by
itself whether something is lost, so no daemon begins until a person has decided (`squidbot restored`). A
home's record of how far the database was finds what the server cannot show (`gateway.queue.rollback_guard`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from gateway.queue.errors import StoreUnusable
from gateway.queue.rollback_guard import Extent, Gap, HighWaterMark
from gateway.queue.sql.engine import Connection

_SERVER = "server"
_RESTORED = "restored"
_HERE = (
    "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' ||"
    " left(pg_walfile_name(pg_current_wal_lsn()), 8)"
)


@dataclass(frozen=True, slots=True)
class Restored:
    """A person's last decision, and the interval of messages that the lost part may have answered."""

    at: datetime
    gap: Gap | None


def read_restored(db: Connection) -> Restored | None:
    """Read what `set_restored` wrote last."""
    text = _meta(db, _RESTORED)
    if text is None:
        return None
    value = json.loads(text)
    gap = None
    if value["until"] is not None:
        gap = Gap(datetime.fromisoformat(value["since"]), datetime.fromisoformat(value["until"]))
    return Restored(datetime.fromisoformat(value["at"]), gap)


def set_restored(db: Connection, restored: Restored) -> None:
    """Record a person's decision, and that this server is the right one."""
    gap = restored.gap
    text = json.dumps(
        {
            "at": restored.at.isoformat(),
            "since": gap.since.isoformat() if gap is not None else None,
            "until": gap.until.isoformat() if gap is not None else None,
        }
    )
    _put(db, _RESTORED, text)
    _put(db, _SERVER, _here(db))


def begin(db: Connection, where: str) -> Restored | None:
    """
    Check at the start of a daemon that the server is the same as before.

    Raises:
        StoreUnusable: It is another server, or another timeline.
    """
    here, before = _here(db), _meta(db, _SERVER)
    if before is None:
        _put(db, _SERVER, here)
    elif before != here:
        raise _refused(where, "its server is another one than before, or another timeline of it")
    return read_restored(db)


def refuse_older(where: str, mark: HighWaterMark | None, now: Extent, restored: Restored | None) -> None:
    """Refuse a database that has less than this home has known of it. Raises `StoreUnusable`."""
    if mark is None or mark.extent.identity != now.identity or mark.extent.inbox <= now.inbox:
        return
    if restored is None or mark.at > restored.at:
        raise _refused(where, f"on {mark.at:%Y-%m-%d %H:%M} UTC it had more messages than now")


def _refused(where: str, why: str) -> StoreUnusable:
    return StoreUnusable(
        f"{where} may have been restored to an earlier moment: {why}. What has been sent since would be sent"
        " again. Say what has happened first: `squidbot restored --until T` if something is lost (T: when"
        " squidbot last ran on what is lost), `squidbot restored --moved` if nothing is, as after a move to"
        " another server or to a replica that had everything.",
        path=where,
    )


def _here(db: Connection) -> str:
    return str(db.execute(_HERE).fetchone()[0])


def _meta(db: Connection, name: str) -> str | None:
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _put(db: Connection, name: str, value: str) -> None:
    db.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )
