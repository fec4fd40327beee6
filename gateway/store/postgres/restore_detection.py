"""
Detects a database that was restored to an earlier moment, or taken over by another server. ``meta`` records
the server, timeline and replication of the last daemon. A restore with WAL begins a new timeline, a dump and
a promoted replica are another server. Only a replica for which commits waited, and that agrees with this
home's mark (`gateway.store.rollback_guard`), is accepted; otherwise a person decides (`squidbot restored`).
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from datetime import datetime

import psycopg

from gateway.store.rollback_guard import Extent, Gap, HighWaterMark
from gateway.store.sql.engine import ConnectionPort
from gateway.store.store_errors import StoreUnusable

_SERVER = "server"
_RESTORED = "restored"
_CONFIRMED = "confirmed"
_HERE = (
    "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' ||"
    " left(pg_walfile_name(pg_current_wal_lsn()), 8)"
)

SYNCHRONOUS_COMMIT = (
    "SELECT current_setting('synchronous_standby_names') <> ''"
    " AND current_setting('synchronous_commit') NOT IN ('off', 'local')"
)
_POSITION = f"SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8), ({SYNCHRONOUS_COMMIT})"


@dataclass(frozen=True, slots=True)
class AcceptedRestore:
    """A person's last decision, and the interval of messages that the lost part may have answered."""

    at: datetime
    gap: Gap | None


def read_accepted_restore(db: ConnectionPort) -> AcceptedRestore | None:
    """Read what `write_accepted_restore` wrote last; None if nothing was."""
    text = _meta(db, _RESTORED)
    if text is None:
        return None
    value = json.loads(text)
    gap = None
    if value["until"] is not None:
        gap = Gap(datetime.fromisoformat(value["since"]), datetime.fromisoformat(value["until"]))
    return AcceptedRestore(datetime.fromisoformat(value["at"]), gap)


def write_accepted_restore(db: ConnectionPort, restored: AcceptedRestore) -> None:
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
    note_server(db)


def begin(db: ConnectionPort, where: str, mark: HighWaterMark | None, now: Extent) -> AcceptedRestore | None:
    """
    Check at a daemon's start that nothing is lost, from ``mark`` to ``now``; record the server.

    Raises StoreUnusable: another server, or timeline, may lack something, and a person must decide.
    """
    before, restored = _meta(db, _SERVER), read_accepted_restore(db)
    refuse_older(where, mark, now, restored)
    if before not in (None, _here(db)):
        is_known = mark is not None and mark.extent.identity == now.identity
        is_replica = str(before).partition("/")[0] == _here(db).partition("/")[0]
        if not (is_known and is_replica and _meta(db, _CONFIRMED) == "yes"):
            raise _refused(where, "its server is another one than before, or another timeline of it")
    note_server(db)
    return restored


def note_server(db: ConnectionPort) -> None:
    """Record the server, and whether commits wait for a replica, so that the next start knows it."""
    confirmed = "yes" if db.execute(SYNCHRONOUS_COMMIT).fetchone()[0] else "no"
    for name, value in ((_SERVER, _here(db)), (_CONFIRMED, confirmed)):
        if _meta(db, name) != value:
            _put(db, name, value)


def refuse_older(
    where: str, mark: HighWaterMark | None, now: Extent, restored: AcceptedRestore | None
) -> None:
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


def _here(db: ConnectionPort) -> str:
    return str(db.execute(_HERE).fetchone()[0])


def _meta(db: ConnectionPort, name: str) -> str | None:
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _put(db: ConnectionPort, name: str, value: str) -> None:
    db.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


class Failover:
    """
    The timeline and settings of the server to which a process last connected. Any thread may use it.

    A promoted replica continues with another timeline, and lacks the last commits unless each waited for it,
    though their positions were already confirmed to homeservers. That cannot be seen later, as ids are
    assigned again. So a working process ends, and its next start names the remedy; a standby checks when it
    takes over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timeline = ""
        self._is_confirmed = False
        """Whether commits waited for a replica at the last connection."""

    def check(self, db: psycopg.Connection, *, works: bool) -> None:
        """Check that a new connection lacks no commits. Raises OperationalError."""
        try:
            found = db.execute(_POSITION, prepare=False).fetchone()
        except (psycopg.ProgrammingError, psycopg.NotSupportedError):
            return  # the role may not read it, or the server accepts no writes
        if found is None:
            return
        timeline, is_confirmed = str(found[0]), bool(found[1])
        with self._lock:
            if works and self._timeline not in ("", timeline) and not self._is_confirmed:
                raise psycopg.OperationalError(
                    "a replica has taken over for which no commit has waited, so it may lack the last ones"
                )
            self._timeline, self._is_confirmed = timeline, is_confirmed
