"""Claims turns, records their steps and ends them. The SQL is in ``inbox_statements.py``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from agent_core.messages import SessionKey
from gateway.store.model import Completion, NewOutbound, OutboxRow, RunningTurn, Step, Turn
from gateway.store.sql import (
    inbox_statements,
    job_store,
    maintenance_statements,
    outbox_statements,
    receipt_store,
)
from gateway.store.sql.amendments import blank_withdrawn, list_edit_notes, notes_for_withdrawn
from gateway.store.sql.engine import ConnectionPort, Store, named_lock, pending
from gateway.store.sql.locking import outbox_locks, session_locks
from gateway.store.sql.row_codec import (
    dump,
    error_text,
    inbox_row,
    new_outbox,
    session_or_none,
    step_of,
    to_json,
)
from gateway.store.sql.state_store import due_at
from gateway.store.sql.usage_store import COSTLIEST, note_dear_turn
from gateway.store.states import InboxState


class TurnStore(Store):
    """The turns: claims on the head of a session, their steps, and their ends."""

    async def claim(self, session: SessionKey, *, merge: int = 1, out_of_band: bool = False) -> Turn | None:
        """
        Claim the head of the session: up to ``merge`` waiting rows as one turn, ``ready → running``.

        ``attempts`` is raised durably enough to survive SIGKILL before this returns. A turn that was claimed
        before comes back with the same id and rows. None: nothing waits, the head waits for its retry time,
        or the session is running under a live claim.

        A row that needs no model (a message that is ``alone``, a reaction) overtakes a head that waits for
        its retry time, so that commands work while there is no model. With ``out_of_band`` only such a row is
        claimed, also beside a running turn, but never two at once. Rows behind a turn that waits for a
        person's approval pass it. Nothing else is ever overtaken.
        """
        now, key = self._now(), str(session)

        def take(db: ConnectionPort) -> inbox_statements.TurnClaim | None:
            if out_of_band:
                return inbox_statements.claim_out_of_band(db, key, now)
            return inbox_statements.claim(db, key, merge, now)

        claimed = await self._writer.call(
            "claim",
            take,
            locks=session_locks(key),
            durable=False,
            undo=lambda db, done: inbox_statements.undo_claim(db, key, done, now),
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
            is_new=claimed.is_new,
        )

    async def steps(self, turn: Turn) -> list[Step]:
        """Return the steps that earlier starts of this turn recorded, by number."""
        owned = inbox_statements.claim_key(turn)

        def read(db: ConnectionPort) -> list[Any]:
            inbox_statements.check_claim(db, owned)
            query = (
                "SELECT number, kind, digest, request, result FROM turn_steps WHERE turn = ? ORDER BY number"
            )
            return db.execute(query, (owned.turn,)).fetchall()

        return [step_of(raw) for raw in await self._reader.call("steps", read)]

    async def running(self) -> list[RunningTurn]:
        """Return the turns at work, the longest one first, each with its newest recorded step."""

        def collect(db: ConnectionPort) -> list[tuple[Any, Any]]:
            turns = db.execute(
                "SELECT session, turn, COUNT(*), MIN(accepted_at) FROM inbox WHERE state = 'running'"
                " GROUP BY session, turn ORDER BY MIN(accepted_at)"
            ).fetchall()
            query = (
                "SELECT number, kind, digest, request, result FROM turn_steps WHERE turn = ?"
                " ORDER BY number DESC LIMIT 1"
            )
            return [(each, db.execute(query, (each[1],)).fetchone()) for each in turns]

        found = []
        for (session, _, messages, since), raw in await self._reader.call("running", collect):
            step = None if raw is None else step_of(raw)
            is_used = step is not None and step.kind == "tool" and step.result is None
            tool = step.request.get("call", {}).get("name", "") if step is not None and is_used else ""
            if (key := session_or_none(session)) is not None:
                number = 0 if step is None else step.number
                found.append(RunningTurn(key, datetime.fromtimestamp(since, UTC), messages, number, tool))
        return found

    async def record_step_start(self, turn: Turn, step: Step) -> None:
        """Record a step (``result`` None) durably before it has an effect."""
        await self._record(turn, step, None)

    async def record_step_result(self, turn: Turn, step: Step) -> None:
        """Record the result durably; it replaces the record with the same number."""
        await self._record(turn, step, None if step.result is None else to_json(step.result))

    async def _record(self, turn: Turn, step: Step, result: str | None) -> None:
        owned, raw = (
            inbox_statements.claim_key(turn),
            (step.number, step.kind, step.digest, to_json(step.request), result),
        )
        now = self._now()

        def write(db: ConnectionPort) -> None:
            inbox_statements.record_step(db, owned, raw)
            receipt_store.begin(db, owned.turn, step, now)
            if step.kind in ("tool", "command") and step.result is not None:
                receipt_store.finish(db, owned.turn, step.number, step.result, now)

        await self._writer.call("step", write, locks=session_locks(owned.session))

    async def complete(self, turn: Turn, completion: Completion) -> list[OutboxRow]:
        """
        Make the rows ANSWERED; history lines, outbox rows and usage are committed with it, the steps are
        dropped. The outbox rows refer to the last row of the turn; without any, the rows become SETTLED.
        """
        now, owned = self._now(), inbox_statements.claim_key(turn)
        messages = new_outbox(completion.outbound, secret=self._secret, origin=turn.id, now=now, turn=turn)
        held = [new.hold for new in completion.outbound]
        lines = [dump(message) for message in completion.history]
        others = [(str(session), [dump(line) for line in told]) for session, told in completion.others]
        day, purpose, usage = self._day(now), completion.purpose.value, completion.usage
        state = InboxState.ANSWERED if messages else InboxState.SETTLED

        def write(db: ConnectionPort) -> list[int]:
            if inbox_statements.end(db, owned, state, now):
                notes = [*list_edit_notes(db, owned.turn), *notes_for_withdrawn(db, owned.turn)]
                inbox_statements.accept_notes(db, notes, now)
                blank_withdrawn(db, owned.turn)
            self._journal(db, owned.session, lines, now)
            inbox_statements.add_usage(db, day, owned.session, purpose, usage)
            note_dear_turn(db, day, owned.tail, completion.spent)
            for session, told in others:
                self._journal(db, session, told, now)
            job_store.collect(db, completion.collected)
            if completion.entry is not None:
                job_store.note(db, completion.entry, now)
            return outbox_statements.insert(
                db, messages, inbox_id=owned.tail, turn=owned.turn, now=now, held=held
            )

        ledger = [] if completion.entry is None else [named_lock("ledger", completion.entry.name)]
        locks = [
            *session_locks(owned.session, *(session for session, _ in others)),
            *outbox_locks(messages),
            *ledger,
            *([named_lock(COSTLIEST, day)] if completion.spent.calls else []),
        ]
        ids = await self._writer.call("complete", write, locks=locks)
        return pending(ids, messages, owned.tail, held)

    async def retry(
        self, turn: Turn, error: str, *, delay_s: float, deferral: bool, waits_for: str | None = None
    ) -> None:
        """
        Move ``running → ready``, due after ``delay_s`` or by `due_now`. ``deferral``: it was not the
        message's fault (the provider is unavailable), so the start counts in ``deferrals`` instead of
        ``attempts``.
        """
        attempts, deferrals = (-1, 1) if deferral else (0, 0)
        await self._put_back(turn, error, delay_s, waits_for, attempts=attempts, deferrals=deferrals)

    async def postpone(self, turn: Turn, why: str, *, delay_s: float, waits_for: str | None = None) -> None:
        """
        Move ``running → ready``, due after ``delay_s`` or by `due_now`. Nothing has failed: neither the start
        nor the wait counts as an attempt or a deferral. The steps stay.
        """
        await self._put_back(turn, why, delay_s, waits_for, attempts=-1, deferrals=0)

    async def _put_back(
        self, turn: Turn, why: str, delay_s: float, waits_for: str | None, *, attempts: int, deferrals: int
    ) -> None:
        now, owned, text = self._now(), inbox_statements.claim_key(turn), error_text(why)
        await self._writer.call(
            "put_back",
            lambda db: inbox_statements.return_to_ready(
                db,
                owned,
                next_at=due_at(now, delay_s),
                error=text,
                now=now,
                attempts=attempts,
                deferrals=deferrals,
                waits_for=waits_for,
            ),
            locks=session_locks(owned.session),
        )

    async def dead_letter(
        self, turn: Turn, error: str, outbound: Sequence[NewOutbound] = ()
    ) -> list[OutboxRow]:
        """End a turn that failed permanently: its rows are DEAD, and the apology is in the outbox."""
        now, owned, text = self._now(), inbox_statements.claim_key(turn), error_text(error)
        messages = new_outbox(outbound, secret=self._secret, origin=turn.id, now=now, turn=turn)
        held = [new.hold for new in outbound]

        def write(db: ConnectionPort) -> list[int]:
            if inbox_statements.end(db, owned, InboxState.DEAD, now, error=text):
                blank_withdrawn(db, owned.turn)
            return outbox_statements.insert(
                db, messages, inbox_id=owned.tail, turn=owned.turn, now=now, held=held
            )

        locks = [*session_locks(owned.session), *outbox_locks(messages)]
        ids = await self._writer.call("dead_letter", write, locks=locks)
        return pending(ids, messages, owned.tail, held)

    async def release(self, turn: Turn) -> None:
        """Release a turn at shutdown: ``running → ready``, and this start does not count. Its steps stay."""
        now, owned = self._now(), inbox_statements.claim_key(turn)
        await self._writer.call(
            "release",
            lambda db: inbox_statements.return_to_ready(
                db, owned, next_at=None, error=None, attempts=-1, deferrals=0, now=now
            ),
            locks=session_locks(owned.session),
            durable=False,
        )

    async def due_in(self, session: SessionKey) -> float | None:
        """
        Return the seconds until the head of the session, or what overtakes it, is due (0.0: now). None:
        nothing waits, or a turn of the session is running. Call it when `claim` returned nothing, so that a
        retry is not forgotten.
        """
        now, key = self._now(), str(session)
        return await self._reader.call("due_in", lambda db: maintenance_statements.due_in(db, key, now))

    async def open_sessions(self) -> list[tuple[SessionKey, float]]:
        """Return sessions with work to do, and the seconds until their head is due (0.0: now)."""
        now = self._now()
        found = await self._reader.call(
            "open_sessions", lambda db: maintenance_statements.open_sessions(db, now)
        )
        return [(key, due_s) for text, due_s in found if (key := session_or_none(text)) is not None]

    async def waiting_people(self) -> dict[SessionKey, str]:
        """Return the address of the head's sender for each waiting session."""
        found = await self._reader.call("waiting_people", maintenance_statements.waiting_people)
        return {key: address for text, address in found if (key := session_or_none(text)) is not None}


def _as_running(raw: Sequence[Any], turn: str) -> tuple[Any, ...]:
    """Convert a claimable row to the row after the claim."""
    return (*raw[:7], InboxState.RUNNING, raw[8] + 1, *raw[9:11], turn, raw[12], None)
