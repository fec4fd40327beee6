"""
Whether a role may do with squidbot's tables what a daemon does.

It is asked before a daemon takes anything. A right that is missing would else be found by the first message
that needs it, after others were answered.
"""

from __future__ import annotations

from gateway.queue.postgres.connection import SCHEMA
from gateway.queue.sql.engine import Connection

_CHANGED = " AND ".join(
    f"has_table_privilege(pg_class.oid, '{right}')" for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
)
# Views are what statements name; the tables behind them are read by triggers, and by each transaction.
_WITHOUT = f"""
SELECT relname FROM pg_class JOIN pg_namespace AS place ON place.oid = relnamespace
WHERE nspname = '{SCHEMA}' AND ((relkind = 'v' AND NOT ({_CHANGED}))
  OR (relkind = 'r' AND NOT has_table_privilege(pg_class.oid, 'SELECT')))
ORDER BY relname
"""  # noqa: S608 - constants


def without_rights(db: Connection) -> list[str]:
    """The tables that the role of the connection may not read, or not change as a daemon does."""
    return [str(name) for (name,) in db.execute(_WITHOUT).fetchall()]
