"""
The inbox: messages come in, turns are claimed, worked on and answered.

The SQL is in ``inbox_sql.py``.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from agent_core.messages import Amendment, SessionKey
from gateway.queue.ports import (
    Accepted,
    Completion,
    InboxRow,
    JournalLine,
    NewOutbound,
    OutboxRow,
    Pending,
    Step,
    Stopped,
    Turn,
)
from gateway.queue.sqlite import amendments as amending
from gateway.queue.sqlite import inbox_sql, jobs_sql, maintenance_sql, outbox_sql
from gateway.queue.sqlite.base import Part, pending
from gateway.queue.sqlite.codec import (
    dump,
    error_text,
    inbox_row,
    instant,
    journal_line,
    key_text,
    new_outbox,
    session_or_none,
    step_of,
    stripped,
    to_json,
)
from gateway.queue.sqlite.due import due_at
from gateway.queue.states import InboxState

__all__ = ["InboxStore"]


class InboxStore(Part):
    """Accepting, turns, steps and the history journal of `gateway.queue.ports.WorkStore`."""

    async def accept(
        self,
        channel: str,
        account: str,
        batch: Sequence[Pending],
        positions: Mapping[str, str],
        amendments: Sequence[Amendment] = (),
    ) -> Accepted:
        """Commit a batch, the channel's new positions and amendments in one transaction, durably."""
        now = self._now()
        rows: list[inbox_sql.NewRow] = []
        for entry in batch:
            message = entry.message
            if (message.channel, message.account) != (channel, account):
                raise ValueError(
                    f"a message of {message.channel}/{message.account} in a batch of {channel}/{account}"
                )
            rows.append(
                inbox_sql.NewRow(
                    native_id=key_text(message.native_id),
                    session=str(message.session),
                    kind="alone" if entry.alone and message.kind == "message" else message.kind,
                    payload=dump(message if entry.ignore is None else stripped(message)),
                    state=_first_state(entry).value,
                    error=entry.ignore or entry.quarantine,
                )
            )

        def write(db: sqlite3.Connection) -> tuple[list[int | None], amending.Effects, list[Any]]:
            ids = inbox_sql.accept(db, channel, account, rows, positions=positions, now=now)
            if not amendments:
                return ids, amending.Effects(), []
            new = {row.native_id: row_id for row, row_id in zip(rows, ids, strict=True) if row_id is not None}
            effects = amending.amend(db, channel, account, amendments, new=new, now=now)
            return ids, effects, inbox_sql.rows_by_id(db, new.values())

        ids, effects, amended = await self._writer.call("accept", write)
        accepted = [
            InboxRow(
                id=row_id,
                message=entry.message if entry.ignore is None else stripped(entry.message),
                state=_first_state(entry),
                attempts=0,
                deferrals=0,
                accepted_at=instant(now),
                turn=None,
                error=entry.ignore or entry.quarantine,
            )
            for row_id, entry in zip(ids, batch, strict=True)
            if row_id is not None
        ]
        stopped = [
            Stopped(key, turn, why)
            for session, turn, why in effects.stopped
            if (key := session_or_none(session)) is not None
        ]
        return Accepted(map(inbox_row, amended) if amendments else accepted, stopped)

    async def position(self, channel: str, account: str, name: str) -> str | None:
        """The committed position, or None."""
        query = "SELECT value FROM positions WHERE channel = ? AND account = ? AND name = ?"
        found = await self._reader.call(
            "position", lambda db: db.execute(query, (channel, account, name)).fetchone()
        )
        return None if found is None else str(found[0])

    async def claim(self, session: SessionKey, *, merge: int = 1, aside: bool = False) -> Turn | None:
        """Take the head of the session, ``ready → running``."""
        now, key = self._now(), str(session)
        claimed = await self._writer.call(
            "claim",
            lambda db: inbox_sql.claim_aside(db, key, now) if aside else inbox_sql.claim(db, key, merge, now),
            durable=False,
            undo=lambda db, done: inbox_sql.undo_claim(db, key, done, now),
        )
        if claimed is None:
            return None
        rows = tuple(inbox_row(_as_running(raw, claimed.turn)) for raw in claimed.rows)
        first = claimed.first_deferred_at
        return Turn(
            id=claimed.turn,
            session=session,
            fence=claimed.fence,
            rows=rows,
            attempts=rows[0].attempts,
            deferrals=rows[0].deferrals,
            first_deferred_s=0.0 if first is None else max(0.0, now - first),
        )

    async def steps(self, turn: Turn) -> list[Step]:
        """What earlier starts of this turn have done, by number."""
        owned = inbox_sql.owned_by(turn)

        def look(db: sqlite3.Connection) -> list[Any]:
            inbox_sql.check_owned(db, owned)
            query = (
                "SELECT number, kind, digest, request, result FROM turn_steps WHERE turn = ? ORDER BY number"
            )
            return db.execute(query, (owned.turn,)).fetchall()

        return [step_of(raw) for raw in await self._reader.call("steps", look)]

    async def step_started(self, turn: Turn, step: Step) -> None:
        """Record a step (``result`` None) durably before it has an effect."""
        await self._record(turn, step, None)

    async def step_finished(self, turn: Turn, step: Step) -> None:
        """Record the result durably; replaces a record with the same number."""
        await self._record(turn, step, None if step.result is None else to_json(step.result))

    async def _record(self, turn: Turn, step: Step, result: str | None) -> None:
        owned, raw = (
            inbox_sql.owned_by(turn),
            (step.number, step.kind, step.digest, to_json(step.request), result),
        )
        await self._writer.call("step", lambda db: inbox_sql.record_step(db, owned, raw))

    async def complete(self, turn: Turn, completion: Completion) -> list[OutboxRow]:
        """The rows become ANSWERED, together with everything that follows from the answer."""
        now, owned = self._now(), inbox_sql.owned_by(turn)
        messages = new_outbox(completion.outbound, secret=self._secret, origin=turn.id, now=now, turn=turn)
        held = [new.hold for new in completion.outbound]
        lines = [dump(message) for message in completion.history]
        others = [(str(session), [dump(line) for line in told]) for session, told in completion.others]
        day, purpose, usage = self._day(now), completion.purpose.value, completion.usage
        state = InboxState.ANSWERED if messages else InboxState.SETTLED

        def write(db: sqlite3.Connection) -> list[int]:
            inbox_sql.end(db, owned, state, now)
            inbox_sql.journal(db, owned.session, lines)
            inbox_sql.spend(db, day, owned.session, purpose, usage)
            for session, told in others:
                inbox_sql.journal(db, session, told)
            jobs_sql.collect(db, completion.collected)
            if completion.entry is not None:
                jobs_sql.note(db, completion.entry, now)
            return outbox_sql.insert(db, messages, inbox_id=owned.tail, turn=owned.turn, now=now, held=held)

        ids = await self._writer.call("complete", write)
        return pending(ids, messages, owned.tail, held)

    async def retry(
        self, turn: Turn, error: str, *, delay_s: float, deferral: bool, waits_for: str | None = None
    ) -> None:
        """``running → ready``, not before ``delay_s``."""
        now, owned, text = self._now(), inbox_sql.owned_by(turn), error_text(error)
        counted = {"attempts": -1, "deferrals": 1} if deferral else {"attempts": 0, "deferrals": 0}
        await self._writer.call(
            "retry",
            lambda db: inbox_sql.put_back(
                db,
                owned,
                next_at=due_at(now, delay_s),
                error=text,
                now=now,
                waits_for=waits_for,
                **counted,
            ),
        )

    async def postpone(self, turn: Turn, why: str, *, delay_s: float, waits_for: str | None = None) -> None:
        """``running → ready``, not before ``delay_s``, and nothing has failed."""
        now, owned, text = self._now(), inbox_sql.owned_by(turn), error_text(why)
        await self._writer.call(
            "postpone",
            lambda db: inbox_sql.put_back(
                db,
                owned,
                next_at=due_at(now, delay_s),
                error=text,
                now=now,
                attempts=-1,
                deferrals=0,
                waits_for=waits_for,
            ),
        )

    async def bury(self, turn: Turn, error: str, outbound: Sequence[NewOutbound] = ()) -> list[OutboxRow]:
        """The turn failed for good: its rows are DEAD and the apology is in the outbox, together."""
        now, owned, text = self._now(), inbox_sql.owned_by(turn), error_text(error)
        messages = new_outbox(outbound, secret=self._secret, origin=turn.id, now=now, turn=turn)
        held = [new.hold for new in outbound]

        def write(db: sqlite3.Connection) -> list[int]:
            inbox_sql.end(db, owned, InboxState.DEAD, now, error=text)
            return outbox_sql.insert(db, messages, inbox_id=owned.tail, turn=owned.turn, now=now, held=held)

        return pending(await self._writer.call("bury", write), messages, owned.tail, held)

    async def release(self, turn: Turn) -> None:
        """Park a turn at shutdown: ``running → ready``, and this start does not count."""
        now, owned = self._now(), inbox_sql.owned_by(turn)
        await self._writer.call(
            "release",
            lambda db: inbox_sql.put_back(
                db, owned, next_at=None, error=None, attempts=-1, deferrals=0, now=now
            ),
            durable=False,
        )

    async def due_in(self, session: SessionKey) -> float | None:
        """In how many seconds the head of the session is due."""
        now, key = self._now(), str(session)
        return await self._reader.call("due_in", lambda db: maintenance_sql.due_in(db, key, now))

    async def journal(self, session: SessionKey | None = None) -> list[JournalLine]:
        """Lines that may not be in their files yet, oldest first."""
        where, arguments = ("", ()) if session is None else (" WHERE session = ?", (str(session),))
        query = f"SELECT id, session, line FROM history_journal{where} ORDER BY id"
        raws = await self._reader.call("journal", lambda db: db.execute(query, arguments).fetchall())
        return [line for line in map(journal_line, raws) if line is not None]

    async def journal_done(self, ids: Sequence[int]) -> None:
        """These lines are durable in their files."""
        gone = [(row_id,) for row_id in ids]
        await self._writer.call(
            "journal_done",
            lambda db: db.executemany("DELETE FROM history_journal WHERE id = ?", gone) and None,
            durable=False,
        )


def _first_state(entry: Pending) -> InboxState:
    if entry.ignore is not None:
        return InboxState.IGNORED
    return InboxState.READY if entry.quarantine is None else InboxState.QUARANTINED


def _as_running(raw: Sequence[Any], turn: str) -> tuple[Any, ...]:
    """A claimable row as it is after the claim."""
    return (*raw[:7], InboxState.RUNNING, raw[8] + 1, *raw[9:11], turn, raw[12], None)
