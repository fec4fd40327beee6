"""Stores outgoing messages and records the progress of each send. The SQL is in ``outbox_statements.py``."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from agent_core.messages import OutboundKind, SessionKey
from agent_core.models import Message, Purpose, Usage
from agent_core.provenance import arriving, from_json
from gateway.store.model import NewOutbound, OtherHistory, OutboxRow
from gateway.store.sql import inbox_statements, job_store, maintenance_statements, outbox_statements
from gateway.store.sql.engine import NOTHING, ConnectionPort, Locks, Store, lock_names, pending
from gateway.store.sql.locking import inbox_locks, outbox_locks, session_locks
from gateway.store.sql.row_codec import (
    OUTBOX,
    dump,
    error_text,
    instant,
    key_text,
    message_id,
    new_outbox,
    origin_of_post,
    outbox_row,
)
from gateway.store.sql.state_store import TextChanged, claim_once, due_at, take_texts
from gateway.store.states import OutboxState


class OutboxStore(Store):
    """The outbox: outgoing messages, and the progress of each send."""

    async def post(
        self,
        outbound: Sequence[NewOutbound],
        *,
        once: tuple[str, str] | None = None,
        history: Sequence[OtherHistory] = (),
        collected: Sequence[int] = (),
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> list[OutboxRow]:
        """
        Put messages that answer nothing into the outbox, with history lines, in one transaction.

        It also removes ``collected`` alerts and these ``texts`` of the state; nothing happens if one of them
        has changed. With ``once``, a topic and a value, all happens only if the topic lacks that value, and
        sets it: one post per new value, across kills. Earlier posts are not returned.
        """
        now = self._now()
        origin = secrets.token_hex(16) if once is None else origin_of_post(once)
        messages = new_outbox(outbound, secret=self._secret, origin=origin, now=now)
        held = [new.hold for new in outbound]
        lines = [(str(session), [dump(line) for line in told]) for session, told in history]

        def write(db: ConnectionPort) -> list[int] | None:
            take_texts(db, texts)
            if once is not None and not claim_once(db, *once):
                return None
            job_store.delete_digest_alerts(db, collected)
            for session, told in lines:
                self._journal(db, session, told, now)
            return outbox_statements.insert(db, messages, inbox_id=None, turn=None, now=now, held=held)

        locks = [*outbox_locks(messages), *session_locks(*(session for session, _ in lines))]
        try:
            ids = await self._writer.call("post", write, locks=locks)
        except TextChanged:
            return []
        return [] if ids is None else pending(ids, messages, None, held)

    async def is_posted(self, once: tuple[str, str]) -> bool:
        """Return True if something was posted for a topic and a value, however long ago."""
        key = message_id(self._secret, origin_of_post(once), 0)
        query = "SELECT 1 FROM outbox WHERE key = ?"
        return await self._reader.call(
            "is_posted", lambda db: db.execute(query, (key,)).fetchone() is not None
        )

    async def next_sends(
        self, channel: str, account: str, *, busy: Sequence[SessionKey] = (), limit: int = 16
    ) -> list[OutboxRow]:
        """
        Return what can be sent now: the oldest open row (neither SENT nor DEAD nor UNKNOWN nor HELD) of each
        session that is not in ``busy``, if that row is due. So a destination gets its messages in order.
        """
        now, keys = self._now(), [str(session) for session in busy]
        raws = await self._reader.call(
            "next_sends", lambda db: outbox_statements.heads(db, channel, account, keys, limit=limit, now=now)
        )
        return [outbox_row(raw) for raw in raws]

    async def next_send_in(
        self, channel: str, account: str, *, busy: Sequence[SessionKey] = ()
    ) -> float | None:
        """
        Return the seconds until the next waiting row is due (0.0: one is due now); None if none waits. Of
        each session that is not in ``busy`` only the oldest open row counts, unless it is SENDING.
        """
        now, keys = self._now(), [str(session) for session in busy]
        return await self._reader.call(
            "next_send_in", lambda db: outbox_statements.next_send_in(db, channel, account, keys, now)
        )

    async def sending(self, row: OutboxRow) -> None:
        """Move ``pending → sending``, ``attempts + 1``, before anything is sent to the server."""
        await self._writer.call(
            "sending", lambda db: outbox_statements.start(db, row.id), locks=NOTHING, durable=False
        )

    async def probing(self, row: OutboxRow) -> None:
        """
        Move ``uncertain → sending`` without another attempt, before the server is asked whether it has the
        message. So the send is recorded as in flight if the process dies of it.
        """
        await self._writer.call(
            "probing", lambda db: outbox_statements.probe(db, row.id), locks=NOTHING, durable=False
        )

    async def uncertain(self, row: OutboxRow) -> None:
        """Move ``sending → uncertain``, durably before this returns: from now on the server may have it."""
        now = self._now()
        await self._writer.call(
            "uncertain", lambda db: outbox_statements.to_uncertain(db, row.id, now), locks=NOTHING
        )

    async def record_send(self, row: OutboxRow, provider_id: str, *, into: SessionKey | None = None) -> None:
        """Record that the server has it; complete rows become SETTLED. ``into``: the history it joins."""
        now = self._now()
        said: Callable[[ConnectionPort], None] | None = None
        if into is not None and row.message.remembered:
            # The key is the id, so that a line that a crash writes twice is recognised.
            line = Message(
                role="assistant",
                content=row.message.text,
                id=row.message.id,
                timestamp=instant(now),
                attachments=row.message.attachments,
                scope=row.message.notes.scope,
                # The origins of a model's text; without them, somebody at the machine has sent it.
                origins=arriving(from_json(row.message.notes.origins), instant(now)),
            )
            told = [dump(line)]
            said = lambda db: self._journal(db, str(into), told, now)  # noqa: E731 - bound to this line
        await self._writer.call(
            "sent",
            lambda db: outbox_statements.move_to_sent(
                db, row.id, row.inbox_id, key_text(provider_id), now, said=said
            ),
            locks=_of_turn(row, into),
        )

    async def pass_on(
        self, row: OutboxRow, outbound: NewOutbound, *, usage: Usage, purpose: Purpose
    ) -> OutboxRow:
        """Replace a row by its result in one commit; the new key is stable. Raises IllegalMove."""
        now, origin = self._now(), f"passed on\0{row.message.id}"
        messages = new_outbox([outbound], secret=self._secret, origin=origin, now=now)
        day, session = self._day(now), str(row.message.session)

        def write(db: ConnectionPort) -> list[int]:
            turn = outbox_statements.replace_sent(db, row.id, now)
            inbox_statements.add_usage(db, day, session, purpose.value, usage)
            return outbox_statements.insert(db, messages, inbox_id=row.inbox_id, turn=turn, now=now)

        locks = _of_turn(row, outbound.session)
        ids = await self._writer.call("pass_on", write, locks=locks)
        return pending(ids, messages, row.inbox_id, [False])[0]

    async def record_failure(
        self,
        row: OutboxRow,
        error: str,
        *,
        delay_s: float | None,
        certain: bool = True,
        apology: str | None = None,
        waits_for: str | None = None,
    ) -> None:
        """
        Record a failed send. With ``delay_s`` None it failed permanently (DEAD). Otherwise it is due after
        that time, or by `due_now`: as PENDING if it is ``certain`` that the server does not have it, as
        UNCERTAIN if not.

        With ``apology`` the same commit puts this text into the outbox in its place, unless a part of the
        same answer has led to an apology already.
        """
        now, text = self._now(), error_text(error)
        next_at = None if delay_s is None else due_at(now, delay_s)
        instead = None
        if apology is not None:
            told = row.message
            said = NewOutbound(
                told.channel, told.account, told.session, apology, OutboundKind.APOLOGY, told.context
            )
            [instead] = new_outbox([said], secret=self._secret, origin=f"apology\0{told.id}", now=now)

        def write(db: ConnectionPort) -> None:
            gone = outbox_statements.record_failure(
                db, row.id, text, next_at=next_at, certain=certain, now=now, waits_for=waits_for
            )
            if gone and instead is not None:
                outbox_statements.apologise(db, row.id, instead, now)

        await self._writer.call("send_failed", write, locks=_of_turn(row))

    async def needs_review(self, row: OutboxRow, error: str) -> None:
        """Mark as UNKNOWN: nobody can verify whether it was sent, and a person decides."""
        text = error_text(error)
        await self._writer.call(
            "needs_review", lambda db: outbox_statements.to_unknown(db, row.id, text), locks=NOTHING
        )

    async def approve(self, outbox_id: int, text: str | None = None) -> OutboxRow:
        """Approve a draft, perhaps with another ``text``: HELD → PENDING, dated now. Raises IllegalMove."""
        now = self._now()
        return outbox_row(
            await self._writer.call(
                "approve", lambda db: outbox_statements.approve(db, outbox_id, text, now), locks=NOTHING
            )
        )

    async def reject(self, outbox_id: int, why: str = "") -> OutboxRow:
        """Reject a draft or drop a failed or unknown send: → DEAD, with ``why``. Raises IllegalMove."""
        now, error = self._now(), error_text(f"rejected: {why}" if why else "rejected")
        return outbox_row(
            await self._writer.call(
                "reject", lambda db: outbox_statements.reject(db, outbox_id, error, now), locks=NOTHING
            )
        )

    async def row(self, outbox_id: int) -> OutboxRow | None:
        """Return one row of the outbox."""
        return await self._first("outbox_row", "id = ?", outbox_id)

    async def find_by_key(self, key: str) -> OutboxRow | None:
        """Return the newest row of the outbox with this key (``OutboundMessage.id``)."""
        return await self._first("outbox_by_key", "key = ? ORDER BY id DESC", key)

    async def _first(self, name: str, where: str, value: str | int) -> OutboxRow | None:
        query = f"SELECT {OUTBOX} FROM outbox WHERE {where} LIMIT 1"  # noqa: S608 - constants
        raw = await self._reader.call(name, lambda db: db.execute(query, (value,)).fetchone())
        return None if raw is None else outbox_row(raw)

    async def outbox_id_of(self, channel: str, account: str, provider_id: str) -> str | None:
        """Return the outbox key (``OutboundMessage.id``) that was sent as ``provider_id``."""
        query = "SELECT key FROM outbox WHERE provider_id = ? AND channel = ? AND account = ?"
        key = (key_text(provider_id), channel, account)
        found = await self._reader.call("delivered", lambda db: db.execute(query, key).fetchone())
        return None if found is None else str(found[0])

    async def unconfirmed_keys(self, channel: str, account: str) -> list[str]:
        """Return the outbox keys that are SENDING or UNCERTAIN."""
        query = (
            "SELECT key FROM outbox WHERE state IN ('sending', 'uncertain') AND channel = ? AND account = ?"
        )
        found = await self._reader.call(
            "unconfirmed", lambda db: db.execute(query, (channel, account)).fetchall()
        )
        return [str(key) for (key,) in found]

    async def rows(self, *, states: Sequence[OutboxState] = (), limit: int = 50) -> list[OutboxRow]:
        """Return rows, newest first."""
        raws = await self._reader.call("outbox", lambda db: maintenance_statements.outbox(db, states, limit))
        return [outbox_row(raw) for raw in raws]

    async def new_drafts(self, known: Collection[int], *, limit: int) -> tuple[list[OutboxRow], set[int]]:
        """
        Return rows that are HELD and whose ids are not ``known``, oldest first; of an answer in several parts
        the first one. With them return the ids of those that are HELD now and are known by then.
        """
        raws, all_known = await self._reader.call(
            "new_drafts", lambda db: maintenance_statements.new_drafts(db, known, limit)
        )
        return [outbox_row(raw) for raw in raws], all_known


def _of_turn(row: OutboxRow, into: SessionKey | None = None) -> Locks:
    """Return the locks for the turn that the row answers, whose other parts are read, and for a history."""
    turn = inbox_locks(row.inbox_id, instead=session_locks(str(row.message.session)))
    history = () if into is None else session_locks(str(into))
    return lambda db: [*history, *lock_names(db, turn)]
