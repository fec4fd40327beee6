"""
Checks that a role has the rights on squidbot's tables that a daemon needs.

The check runs before a daemon takes anything. Otherwise a missing right would be found by the first message
that needs it, after others were answered.
"""

from __future__ import annotations

from gateway.queue.postgres.connection import SCHEMA
from gateway.queue.sql.engine import ConnectionPort

_CHANGED = " AND ".join(
    f"has_table_privilege(pg_class.oid, '{right}')" for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
)
# Statements name the views; triggers, and each transaction, read the tables behind them.
_WITHOUT = f"""
SELECT relname FROM pg_class JOIN pg_namespace AS place ON place.oid = relnamespace
WHERE nspname = '{SCHEMA}' AND ((relkind = 'v' AND NOT ({_CHANGED}))
  OR (relkind = 'r' AND NOT has_table_privilege(pg_class.oid, 'SELECT')))
ORDER BY relname
"""  # noqa: S608 - constants


def without_rights(db: ConnectionPort) -> list[str]:
    """Return the tables that the connection's role may not read, or not change as a daemon does."""
    return [str(name) for (name,) in db.execute(_WITHOUT).fetchall()]
