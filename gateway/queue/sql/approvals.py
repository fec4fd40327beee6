"""Questions to people about steps of turns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog

from agent_core.messages import SPEECH, SessionKey
from agent_core.tools.grants import Grant
from gateway.queue.model import (
    APPROVAL,
    APPROVED,
    WITHDRAWN,
    Decided,
    NewOutbound,
    OutboxRow,
    Question,
    Step,
    Turn,
)
from gateway.queue.sql import amendments, grants, inbox_sql, outbox_sql
from gateway.queue.sql.base import Part, pending
from gateway.queue.sql.codec import (
    OUTBOX,
    Raw,
    error_text,
    load_json,
    new_outbox,
    outbox_row,
    session_or_none,
    to_json,
)
from gateway.queue.sql.due import due_at
from gateway.queue.sql.engine import Connection, named_lock, session_lock
from gateway.queue.sql.locking import of_sends
from gateway.queue.sql.state import remember

_QUESTIONS = (
    "SELECT step.turn, step.number, step.request, step.result, inbox.session"
    " FROM inbox JOIN turn_steps AS step ON step.turn = inbox.turn"
    " WHERE inbox.state IN ('ready', 'running') AND inbox.id = inbox.tail AND step.kind = 'approval'"
    " ORDER BY inbox.id, step.number"
)
_TOPIC = "question:"
"""Under which it is remembered what was decided, in the table ``state``: when, where, what, which tool."""
_AFTER_TOPIC = "question;"
"""What follows all topics that begin so."""
_REMEMBERED_S = 30 * 86_400.0
_LOOKED_AT = 8
"""Of so many messages the newest is looked for that is no voice message."""
_log = structlog.get_logger(__name__)


class ApprovalStore(Part):
    """Asks people about steps."""

    async def ask(
        self, turn: Turn, step: Step, outbound: Sequence[NewOutbound], *, why: str, delay_s: float | None
    ) -> list[OutboxRow]:
        """
        Record a question and put what asks it into the outbox, unless that was done before; the turn is
        ``running → ready``, not before ``delay_s``, or at once if the question is decided. Neither the start
        nor the time counts. Without ``delay_s`` the turn goes on. Raises `LostTurn`.
        """
        now, owned = self._now(), inbox_sql.owned_by(turn)
        origin = f"{turn.id}.{step.digest}"
        if again := step.request.get("again"):
            origin += f".{again}"
        messages = new_outbox(outbound, secret=self._secret, origin=origin, now=now)

        def write(db: Connection) -> list[int]:
            inbox_sql.check_owned(db, owned)
            known = _find(db, turn.id, step)
            ids: list[int] = []
            if known is None:
                raw = (step.number, APPROVAL, step.digest, to_json(step.request), None)
                inbox_sql.record_step(db, owned, raw)
                ids = outbox_sql.insert(db, messages, inbox_id=None, turn=None, now=now)
            if delay_s is None:
                return ids
            decided = known is not None and known[0] is not None
            next_at = due_at(now, 0.0 if decided else delay_s)
            inbox_sql.put_back(
                db, owned, next_at=next_at, error=error_text(why), now=now, attempts=-1, deferrals=0
            )
            return ids

        locks = [session_lock(owned.session), *of_sends(messages)]
        ids = await self._writer.call("ask", write, locks=locks)
        return pending(ids, messages, None, [False] * len(messages)) if ids else []

    async def settle(self, turn: Turn, step: Step, outbound: Sequence[NewOutbound]) -> Mapping[str, Any]:
        """
        Decide a question as ``step.result`` says and put ``outbound`` into the outbox, unless it is decided.
        Returns what counts. Raises `LostTurn`.
        """
        now, owned = self._now(), inbox_sql.owned_by(turn)
        assert step.result is not None
        result = to_json(step.result)
        messages = new_outbox(outbound, secret=self._secret, origin=f"{turn.id}.{step.digest}.end", now=now)

        def write(db: Connection) -> str:
            inbox_sql.check_owned(db, owned)
            known = _find(db, turn.id, step)
            if known is not None and known[0] is not None:
                return str(known[0])
            inbox_sql.record_step(
                db, owned, (step.number, APPROVAL, step.digest, to_json(step.request), result)
            )
            outbox_sql.insert(db, messages, inbox_id=None, turn=None, now=now)
            return result

        locks = [session_lock(owned.session), *of_sends(messages)]
        return load_json(await self._writer.call("settle", write, locks=locks))

    async def questions(self) -> list[Question]:
        """The questions of all turns that have not ended, oldest first."""
        return await self._reader.call("questions", questions_in)

    async def decide(
        self, name: str, verdict: Mapping[str, Any], *, grant: Grant | None = None
    ) -> Question | None:
        """
        A person has decided: the turn is due at once. Nothing is changed if it is decided already, or too
        late. Returns the question as it is then; None if there is none of that name. ``grant`` is kept in
        the same transaction if the question is approved then.
        """
        now = self._now()

        def write(db: Connection) -> Question | None:
            found = _decide(db, name, verdict, now)
            approved = found is not None and (found.verdict or {}).get("verdict") == APPROVED
            if grant is not None and approved:
                grants.insert(db, grant)
            return found

        def locks(db: Connection) -> Iterator[str]:
            yield from asked_in(db, [name])
            if grant is not None:
                yield named_lock("grants")

        return await self._writer.call("decide", write, locks=locks)

    async def decided(self, name: str) -> Decided | None:
        """What a person has decided of a question in the last month, also if its turn has ended."""
        return await self._reader.call("decided", lambda db: _remembered(db, name))

    async def newest_said(self, session: SessionKey) -> OutboxRow | None:
        """
        What was put into the outbox for a conversation last; what is held for a person is left out, and so
        are voice messages, which say again what was said.
        """
        query = f"SELECT {OUTBOX} FROM outbox WHERE session = ? AND state <> 'held' ORDER BY id DESC LIMIT ?"  # noqa: S608 - constants
        asked = (str(session), _LOOKED_AT)
        raws = await self._reader.call("newest_said", lambda db: db.execute(query, asked).fetchall())
        rows = (outbox_row(raw) for raw in raws)
        # A voice message says once more what stands above it, and may come late.
        return next((row for row in rows if SPEECH not in row.message.context), None)


def asked_in(db: Connection, names: Collection[str]) -> Iterator[str]:
    """The locks of the sessions whose turns ask these questions."""
    for raw in db.execute(_QUESTIONS) if names else ():
        found = _question(raw)
        if found is not None and found.name in names:
            yield session_lock(str(found.session))


def settle_with(db: Connection, inbox_id: int, settles: Mapping[str, Mapping[str, Any]], now: float) -> None:
    """
    Note of questions what a message that was accepted just now says of them.

    A decision that has come before it, and is not carried out yet, goes first: nothing is withdrawn then.
    """
    for name, verdict in settles.items():
        if verdict.get("verdict") == WITHDRAWN:
            if db.execute(_DECISION_BEFORE, (inbox_id, inbox_id)).fetchone() is None:
                _decide(db, name, verdict, now)
            continue
        found = _decide(db, name, verdict, now)
        known = _remembered(db, name) if found is None else None
        counts = "" if found is None or found.verdict is None else str(found.verdict.get("verdict") or "")
        counts = counts if known is None else known.verdict
        amendments.note(db, inbox_id, "settled", counts)


_DECISION_BEFORE = (
    "SELECT 1 FROM inbox WHERE state IN ('ready', 'running') AND kind IN ('alone', 'reaction') AND id < ?"
    " AND session = (SELECT session FROM inbox WHERE id = ?) LIMIT 1"
)


def forget_withdrawn(db: Connection, now: float) -> None:
    """Nobody asks after these any more."""
    query = "SELECT topic, value FROM state WHERE topic > ? AND topic < ?"
    for topic, value in db.execute(query, (_TOPIC, _AFTER_TOPIC)).fetchall():
        if float(value.partition(" ")[0]) < now - _REMEMBERED_S:
            db.execute("DELETE FROM state WHERE topic = ?", (topic,))


def _decide(db: Connection, name: str, verdict: Mapping[str, Any], now: float) -> Question | None:
    """Note what was decided, unless it is too late; the question as it is then."""
    result = to_json(verdict)
    named = [(raw, found) for raw in db.execute(_QUESTIONS) if (found := _question(raw)) is not None]
    same = [(raw, found) for raw, found in named if found.name == name]
    # Two of one name are so unlikely that neither may be done.
    if len(same) != 1:
        return None
    (raw, found) = same[0]
    if found.verdict is not None or found.until.timestamp() <= now:
        return found
    db.execute("UPDATE turn_steps SET result = ? WHERE turn = ? AND number = ?", (result, *raw[:2]))
    db.execute("UPDATE inbox SET next_at = NULL WHERE state = 'ready' AND turn = ?", (raw[0],))
    db.note("decided", name)
    remember(db, _TOPIC + name, f"{now:.0f} {raw[4]} {verdict.get('verdict')} {found.tool}")
    return _question((*raw[:3], result, raw[4]))


def questions_in(db: Connection) -> list[Question]:
    """The questions of all turns that have not ended; those that are decided have a verdict."""
    raws = db.execute(_QUESTIONS).fetchall()
    return [question for raw in raws if (question := _question(raw)) is not None]


def _remembered(db: Connection, name: str) -> Decided | None:
    """What was decided of a question. Earlier versions have noted withdrawals alone, and no tool."""
    found = db.execute("SELECT value FROM state WHERE topic = ?", (_TOPIC + name,)).fetchone()
    if found is None:
        return None
    _, place, *rest = str(found[0]).split(" ", 3)
    session, (verdict, tool, *_) = session_or_none(place), (*rest, WITHDRAWN, "")
    return None if session is None else Decided(session, verdict, tool)


def _find(db: Connection, turn: str, step: Step) -> Raw | None:
    """The result of a question that was recorded, in a row; None if there is none of this name."""
    query = (
        "SELECT result, request FROM turn_steps"
        " WHERE turn = ? AND number = ? AND kind = 'approval' AND digest = ?"
    )
    row: Raw | None = db.execute(query, (turn, step.number, step.digest)).fetchone()
    if row is None or load_json(row[1]).get("again", 0) != step.request.get("again", 0):
        return None
    return row[:1]


def _question(raw: Raw) -> Question | None:
    """A row of `_QUESTIONS`; None if it is damaged."""
    turn, _, request, result, session = raw
    key = session_or_none(session)
    try:
        told = load_json(request)
        tools = [str(each["call"]["name"]) for each in (told, *told.get("also", ()))]
        return (
            None
            if key is None
            else Question(
                name=str(told["name"]),
                session=key,
                asked=tuple(str(address) for address in told["asked"]),
                tool=", ".join(dict.fromkeys(tools)),
                until=datetime.fromisoformat(told["until"]),
                verdict=None if result is None else load_json(result),
                turn=str(turn),
                at=datetime.fromisoformat(told["at"]) if "at" in told else None,
                offer=told.get("offer"),
                form=told.get("form"),
                origins=told.get("origins"),
                proof=int(told.get("proof", 0)),
                people=tuple(str(address) for address in told.get("people", told["asked"])),
                places=tuple(
                    place for each in told.get("places", ()) if (place := session_or_none(str(each)))
                ),
            )
        )
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        _log.error("question.unreadable", error=type(error).__name__)
        return None
