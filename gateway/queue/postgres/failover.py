"""
Whether what this process has committed is still there when another server has taken over.

Theory of operation. A replica that is promoted goes on with another timeline. If each commit waited for a
replica, it has them all. If not, it may lack the last ones, of which this process has told homeservers and
people already: it knows positions and answers that the database does not. Nobody could tell from the database
later, because numbers are given again. So a process that runs does not work with such a server: its lease
ends, it ends, and its next start says what a person has to do (``restore_detection.py``).
"""

from __future__ import annotations

import threading

import psycopg

_HERE = """
SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8), current_setting('synchronous_standby_names') <> ''
"""


class Failover:
    """What is known of the server to which a process has connected. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timeline = ""
        self._is_confirmed = False
        """Whether commits waited for a replica when this process has connected last."""

    def check(self, db: psycopg.Connection) -> None:
        """
        See that nothing can be missing on this new connection.

        Raises:
            psycopg.OperationalError: The last commits may be.
        """
        try:
            found = db.execute(_HERE, prepare=False).fetchone()
        except (psycopg.ProgrammingError, psycopg.NotSupportedError):
            return  # the role may not know it, or the server takes no writes
        if found is None:
            return
        timeline, is_confirmed = str(found[0]), bool(found[1])
        with self._lock:
            if self._timeline not in ("", timeline) and not self._is_confirmed:
                raise psycopg.OperationalError(
                    "a replica has taken over for which no commit has waited, so it may lack the last ones"
                )
            self._timeline, self._is_confirmed = timeline, is_confirmed
