"""
Looks up which locks a call needs, where they are not known beforehand (`gateway.store.sql.engine.Locks`).
What is found before the locks are taken is still true when they are held: a row of the inbox changes its
session only in `InboxStore.work_in`, while nobody works on anything. All else in the row is read again.
"""
# ruff: noqa: S608 - only constants of this module are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from agent_core.messages import BY_EDIT, Amendment, OutboundMessage, SessionKey
from gateway.store.model import SPEECH_CHANNEL
from gateway.store.shared import SHARED
from gateway.store.sql.engine import ConnectionPort, Locks, session_lock
from gateway.store.sql.row_codec import key_text

OUTBOX_OF_CHANNEL = f"channel IN (?, '{SPEECH_CHANNEL}')"
"""The condition on sends by a channel, including speech for that channel."""


NAMED = "channel = ? AND account = ? AND native_id IN (?, ?)"
"""The condition on the message of a channel and account that an amendment is about (`names_of`)."""


def names_of(amendment: Amendment) -> tuple[str, str]:
    """Return the names that the message of an amendment may have: its own, and that of its question."""
    return key_text(amendment.native_id), key_text(f"{amendment.native_id}{BY_EDIT}")


def session_locks(*sessions: str) -> list[str]:
    """Return the locks of these sessions."""
    return [session_lock(session) for session in sessions]


def outbox_locks(messages: Iterable[tuple[OutboundMessage, str]]) -> list[str]:
    """Return the locks of outbox messages' sessions, which are sent in order of their ids."""
    return list({session_lock(str(message.session)) for message, _ in messages})


def inbox_locks(*inbox_ids: int | None, instead: Collection[str] = (), also: Collection[str] = ()) -> Locks:
    """Return the locks of inbox rows' sessions and ``also``; ``instead`` for a missing row."""

    def list_locks(db: ConnectionPort) -> Iterator[str]:
        yield from also
        for inbox_id in inbox_ids:
            row = db.execute("SELECT session FROM inbox WHERE id = ?", (inbox_id,)).fetchone()
            yield from instead if row is None else session_locks(str(row[0]))

    return list_locks


def inbox_range_locks(first: int, last: int) -> Locks:
    """Return the locks of the sessions of the ignored inbox rows with ids in this range."""
    query = "SELECT DISTINCT session FROM inbox WHERE id BETWEEN ? AND ? AND (state || '') = 'ignored'"
    return lambda db: [session_lock(str(session)) for (session,) in db.execute(query, (first, last))]


def conversation_condition(session: SessionKey) -> tuple[str, tuple[str, str, str]]:
    """Return the condition on ``session`` for a conversation with its threads, and its arguments."""
    whole = str(SessionKey(session.channel, session.conversation))
    # A thread's key is the conversation's, a slash, and its name; "0" sorts after the slash.
    return "(session = ? OR (session > ? AND session < ?))", (whole, f"{whole}/", f"{whole}0")


def amendment_locks(
    db: ConnectionPort, channel: str, account: str, amendments: Sequence[Amendment]
) -> Iterator[str]:
    """Yield the locks of the sessions in which these amendments change something."""
    for each in amendments:
        if each.kind in ("replace", "withdraw"):
            query, values = f"SELECT session FROM inbox WHERE {NAMED}", (channel, account, *names_of(each))
            yield from session_locks(*(str(session) for (session,) in db.execute(query, values)))
        elif each.kind == "stop" and each.session is not None:
            yield session_lock(str(each.session))
        elif each.kind == "leave" and each.session is not None:
            where, there = conversation_condition(each.session)
            yield session_lock(there[0])
            yield session_lock(str(SHARED))
            found = db.execute(
                "SELECT session FROM inbox WHERE channel = ? AND account = ?"
                f" AND state IN ('ready', 'running', 'quarantined') AND {where}"
                f" UNION SELECT session FROM outbox WHERE {OUTBOX_OF_CHANNEL} AND account = ?"
                f" AND state IN ('pending', 'sending', 'uncertain', 'held') AND {where}",
                (channel, account, *there, channel, account, *there),
            )
            yield from (session_lock(str(session)) for (session,) in found)
