"""What the gateway itself remembers, and what it has done once: the tables ``state`` and ``once``."""

from __future__ import annotations

from gateway.queue.sql.base import Part
from gateway.queue.sql.engine import NOTHING, Connection

__all__ = ["SqlState", "claim_once"]


def claim_once(db: Connection, topic: str, value: str) -> bool:
    """Note the newest value of a topic; False if it is that value already."""
    written = db.execute(
        "INSERT INTO once VALUES (?, ?) ON CONFLICT (topic) DO UPDATE SET value = excluded.value"
        " WHERE value <> excluded.value",
        (topic, value),
    )
    return written.rowcount == 1


class SqlState(Part):
    """Implements `gateway.queue.ports.StateStore`."""

    async def read(self, topic: str) -> str | None:
        """What was written last, or None."""
        query = "SELECT value FROM state WHERE topic = ?"
        found = await self._reader.call("read_state", lambda db: db.execute(query, (topic,)).fetchone())
        return None if found is None else str(found[0])

    async def write(self, topic: str, value: str) -> None:
        """Remember a text durably, in the place of what was remembered of this topic."""
        statement = "INSERT INTO state VALUES (?, ?) ON CONFLICT (topic) DO UPDATE SET value = excluded.value"
        await self._writer.call(
            "write_state", lambda db: db.execute(statement, (topic, value)) and None, locks=NOTHING
        )
