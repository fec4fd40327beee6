"""
Starting, looking, mending, forgetting, and leases.

The SQL is in ``maintenance_sql.py`` and ``leases.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.queue.ports import IGNORED_S, QUARANTINE_S, InboxRow, OutboxRow, StoreStats, Suspect, UsageRow
from gateway.queue.sqlite import amendments, crash_records, inbox_sql, leases, maintenance_sql
from gateway.queue.sqlite.base import Part
from gateway.queue.sqlite.codec import inbox_row, key_text, outbox_row, session_or_none
from gateway.queue.sqlite.stats import counted
from gateway.queue.states import InboxState, OutboxState

__all__ = ["Maintenance"]

_PRUNE_ROWS = 2000


class Maintenance(Part):
    """The care of `gateway.queue.ports.WorkStore`."""

    async def recover(self) -> None:
        """Once at start: nobody works on anything at this moment."""
        now = self._now()
        await self._writer.call("recover", lambda db: maintenance_sql.recover(db, now))

    async def suspects(self) -> list[Suspect]:
        """What is still open and was in flight when the process died."""
        found = await self._reader.call("suspects", crash_records.suspects)
        return [
            Suspect(session, record, turn, outbox_id)
            for turn, outbox_id, text, record in found
            if (session := session_or_none(text)) is not None
        ]

    async def due_now(self, waits_for: str) -> None:
        """Let nothing wait for this any more."""
        await self._writer.call("due_now", lambda db: maintenance_sql.due_now(db, waits_for))

    async def open_sessions(self) -> list[tuple[SessionKey, float]]:
        """Sessions with something to do, and in how many seconds their head is due."""
        now = self._now()
        found = await self._reader.call("open_sessions", lambda db: maintenance_sql.open_sessions(db, now))
        return [(key, due_s) for text, due_s in found if (key := session_or_none(text)) is not None]

    async def waiting_people(self) -> dict[SessionKey, str]:
        """Who sent the head of each session that waits."""
        found = await self._reader.call("waiting_people", maintenance_sql.waiting_people)
        return {key: address for text, address in found if (key := session_or_none(text)) is not None}

    async def inbox(
        self, *, states: Sequence[InboxState] = (), session: SessionKey | None = None, limit: int = 50
    ) -> list[InboxRow]:
        """Rows, newest first. No states: all but IGNORED."""
        key = None if session is None else str(session)
        raws = await self._reader.call("inbox", lambda db: maintenance_sql.inbox(db, states, key, limit))
        return [inbox_row(raw) for raw in raws]

    async def quarantined_after(self, inbox_id: int, *, limit: int) -> list[InboxRow]:
        """Rows with a higher id that are QUARANTINED, oldest first."""
        raws = await self._reader.call(
            "quarantined_after", lambda db: maintenance_sql.quarantined_after(db, inbox_id, limit)
        )
        return [inbox_row(raw) for raw in raws]

    async def inbox_by_key(self, channel: str, account: str, native_id: str) -> InboxRow | None:
        """The row of a message that was accepted."""
        key = (channel, account, key_text(native_id))
        raw = await self._reader.call("inbox_by_key", lambda db: maintenance_sql.inbox_by_key(db, *key))
        return None if raw is None else inbox_row(raw)

    async def taken_back(self, *, within_s: float, limit: int = 200) -> list[InboxRow]:
        """Rows that are IGNORED although a turn had begun with them, newest first."""
        since = self._now() - within_s
        raws = await self._reader.call("taken_back", lambda db: maintenance_sql.taken_back(db, since, limit))
        return [inbox_row(raw) for raw in raws]

    async def inbox_row(self, inbox_id: int) -> tuple[InboxRow, list[OutboxRow]] | None:
        """One row and what was or will be sent for it."""
        found = await self._reader.call("inbox_row", lambda db: maintenance_sql.inbox_row(db, inbox_id))
        return None if found is None else (inbox_row(found[0]), [outbox_row(raw) for raw in found[1]])

    async def outbox(self, *, states: Sequence[OutboxState] = (), limit: int = 50) -> list[OutboxRow]:
        """Rows, newest first."""
        raws = await self._reader.call("outbox", lambda db: maintenance_sql.outbox(db, states, limit))
        return [outbox_row(raw) for raw in raws]

    async def held_after(self, outbox_id: int, *, limit: int) -> list[OutboxRow]:
        """Rows with a higher id that are HELD, oldest first; of each answer the first."""
        raws = await self._reader.call(
            "held_after", lambda db: maintenance_sql.held_after(db, outbox_id, limit)
        )
        return [outbox_row(raw) for raw in raws]

    async def requeue(self, inbox_id: int) -> SessionKey | None:
        """A person wants it tried again."""
        found = await self._writer.call("requeue", lambda db: maintenance_sql.requeue(db, inbox_id))
        return None if found is None else SessionKey.parse(found)

    async def drop(self, inbox_id: int) -> bool:
        """A person gives it up."""
        now = self._now()
        return await self._writer.call("drop", lambda db: maintenance_sql.drop(db, inbox_id, now))

    async def admit(self, inbox_id: int) -> SessionKey:
        """A person lets a quarantined message in."""
        return SessionKey.parse(await self._writer.call("admit", lambda db: amendments.admit(db, inbox_id)))

    async def reset_session(self, session: SessionKey) -> None:
        """Drop what waits in a session, before its history is reset."""
        now, key = self._now(), str(session)
        await self._writer.call("reset_session", lambda db: maintenance_sql.reset_session(db, key, now))

    async def add_usage(self, session: SessionKey, usage: Usage, purpose: Purpose) -> None:
        """Note what was spent outside of a completed turn."""
        day, key = self._day(self._now()), str(session)
        await self._writer.call("add_usage", lambda db: inbox_sql.spend(db, day, key, purpose.value, usage))

    async def usage(self, *, days: int = 30) -> list[UsageRow]:
        """What was spent, newest day first."""
        since = self._day(self._now() - (days - 1) * 86_400)
        query = (
            "SELECT day, session, purpose, model, prompt_tokens, completion_tokens, calls, cost_usd,"
            " cached_tokens, thinking_tokens FROM usage WHERE day >= ?"
            " ORDER BY day DESC, session, purpose, model"
        )
        raws = await self._reader.call("usage", lambda db: db.execute(query, (since,)).fetchall())
        return [
            UsageRow(
                day,
                session,
                purpose,
                model,
                Usage(
                    prompt_tokens=given,
                    completion_tokens=made,
                    calls=calls,
                    cost_usd=cost_usd,
                    model=model,
                    cached_tokens=cached,
                    thinking_tokens=thinking,
                ),
            )
            for day, session, purpose, model, given, made, calls, cost_usd, cached, thinking in raws
        ]

    async def stats(self) -> StoreStats:
        """Counts and ages."""
        now = self._now()
        return await self._reader.call("stats", lambda db: counted(db, now))

    async def prune(self, *, older_than_s: float) -> int:
        """Forget payloads of rows that ended longer ago than this; their keys stay."""
        now = self._now()
        ended, ignored = now - older_than_s, now - min(older_than_s, IGNORED_S)
        last_inbox, last_outbox = await self._reader.call("prune", maintenance_sql.last_ids)
        forgotten = await self._writer.call(
            "prune", lambda db: maintenance_sql.end_quarantine(db, now - QUARANTINE_S, now)
        )
        # In small pieces, so that nobody waits for it.
        for last, before, find, forget in (
            (last_inbox, ignored, maintenance_sql.ignored_long_ago, maintenance_sql.keep_digests),
            (last_inbox, ended, maintenance_sql.ended_inbox, maintenance_sql.forget_inbox),
            (last_outbox, ended, maintenance_sql.ended_outbox, maintenance_sql.forget_outbox),
        ):
            for first in range(1, last + 1, _PRUNE_ROWS):
                until = first + _PRUNE_ROWS - 1
                ids = await self._reader.call("prune", partial(find, first=first, last=until, before=before))
                if ids:
                    forgotten += await self._writer.call("prune", partial(forget, ids=ids, before=before))
        return forgotten

    async def lease(self, name: str, *, holder: str, ttl_s: float) -> int | None:
        """Get or renew a lease: its fence, or None if it is taken."""
        now = self._now()
        return await self._writer.call("lease", lambda db: leases.lease(db, name, holder, ttl_s, now))

    async def release_lease(self, name: str, *, holder: str) -> None:
        """Give it back early; nothing happens if it is not held."""
        await self._writer.call("release_lease", lambda db: leases.release_lease(db, name, holder))
