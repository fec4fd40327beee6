"""Stores grants, the approvals of tool calls in advance, in the table ``grants``."""

from __future__ import annotations

import json
from datetime import datetime

import structlog

from agent_core.provenance import from_json
from agent_core.provenance import to_json as origins_json
from agent_core.tools.grants import Grant, GrantKind, Scope
from gateway.store.sql.engine import ConnectionPort, Store, named_lock
from gateway.store.sql.row_codec import Raw, instant

_COLUMNS = "id, kind, tool, what, session, people, given_by, at, until, turn, origins, seen_at"
_ALL = f"SELECT {_COLUMNS} FROM grants ORDER BY at, id"  # noqa: S608 - constants of this file
_log = structlog.get_logger(__name__)


def insert(db: ConnectionPort, grant: Grant) -> None:
    """Store a grant; an existing one of the same id is unchanged."""
    db.execute(
        f"INSERT INTO grants ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"  # noqa: S608 - constants
        " ON CONFLICT (id) DO NOTHING",
        (
            grant.id,
            grant.scope.kind.value,
            grant.scope.tool,
            grant.scope.what,
            grant.conversation,
            json.dumps(grant.people),
            grant.by,
            grant.at.timestamp(),
            grant.until.timestamp(),
            grant.turn,
            json.dumps(origins_json(grant.origins)),
        ),
    )


class GrantStore(Store):
    """Stores grants until they end."""

    async def rows(self) -> list[Grant]:
        """Return the stored grants, oldest first, whether or not they are valid."""
        raws = await self._reader.call("grants", lambda db: db.execute(_ALL).fetchall())
        return [grant for raw in raws if (grant := _grant(raw)) is not None]

    async def expire(self, now: datetime) -> list[Grant]:
        """Record the time, delete grants that have ended by it, and return the others as they were before."""
        if not await self.rows():
            return []
        at = now.timestamp()

        def read(db: ConnectionPort) -> list[Raw]:
            db.execute("DELETE FROM grants WHERE until <= ? OR at > ? OR seen_at > ?", (at, at, at))
            raws = db.execute(_ALL).fetchall()
            db.execute("UPDATE grants SET seen_at = ?", (at,))
            return raws

        raws = await self._writer.call("look_at_grants", read, locks=[named_lock("grants")])
        return [grant for raw in raws if (grant := _grant(raw)) is not None]

    async def revoke(self, grant_id: str) -> bool:
        """End a grant; return False if there is none of that id."""
        statement = "DELETE FROM grants WHERE id = ?"
        return await self._writer.call(
            "revoke",
            lambda db: db.execute(statement, (grant_id,)).rowcount == 1,
            locks=[named_lock("grants")],
        )


def _grant(raw: Raw) -> Grant | None:
    """Convert a row; None if it is damaged: it grants nothing then."""
    grant_id, kind, tool, what, session, people, given_by, at, until, turn, origins, seen_at = raw
    try:
        return Grant(
            id=grant_id,
            scope=Scope(GrantKind(kind), tool, what),
            conversation=session,
            people=tuple(str(each) for each in json.loads(people)),
            by=given_by,
            at=instant(at),
            until=instant(until),
            turn=turn,
            origins=from_json(json.loads(origins)),
            seen_at=None if seen_at is None else instant(seen_at),
        )
    except (ValueError, TypeError) as error:
        _log.error("grant.unreadable", item=str(grant_id), error=type(error).__name__)
        return None
