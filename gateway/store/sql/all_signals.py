"""Finds all waiting work, to fire every signal after a commit whose signals are lost."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.question_store import questions_in
from gateway.store.sql.row_codec import payload_object
from gateway.store.sql.signals import Fact

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
_TAKEN_AWAY_WITHIN_S = 86_400.0


def waiting_facts(db: ConnectionPort) -> Iterator[Fact]:
    """Yield the facts of everything that waits."""
    newest = db.execute("SELECT accepted_at FROM inbox ORDER BY id DESC LIMIT 1").fetchone()
    since = 0.0 if newest is None else newest[0] - _TAKEN_AWAY_WITHIN_S
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
