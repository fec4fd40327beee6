"""
Fires the signals of the queue, from the facts that an engine recorded for a commit, or from all waiting work
after a commit whose signals are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import structlog

from gateway.store.model import StoppedTurn
from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.question_store import questions_in
from gateway.store.sql.row_codec import payload_object, session_or_none
from gateway.store.sql.state_store import wait_s
from gateway.store.wakeups import Wakeups, Work

_log = structlog.get_logger(__name__)
Fact = Sequence[Any]
"""A signal's name and its arguments."""


class Signals:
    """Fires the signals of a commit on the event loop, in tasks, since subscribers may start tasks."""

    def __init__(self, wakeups: Wakeups, now: Callable[[], float]) -> None:
        self._wakeups = wakeups
        self._now = now
        self._firing: set[asyncio.Task[None]] = set()
        self._fire: dict[str, Callable[..., None]] = {
            "session": self._work,
            "stopped": self._stopped,
            "outbox": wakeups.outbox.fire,
            "drafts": wakeups.drafts.fire,
            "history": self._history,
            "usage": wakeups.usage.fire,
            "jobs": wakeups.jobs.fire,
            "decided": wakeups.decided.fire,
        }

    def fire(self, facts: Iterable[Fact]) -> None:
        """
        Notify the subscribers, before the callers whose results are delivered after this resume.

        ``facts`` are read in the task. An unreadable fact, of a damaged row, does not stop the others.
        """
        task = asyncio.get_running_loop().create_task(self._notify(facts))
        self._firing.add(task)
        task.add_done_callback(self._firing.discard)

    async def _notify(self, facts: Iterable[Fact]) -> None:
        try:
            for fact in facts:
                self._notify_one(fact)
        except Exception:  # noqa: BLE001 - nobody awaits this task
            _log.exception("signal.unreadable")

    def _notify_one(self, fact: Fact) -> None:
        try:
            what, *of = fact
            self._fire[what](*of)
        except Exception:  # noqa: BLE001 - a session that is not woken waits for the next start
            _log.exception("signal.unreadable", signal=str(fact[:1]))

    def _work(self, session: str, next_at: float | None, channel: str, kind: str, *of: Any) -> None:
        sender, verified = of
        key = session_or_none(session)
        if key is not None:
            due_s = wait_s(next_at, self._now())
            self._wakeups.session.fire(Work(key, due_s, channel, sender or "", bool(verified), kind))

    def _stopped(self, session: str, turn: str, why: str) -> None:
        key = session_or_none(session)
        if key is not None:
            self._wakeups.stopped.fire(StoppedTurn(key, turn, why))

    def _history(self, session: str) -> None:
        key = session_or_none(session)
        if key is not None:
            self._wakeups.history.fire(key)


_HEADS = (
    "SELECT session, next_at, channel, kind, payload FROM inbox WHERE id IN (SELECT MIN(id) FROM inbox WHERE"
    " state = 'ready' GROUP BY session, kind IN ('alone', 'note', 'reaction')) ORDER BY id"
)
_OTHERS = {
    "outbox": "SELECT DISTINCT channel FROM outbox WHERE state IN ('pending', 'uncertain')",
    "drafts": "SELECT DISTINCT channel FROM outbox WHERE state = 'held'",
    "history": "SELECT DISTINCT session FROM history_journal",
    "usage": "SELECT day FROM usage ORDER BY day DESC LIMIT 1",
    "jobs": "SELECT id FROM jobs WHERE state = 'active' AND next_at IS NOT NULL ORDER BY next_at, id LIMIT 1",
}


_TAKEN_AWAY = (
    "SELECT session, turn, error FROM inbox WHERE state = 'ignored' AND turn IS NOT NULL AND accepted_at >= ?"
    " AND NOT EXISTS (SELECT 1 FROM inbox AS other WHERE other.turn = inbox.turn"
    " AND other.state IN ('ready', 'running'))"
)


def waiting_facts(db: ConnectionPort) -> Iterator[Fact]:
    """Yield the facts of everything that waits."""
    newest = db.execute("SELECT accepted_at FROM inbox ORDER BY id DESC LIMIT 1").fetchone()
    since = 0.0 if newest is None else newest[0] - 86_400.0
    for session, turn, why in db.execute(_TAKEN_AWAY, (since,)).fetchall():
        yield "stopped", session, turn, why
    for session, next_at, channel, kind, payload in db.execute(_HEADS).fetchall():
        sender = (payload_object(payload) or {}).get("sender")
        said = sender if isinstance(sender, dict) else {}
        yield "session", session, next_at, channel, kind, said.get("address"), said.get("verified")
    for question in questions_in(db):
        if question.verdict is not None:
            yield "decided", question.name
    for what, query in _OTHERS.items():
        for (of,) in db.execute(query).fetchall():
            yield what, of
