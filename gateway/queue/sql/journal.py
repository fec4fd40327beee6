"""Stores committed history lines until they are in their files."""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Sequence

from agent_core.messages import SessionKey
from gateway.queue.model import JournalLine
from gateway.queue.sql.base import Store
from gateway.queue.sql.codec import journal_line
from gateway.queue.sql.engine import NOTHING


class HistoryJournal(Store):
    """The history lines that were committed with an answer and may not be in their files yet."""

    async def lines(self, session: SessionKey | None = None) -> list[JournalLine]:
        """Return lines that may not be in their files yet, oldest first."""
        where, arguments = ("", ()) if session is None else (" WHERE session = ?", (str(session),))
        query = f"SELECT id, session, line FROM history_journal{where} ORDER BY id"
        raws = await self._reader.call("journal", lambda db: db.execute(query, arguments).fetchall())
        return [line for line in map(journal_line, raws) if line is not None]

    async def delete_filed_lines(self, ids: Sequence[int]) -> None:
        """Delete these lines from the journal: they are durable in their files."""
        gone = [(row_id,) for row_id in ids]
        await self._writer.call(
            "journal_done",
            lambda db: db.executemany("DELETE FROM history_journal WHERE id = ?", gone) and None,
            locks=NOTHING,
            durable=False,
        )
