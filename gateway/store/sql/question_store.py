"""Stores the questions that turns ask people, their verdicts, and grants: approvals in advance."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog

from agent_core import provenance
from agent_core.messages import Amendment, SessionKey
from agent_core.tools.grants import Grant, GrantKind, Scope
from gateway.store.model import (
    APPROVAL,
    APPROVED,
    DELETED,
    EDITED,
    EXPIRED,
    LEFT,
    STOPPED,
    WITHDRAWN,
    NewOutbound,
    OutboxRow,
    Question,
    QuestionDecision,
    Step,
    Turn,
)
from gateway.store.sql import amendments, inbox_statements, outbox_statements
from gateway.store.sql.engine import ConnectionPort, Store, named_lock, pending, session_lock
from gateway.store.sql.locking import outbox_locks
from gateway.store.sql.row_codec import (
    OUTBOX,
    Raw,
    error_text,
    instant,
    load_json,
    new_outbox,
    outbox_row,
    session_or_none,
    to_json,
)
from gateway.store.sql.state_store import due_at, remember

_GRANT_COLUMNS = "id, kind, tool, what, session, people, given_by, at, until, turn, origins, seen_at"
_ALL_GRANTS = f"SELECT {_GRANT_COLUMNS} FROM grants ORDER BY at, id"  # noqa: S608 - constants of this file

_QUESTIONS = (
    "SELECT step.turn, step.number, step.request, step.result, inbox.session"
    " FROM inbox JOIN turn_steps AS step ON step.turn = inbox.turn"
    " WHERE inbox.state IN ('ready', 'running') AND inbox.id = inbox.tail AND step.kind = 'approval'"
    " ORDER BY inbox.id, step.number"
)
_TOPIC = "question:"
"""The prefix of topics in ``state`` that record decisions: when, where, verdict, tool."""
_AFTER_TOPIC = "question;"
"""The text that sorts after all topics with this prefix."""
_ENDED_BY = {"withdrawn": DELETED, "stopped": STOPPED, "left": LEFT}
"""The verdict on an undecided question by what ended the messages of its turn."""
_REMEMBERED_S = 30 * 86_400.0
_LOOKED_AT = 8
"""How many of the newest messages are looked at."""
_log = structlog.get_logger(__name__)


class QuestionStore(Store):
    """Asks people about steps of turns, and records their decisions."""

    async def ask(
        self, turn: Turn, step: Step, outbound: Sequence[NewOutbound], *, why: str, delay_s: float | None
    ) -> list[OutboxRow]:
        """
        Record a question and put the messages that ask it into the outbox, unless that was done before. The
        turn moves ``running → ready`` and is due after ``delay_s``, or at once if the question is decided.
        Neither the start nor the wait counts as an attempt. Without ``delay_s`` the turn goes on. Raises
        `LostTurn`.
        """
        now, owned = self._now(), inbox_statements.claim_key(turn)
        origin = f"{turn.id}.{step.digest}"
        if again := step.request.get("again"):
            origin += f".{again}"
        messages = new_outbox(outbound, secret=self._secret, origin=origin, now=now)

        def write(db: ConnectionPort) -> list[int]:
            inbox_statements.check_claim(db, owned)
            known = _find(db, turn.id, step)
            ids: list[int] = []
            if known is None:
                raw = (step.number, APPROVAL, step.digest, to_json(step.request), None)
                inbox_statements.record_step(db, owned, raw)
                ids = outbox_statements.insert(db, messages, inbox_id=None, turn=None, now=now)
            if delay_s is None:
                return ids
            decided = known is not None and known[0] is not None
            next_at = due_at(now, 0.0 if decided else delay_s)
            inbox_statements.return_to_ready(
                db, owned, next_at=next_at, error=error_text(why), now=now, attempts=-1, deferrals=0
            )
            return ids

        locks = [session_lock(owned.session), *outbox_locks(messages)]
        ids = await self._writer.call("ask", write, locks=locks)
        return pending(ids, messages, None, [False] * len(messages)) if ids else []

    async def settle(self, turn: Turn, step: Step, outbound: Sequence[NewOutbound]) -> Mapping[str, Any]:
        """
        Decide a question as ``step.result`` says and put ``outbound`` into the outbox, unless the question is
        decided already. Returns the verdict that counts. Raises `LostTurn`.
        """
        now, owned = self._now(), inbox_statements.claim_key(turn)
        assert step.result is not None
        result = to_json(step.result)
        messages = new_outbox(outbound, secret=self._secret, origin=f"{turn.id}.{step.digest}.end", now=now)

        def write(db: ConnectionPort) -> str:
            inbox_statements.check_claim(db, owned)
            known = _find(db, turn.id, step)
            if known is not None and known[0] is not None:
                return str(known[0])
            inbox_statements.record_step(
                db, owned, (step.number, APPROVAL, step.digest, to_json(step.request), result)
            )
            outbox_statements.insert(db, messages, inbox_id=None, turn=None, now=now)
            raw = (turn.id, step.number, to_json(step.request), result, owned.session)
            if (ended := _question(raw)) is not None:
                _remember(db, ended, now)
            return result

        locks = [session_lock(owned.session), *outbox_locks(messages)]
        return load_json(await self._writer.call("settle", write, locks=locks))

    async def questions(self) -> list[Question]:
        """Return the questions of all turns that have not ended, oldest first."""
        return await self._reader.call("questions", questions_in)

    async def decide(
        self, name: str, verdict: Mapping[str, Any], *, grant: Grant | None = None
    ) -> Question | None:
        """
        Record a person's decision; the turn is due at once. Nothing changes if the question is decided
        already, or if it is too late. Returns the question as it is then; None if there is none of that name.
        If the question is approved then, ``grant`` is stored in the same transaction.
        """
        now = self._now()

        def write(db: ConnectionPort) -> Question | None:
            found = _decide(db, name, verdict, now)
            approved = found is not None and (found.verdict or {}).get("verdict") == APPROVED
            if grant is not None and approved:
                _give(db, grant)
            return found

        def locks(db: ConnectionPort) -> Iterator[str]:
            reached = [name]
            if grant is not None and not grant.conversation:
                reached += [each.name for each in questions_in(db)]
            yield from list_session_locks(db, reached)
            if grant is not None:
                yield named_lock("grants")

        return await self._writer.call("decide", write, locks=locks)

    async def find_decision(self, name: str) -> QuestionDecision | None:
        """Return a person's decision on a question of the last month, even if its turn has ended."""
        return await self._reader.call("decided", lambda db: _remembered(db, name))

    async def newest_rows(self, session: SessionKey) -> list[OutboxRow]:
        """Return a conversation's newest outbox messages, without drafts and voice messages."""
        query = f"SELECT {OUTBOX} FROM outbox WHERE session = ? AND state <> 'held' ORDER BY id DESC LIMIT ?"  # noqa: S608 - constants
        asked = (str(session), _LOOKED_AT)
        raws = await self._reader.call("newest_said", lambda db: db.execute(query, asked).fetchall())
        rows = (outbox_row(raw) for raw in raws)
        # A voice message repeats the text above it, and may come late.
        return [row for row in rows if row.message.context.speech is None]


def list_session_locks(db: ConnectionPort, names: Collection[str]) -> Iterator[str]:
    """Yield the locks of the sessions whose turns ask these questions."""
    for raw in db.execute(_QUESTIONS) if names else ():
        found = _question(raw)
        if found is not None and found.name in names:
            yield session_lock(str(found.session))


def settle_with(
    db: ConnectionPort,
    inbox_id: int,
    settles: Mapping[str, Mapping[str, Any]],
    now: float,
    given: Mapping[str, Grant],
) -> None:
    """
    Record what a message that was accepted just now says about questions, with the grants that it gives.

    An earlier decision that is not carried out yet takes precedence: nothing is withdrawn then.
    """
    settled = list[str]()
    for name, verdict in sorted(settles.items()):
        if verdict.get("verdict") == WITHDRAWN:
            if db.execute(_DECISION_BEFORE, (inbox_id, inbox_id)).fetchone() is None:
                _decide(db, name, verdict, now)
            continue
        found = _decide(db, name, verdict, now)
        known = _remembered(db, name) if found is None else None
        counts = EXPIRED if found is None or found.verdict is None else str(found.verdict.get("verdict"))
        counts = counts if known is None else known.verdict
        if counts == APPROVED and found is not None and name in given:
            _give(db, given[name])
        settled.append(counts)
    if settled:
        amendments.note(db, inbox_id, "settled", ",".join(settled))


def _give(db: ConnectionPort, grant: Grant) -> None:
    """Store a grant; the turns whose open questions it may cover are due, and look for it."""
    insert_grant(db, grant)
    for each in questions_in(db):
        if each.verdict is None and each.form is None and grant.conversation in ("", str(each.session)):
            db.execute("UPDATE inbox SET next_at = NULL WHERE state = 'ready' AND turn = ?", (each.turn,))


_DECISION_BEFORE = (
    "SELECT 1 FROM inbox WHERE state IN ('ready', 'running') AND kind IN ('alone', 'reaction') AND id < ?"
    " AND session = (SELECT session FROM inbox WHERE id = ?) LIMIT 1"
)


def forget_withdrawn(db: ConnectionPort, now: float) -> None:
    """Forget the decisions that nobody will look up any more."""
    query = "SELECT topic, value FROM state WHERE topic > ? AND topic < ?"
    for topic, value in db.execute(query, (_TOPIC, _AFTER_TOPIC)).fetchall():
        if float(value.partition(" ")[0]) < now - _REMEMBERED_S:
            db.execute("DELETE FROM state WHERE topic = ?", (topic,))


def _decide(db: ConnectionPort, name: str, verdict: Mapping[str, Any], now: float) -> Question | None:
    """Record a decision unless it is too late; return the question as it is then."""
    result = to_json(verdict)
    named = [(raw, found) for raw in db.execute(_QUESTIONS) if (found := _question(raw)) is not None]
    same = [(raw, found) for raw, found in named if found.name == name]
    # Two of one name are so unlikely that neither call may run.
    if len(same) != 1:
        return None
    (raw, found) = same[0]
    if found.verdict is not None or found.until.timestamp() <= now:
        return found
    db.execute("UPDATE turn_steps SET result = ? WHERE turn = ? AND number = ?", (result, *raw[:2]))
    db.execute("UPDATE inbox SET next_at = NULL WHERE state = 'ready' AND turn = ?", (raw[0],))
    db.note("decided", name)
    decided = _question((*raw[:3], result, raw[4]))
    if decided is not None:
        _remember(db, decided, now)
    return decided


def _remember(db: ConnectionPort, decided: Question, now: float) -> None:
    verdict = (decided.verdict or {}).get("verdict")
    remember(db, _TOPIC + decided.name, f"{now:.0f} {decided.session} {verdict} {decided.tool}")


def amend(
    db: ConnectionPort,
    channel: str,
    account: str,
    made: Sequence[Amendment],
    *,
    new: Mapping[str, int],
    now: float,
) -> amendments.Effects:
    """Apply amendments (`amendments.amend`), and remember which undecided questions end by them, and why."""
    before = questions_in(db) if any(each.kind != "bounce" for each in made) else []
    effects = amendments.amend(db, channel, account, made, new=new, now=now)
    left = {each.name for each in questions_in(db)} if before else set()
    for each in before:
        if each.verdict is None and each.name not in left:
            # What was edited waits again, in another turn.
            gone = "SELECT error FROM inbox WHERE turn = ? AND state = 'ignored' ORDER BY id DESC LIMIT 1"
            why = db.execute(gone, (each.turn,)).fetchone()
            verdict = EDITED if why is None else _ENDED_BY.get(why[0], DELETED)
            _remember(db, replace(each, verdict={"verdict": verdict}), now)
    return effects


def questions_in(db: ConnectionPort) -> list[Question]:
    """Return the questions of all turns that have not ended; decided ones have a verdict."""
    raws = db.execute(_QUESTIONS).fetchall()
    return [question for raw in raws if (question := _question(raw)) is not None]


def _remembered(db: ConnectionPort, name: str) -> QuestionDecision | None:
    """Read the recorded decision."""
    found = db.execute("SELECT value FROM state WHERE topic = ?", (_TOPIC + name,)).fetchone()
    if found is None:
        return None
    _, place, verdict, tool = str(found[0]).split(" ", 3)
    session = session_or_none(place)
    return None if session is None else QuestionDecision(session, verdict, tool)


def _find(db: ConnectionPort, turn: str, step: Step) -> Raw | None:
    """Return a row with the result of a recorded question; None if there is none of this name."""
    query = (
        "SELECT result, request FROM turn_steps"
        " WHERE turn = ? AND number = ? AND kind = 'approval' AND digest = ?"
    )
    row: Raw | None = db.execute(query, (turn, step.number, step.digest)).fetchone()
    if row is None or load_json(row[1]).get("again", 0) != step.request.get("again", 0):
        return None
    return row[:1]


def _question(raw: Raw) -> Question | None:
    """Convert a row of `_QUESTIONS`; None if it is damaged."""
    turn, _, request, result, session = raw
    key = session_or_none(session)
    try:
        verdict = None if result is None else load_json(result)
        return None if key is None else Question.read(load_json(request), str(turn), key, verdict)
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        _log.error("question.unreadable", error=type(error).__name__)
        return None


def insert_grant(db: ConnectionPort, grant: Grant) -> None:
    """Store a grant; an existing one of the same id is unchanged."""
    db.execute(
        f"INSERT INTO grants ({_GRANT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"  # noqa: S608 - constants
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
            json.dumps(provenance.to_json(grant.origins)),
        ),
    )


class GrantStore(Store):
    """Stores grants until they end."""

    async def rows(self) -> list[Grant]:
        """Return the stored grants, oldest first, whether or not they are valid."""
        raws = await self._reader.call("grants", lambda db: db.execute(_ALL_GRANTS).fetchall())
        return [grant for raw in raws if (grant := _grant(raw)) is not None]

    async def expire(self, now: datetime) -> list[Grant]:
        """Record the time, delete grants that have ended by it, and return the others as they were before."""
        if not await self.rows():
            return []
        at = now.timestamp()

        def read(db: ConnectionPort) -> list[Raw]:
            db.execute("DELETE FROM grants WHERE until <= ? OR at > ? OR seen_at > ?", (at, at, at))
            raws = db.execute(_ALL_GRANTS).fetchall()
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
            origins=provenance.from_json(json.loads(origins)),
            seen_at=None if seen_at is None else instant(seen_at),
        )
    except (ValueError, TypeError) as error:
        _log.error("grant.unreadable", item=str(grant_id), error=type(error).__name__)
        return None
