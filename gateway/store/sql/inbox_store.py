"""
Stores accepted messages, amends them, and records people's decisions about them. The SQL is in
``inbox_statements.py``.
"""

# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from agent_core.messages import Amendment, SessionKey
from gateway.store.model import AcceptedBatch, InboxRow, OutboxRow, Pending, StoppedTurn
from gateway.store.sql import amendments as amending
from gateway.store.sql import inbox_statements, maintenance_statements
from gateway.store.sql.engine import ConnectionPort, Store, named_lock
from gateway.store.sql.locking import amendment_locks, conversation_condition, inbox_locks, session_locks
from gateway.store.sql.question_store import amend, list_session_locks, settle_with
from gateway.store.sql.row_codec import (
    INBOX,
    direct_sender_of,
    dump,
    inbox_row,
    instant,
    key_text,
    outbox_row,
    session_or_none,
    strip,
)
from gateway.store.sql.state_store import UNINDEXED_STATE
from gateway.store.states import InboxState

_SENDERS = ('%"sender":{{"address":{}%', '%"sender": {{"address": {}%')


class InboxStore(Store):
    """The inbox: the accepted messages, and people's decisions about them."""

    async def accept(
        self,
        channel: str,
        account: str,
        batch: Sequence[Pending],
        positions: Mapping[str, str],
        amendments: Sequence[Amendment] = (),
    ) -> AcceptedBatch:
        """
        Commit a batch and the channel's new positions in one transaction, durably.

        A message whose (channel, account, native_id) is known is left out: a success without work. Returns
        the new rows in order; those with ``ignore`` have the state IGNORED, those with ``quarantine``
        QUARANTINED.

        Then, in the same transaction, the amendments are applied, each to earlier messages of this channel
        and account:

        - ``replace``: a row of the same sender that is not answered yet gets the new text. Its turn
          is lost, and the rows of that wait again. Of an answered row the new text is noted.
        - ``withdraw``: a row of the same sender that waits (or is quarantined) becomes IGNORED as
          ``withdrawn``. In a turn that runs, or has steps that must not be repeated, it is marked. As soon as
          all rows of that turn are marked they become IGNORED; otherwise the turn is answered as it is. A
          marked row is left out when a turn without steps is claimed again. An answered row is taken out of
          the history by a note.
        - ``leave``: everything that waits or runs in the sessions of ``session.conversation`` becomes IGNORED
          as ``left``, and unsent messages there become DEAD.
        - ``stop``: everything that waits or runs in ``session`` and was accepted before the message
          ``native_id`` becomes IGNORED as ``stopped``; the message's ``notes.stopped`` has the number.
          If that message is not new, nothing happens. Without a ``native_id`` all rows are meant.

        A turn whose rows are IGNORED, or wait again, is lost to the handler working on it;
        `AcceptedBatch.stopped` names it.
        """
        now = self._now()
        rows = [_new_row(entry, channel, account) for entry in batch]

        def write(db: ConnectionPort) -> tuple[list[int | None], amending.Effects, list[Any]]:
            ids = inbox_statements.accept(db, channel, account, rows, positions=positions, now=now)
            for row_id, entry in zip(ids, batch, strict=True):
                if row_id is not None and entry.settles:
                    settle_with(db, row_id, entry.settles, now, entry.grants)
            if not amendments:
                return ids, amending.Effects(), []
            new = {row.native_id: row_id for row, row_id in zip(rows, ids, strict=True) if row_id is not None}
            effects = amend(db, channel, account, amendments, new=new, now=now)
            inbox_statements.accept_notes(db, effects.notes, now)
            return ids, effects, inbox_statements.rows_by_id(db, new.values())

        def locks(db: ConnectionPort) -> Iterator[str]:
            yield from _batch_locks(db, batch)
            yield from amendment_locks(db, channel, account, amendments)

        ids, effects, amended = await self._writer.call("accept", write, locks=locks)
        accepted = [
            _accepted_row(row_id, entry, now)
            for row_id, entry in zip(ids, batch, strict=True)
            if row_id is not None
        ]
        return AcceptedBatch(map(inbox_row, amended) if amendments else accepted, _lost_turns(effects))

    async def ready_work(self, sessions: Mapping[int, SessionKey]) -> int:
        """Move READY messages to these sessions; return the number moved. Nobody may be working."""
        wanted = {row_id: str(session) for row_id, session in sessions.items()}
        return await self._writer.call(
            "work_in",
            lambda db: maintenance_statements.work_in(db, wanted),
            locks=inbox_locks(*wanted, also=session_locks(*wanted.values())),
        )

    async def position(self, channel: str, account: str, name: str) -> str | None:
        """Return the committed position; None if there is none."""
        query = "SELECT value FROM positions WHERE channel = ? AND account = ? AND name = ?"
        found = await self._reader.call(
            "position", lambda db: db.execute(query, (channel, account, name)).fetchone()
        )
        return None if found is None else str(found[0])

    async def admit(self, inbox_id: int, *, welcome: bool = False) -> SessionKey:
        """
        Release a quarantined message on a person's word: QUARANTINED → READY; return its session.

        The sender counts as verified for it; ``notes.admitted`` is set unless that person is ``welcome``
        now. Raises IllegalMove.
        """
        return SessionKey.parse(
            await self._writer.call(
                "admit", lambda db: amending.admit(db, inbox_id, welcome=welcome), locks=inbox_locks(inbox_id)
            )
        )

    async def rows(
        self,
        *,
        states: Sequence[InboxState] = (),
        session: SessionKey | None = None,
        errors: Sequence[str] = (),
        limit: int = 50,
    ) -> list[InboxRow]:
        """
        Return rows, newest first. Without states: all but IGNORED.

        ``errors`` are patterns of SQL's LIKE; a row's error must fit one of them.
        """
        key = None if session is None else str(session)
        raws = await self._reader.call(
            "inbox", lambda db: maintenance_statements.inbox(db, states, key, errors, limit)
        )
        return [inbox_row(raw) for raw in raws]

    async def list_accepted_messages(
        self, channel: str, *, sender: str = "", session: SessionKey | None = None, limit: int = 20
    ) -> list[InboxRow]:
        """
        Return messages of people that were accepted for an answer (neither IGNORED nor QUARANTINED nor DEAD),
        newest first: of a ``sender``, regardless of case, or in the conversation of ``session`` with its
        threads.
        """
        where, values = "", list[str]()
        if sender:
            # The format in which a message is stored (`codec.dump`); within a text the quotation marks would
            # be escaped.
            where = " AND (" + " OR ".join(["lower(payload) LIKE lower(?) ESCAPE '~'"] * len(_SENDERS)) + ")"
            text = json.dumps(sender, ensure_ascii=False)
            for sign in "~%_":
                text = text.replace(sign, f"~{sign}")
            values += [each.format(text) for each in _SENDERS]
        if session is not None:
            in_it, sessions = conversation_condition(session)
            where, values = f"{where} AND {in_it}", [*values, *sessions]
        query = (
            f"SELECT {INBOX} FROM inbox WHERE channel = ? AND kind IN ('message', 'alone'){where}"
            f" AND {UNINDEXED_STATE} IN ('ready', 'running', 'answered', 'settled') ORDER BY id DESC LIMIT ?"
        )
        return await self._found("taken", query, channel, *values, limit)

    async def newest_messages(self, sessions: Collection[SessionKey]) -> dict[SessionKey, InboxRow]:
        """Return the newest accepted message of a person in each of these conversations that has one."""
        names = {str(session) for session in sessions}
        raws = await self._reader.call("newest", lambda db: maintenance_statements.newest_messages(db, names))
        return {row.message.session: row for row in map(inbox_row, raws)}

    async def newest_people(self, sessions: Collection[str]) -> dict[str, tuple[str, str]]:
        """Return channel and sender of the newest accepted message of each private conversation of these."""
        newest = maintenance_statements.newest_messages
        found: dict[str, tuple[str, str]] = {}
        for _, channel, _, _, session, _, payload, *_ in await self._reader.call(
            "newest", lambda db: newest(db, sessions)
        ):
            if (sender := direct_sender_of(payload)) is not None:
                found[session] = channel, sender
        return found

    async def row(self, inbox_id: int) -> tuple[InboxRow, list[OutboxRow]] | None:
        """Return one row and the messages that were or will be sent for it."""
        found = await self._reader.call(
            "inbox_row", lambda db: maintenance_statements.inbox_row(db, inbox_id)
        )
        return None if found is None else (inbox_row(found[0]), [outbox_row(raw) for raw in found[1]])

    async def find_by_key(self, channel: str, account: str, native_id: str) -> InboxRow | None:
        """Return the row of an accepted message; None if there is none, or only a digest of it is left."""
        query = f"SELECT {INBOX} FROM inbox WHERE channel = ? AND account = ? AND native_id = ?"
        found = await self._found("inbox_by_key", query, channel, account, key_text(native_id))
        return found[0] if found else None

    async def _found(self, name: str, query: str, *values: str | float) -> list[InboxRow]:
        raws = await self._reader.call(name, lambda db: db.execute(query, values).fetchall())
        return [inbox_row(raw) for raw in raws]

    async def list_new_quarantine(
        self, known: Collection[int], *, limit: int
    ) -> tuple[list[InboxRow], set[int]]:
        """
        Return rows that are QUARANTINED and whose ids are not ``known``, oldest first, and with them the ids
        of those that are QUARANTINED now and are known by then. A highest id would not do: rows may be
        committed in another order.
        """
        raws, all_known = await self._reader.call(
            "list_new_quarantine", lambda db: maintenance_statements.list_new_quarantine(db, known, limit)
        )
        return [inbox_row(raw) for raw in raws], all_known

    async def quarantined_as(self, reason: str) -> list[InboxRow]:
        """Return the rows that are QUARANTINED for this reason, oldest first."""
        query = f"SELECT {INBOX} FROM inbox WHERE state = 'quarantined' AND error = ? ORDER BY id"
        return await self._found("quarantined_as", query, reason)

    async def recently_withdrawn(self, *, within_s: float) -> list[InboxRow]:
        """Return rows that are IGNORED although a turn had begun, accepted within this time, newest first."""
        # These conditions match those of an index.
        query = (
            f"SELECT {INBOX} FROM inbox WHERE state = 'ignored' AND turn IS NOT NULL AND accepted_at >= ?"
            " ORDER BY accepted_at DESC LIMIT 200"
        )
        return await self._found("taken_back", query, self._now() - within_s)

    async def background_jobs(self, *, open_only: bool = False, limit: int = 50) -> list[InboxRow]:
        """Return rows of background jobs, newest first; with ``open_only`` those that have not ended."""
        # The condition on the kind matches that of an index.
        narrowed = f" AND {UNINDEXED_STATE} IN ('ready', 'running', 'quarantined')" if open_only else ""
        query = f"SELECT {INBOX} FROM inbox WHERE kind = 'background_job'{narrowed} ORDER BY id DESC LIMIT ?"
        return await self._found("background_jobs", query, limit)

    async def requeue(self, inbox_id: int) -> SessionKey | None:
        """
        Retry on a person's request: a DEAD row becomes READY with fresh counters, DEAD or UNKNOWN sends of an
        answered row become PENDING. Rejected drafts are excluded, and so are sends to a conversation that the
        bot has left, and a DEAD row that its sender took back. Returns the session, or None if there was
        nothing to do.
        """
        found = await self._writer.call(
            "requeue", lambda db: maintenance_statements.requeue(db, inbox_id), locks=inbox_locks(inbox_id)
        )
        return None if found is None else SessionKey.parse(found)

    async def drop(self, inbox_id: int) -> bool:
        """Drop a message for a person: READY, DEAD or QUARANTINED becomes IGNORED, unsent answers DEAD."""
        now = self._now()
        return await self._writer.call(
            "drop", lambda db: maintenance_statements.drop(db, inbox_id, now), locks=inbox_locks(inbox_id)
        )

    async def reset_session(self, session: SessionKey) -> None:
        """
        Drop what waits in a session, before its history is reset. READY rows become IGNORED. Journal lines
        that are not in the file yet are deleted, so that they cannot come back after the reset.
        """
        now, key = self._now(), str(session)
        await self._writer.call(
            "reset_session",
            lambda db: maintenance_statements.reset_session(db, key, now),
            locks=session_locks(key),
        )


def _new_row(entry: Pending, channel: str, account: str) -> inbox_statements.NewRow:
    """The new row for an entry of a batch of this account. Raises ValueError for another's."""
    message = entry.message
    if (message.channel, message.account) != (channel, account):
        raise ValueError(
            f"a message of {message.channel}/{message.account} in a batch of {channel}/{account}"
        )
    return inbox_statements.NewRow(
        native_id=key_text(message.native_id),
        session=str(entry.conversation),
        kind="alone" if entry.alone and message.kind == "message" else message.kind,
        payload=dump(message if entry.ignore is None else strip(message)),
        state=_first_state(entry).value,
        error=entry.ignore or entry.quarantine,
    )


def _batch_locks(db: ConnectionPort, batch: Sequence[Pending]) -> Iterator[str]:
    yield from session_locks(*(str(entry.conversation) for entry in batch))
    yield from list_session_locks(db, {name for entry in batch for name in entry.settles})
    if any(entry.grants for entry in batch):
        yield named_lock("grants")


def _lost_turns(effects: amending.Effects) -> list[StoppedTurn]:
    return [
        StoppedTurn(key, turn, why)
        for session, turn, why in effects.stopped
        if (key := session_or_none(session)) is not None
    ]


def _accepted_row(row_id: int, entry: Pending, now: float) -> InboxRow:
    return InboxRow(
        id=row_id,
        message=entry.message if entry.ignore is None else strip(entry.message),
        state=_first_state(entry),
        attempts=0,
        deferrals=0,
        accepted_at=instant(now),
        turn=None,
        error=entry.ignore or entry.quarantine,
    )


def _first_state(entry: Pending) -> InboxState:
    if entry.ignore is not None:
        return InboxState.IGNORED
    return InboxState.READY if entry.quarantine is None else InboxState.QUARANTINED
