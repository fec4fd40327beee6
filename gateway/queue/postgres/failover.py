"""
Detects whether commits of this process may be missing after another server has taken over.

A promoted replica continues with another timeline, and lacks the last commits unless each waited for it,
though their positions were already confirmed to homeservers. That cannot be seen later, as ids are assigned
again. So a working process ends, and its next start names the remedy (``restore_detection.py``); a standby
checks when it takes over.
"""

from __future__ import annotations

import threading

import psycopg

from gateway.queue.postgres.restore_detection import COMMITS_WAIT

_HERE = f"SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8), ({COMMITS_WAIT})"


class Failover:
    """The timeline and settings of the server to which a process last connected. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timeline = ""
        self._is_confirmed = False
        """Whether commits waited for a replica at the last connection."""

    def check(self, db: psycopg.Connection, *, works: bool) -> None:
        """Check that a new connection lacks no commits. Raises OperationalError."""
        try:
            found = db.execute(_HERE, prepare=False).fetchone()
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
