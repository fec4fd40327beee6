"""
Divides turns between daemons and workers: what a worker may claim, and what a daemon leaves to workers.

A worker has no account. It works on messages in conversations of accounts, and holds each turn under its own
name (`gateway.queue.sql.cluster`). It never takes what needs the account's client: commands and reactions,
jobs, heartbeat runs, background jobs, the shared conversation of the owner, and turns that a worker has given
back (`gateway.queue.states.ACCOUNT`). The head of a session decides whose turn is next, so workers do not
change the order of a conversation.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from agent_core.messages import SessionKey
from gateway.queue.background import is_background
from gateway.queue.model import Turn
from gateway.queue.shared import SHARED
from gateway.queue.sql import inbox_sql, maintenance_sql
from gateway.queue.sql.base import Database
from gateway.queue.sql.codec import Raw, session_or_none
from gateway.queue.sql.due import LONGEST_S, wait_s
from gateway.queue.sql.engine import Connection
from gateway.queue.sql.inbox_sql import ASKS
from gateway.queue.sql.turns import TurnStore
from gateway.queue.states import ACCOUNT

_HEADS = (
    "SELECT session, kind, waits_for FROM inbox WHERE id IN (SELECT MIN(id) FROM inbox"
    f" WHERE state = 'ready' AND NOT ({ASKS}) GROUP BY session) AND session NOT IN"
    " (SELECT session FROM inbox WHERE state = 'running') ORDER BY id"
)
"""The first row of each session without a running turn, passing over turns that wait for approval."""


_MOST = 500
"""The maximum number of sessions found at once: a worker takes a few, and looks again."""


class _ClaimsAs(Enum):
    """The role in which the process claims."""

    ALL = auto()
    """A daemon that takes all work of its accounts."""
    ACCOUNT = auto()
    """A daemon that leaves to workers what they may claim."""
    WORKER = auto()
    """A worker."""


class SharedTurns(TurnStore):
    """
    The turns as one process sees them, depending on its role.

    Args:
        channels: The channels of the configured accounts.
    """

    def __init__(self, database: Database, channels: Collection[str]) -> None:
        super().__init__(database)
        self._channels = frozenset(channels)
        self._lost: set[tuple[str, int]] = set()
        self._claims_as = _ClaimsAs.ALL
        self._holder = ""

    def work_as(self, holder: str, *, is_worker: bool) -> None:
        """From now on claim under this name; only a worker's turns are held under it."""
        self._holder = holder
        self._claims_as = _ClaimsAs.WORKER if is_worker else _ClaimsAs.ALL

    def leave_to_workers(self, leave: bool) -> None:  # noqa: FBT001 - the state to set
        """From now on leave to workers what they may claim, or nothing."""
        self._claims_as = _ClaimsAs.ACCOUNT if leave else _ClaimsAs.ALL

    # ── claims ──

    async def claim(self, session: SessionKey, *, merge: int = 1, out_of_band: bool = False) -> Turn | None:
        """Claim the head of the session, ``ready → running``, if it is for this process."""
        is_worker, key = self._claims_as is _ClaimsAs.WORKER, str(session)
        if out_of_band or self._claims_as is _ClaimsAs.ALL or not self._is_shared(session):
            if is_worker:
                return None
            return await super().claim(session, merge=merge, out_of_band=out_of_band)
        lost, self._lost = self._lost, set()

        def take(db: Connection, now: float) -> inbox_sql.Claim | None:
            if lost:
                db.executemany("DELETE FROM leases WHERE name = ? AND fence = ?", sorted(lost))
            claimed = inbox_sql.claim(db, key, merge, now, lambda row: _for_workers(row) is is_worker)
            return inbox_sql.hold(db, claimed, self._holder) if claimed is not None and is_worker else claimed

        return await self._claimed(session, take)

    def _is_shared(self, session: SessionKey) -> bool:
        """Whether workers may claim turns in this session."""
        return session.channel in self._channels and session != SHARED and not is_background(session)

    async def due_in(self, session: SessionKey) -> float | None:
        """Return the seconds until the session has due work that this process may claim."""
        shared = self._is_shared(session)
        if self._claims_as is _ClaimsAs.ALL or (self._claims_as is _ClaimsAs.ACCOUNT and not shared):
            return await super().due_in(session)
        if not shared:
            return None
        now, key, is_worker = self._now(), str(session), self._claims_as is _ClaimsAs.WORKER

        def look(db: Connection) -> float | None:
            running = "SELECT 1 FROM inbox WHERE state = 'running' AND session = ? LIMIT 1"
            if db.execute(running, (key,)).fetchone() is not None:
                return None
            if not is_worker and inbox_sql.overtaking(db, key, now):
                return 0.0
            head = inbox_sql.next_in(db, key, now)
            is_ours = head is not None and _for_workers(head) is is_worker
            return wait_s(head[13], now) if head is not None and is_ours else None

        return await self._reader.call("due_in", look)

    async def due_sessions(self) -> list[tuple[SessionKey, bool]]:
        """Return sessions with due work that this process may claim."""
        if self._claims_as is _ClaimsAs.WORKER:
            return [(session, False) for session, _ in await self.due_for_workers()]
        if self._claims_as is _ClaimsAs.ALL:
            return await super().due_sessions()
        now, (some, whose) = self._now(), self._of_workers()
        found = await self._reader.call(
            "due_sessions", lambda db: maintenance_sql.due_sessions(db, now, f"NOT ({some})", whose)
        )
        return [(key, beside) for text, beside in found if (key := session_or_none(text)) is not None]

    def _of_workers(self) -> tuple[str, list[str]]:
        """Return the condition on heads for workers, and its parameters; see `_for_workers`."""
        marks = ", ".join("?" * len(self._channels)) or "''"
        is_theirs = f"kind = 'message' AND COALESCE(waits_for, '') <> '{ACCOUNT}'"
        return f"{is_theirs} AND session <> ? AND channel IN ({marks})", [str(SHARED), *self._channels]

    async def open_sessions(self) -> list[tuple[SessionKey, float]]:
        """Return sessions with work for this process, and in how many seconds it is due."""
        if self._claims_as is _ClaimsAs.WORKER:
            return [(session, 0.0) for session, _ in await self.due_for_workers()]
        found = await super().open_sessions()
        if self._claims_as is _ClaimsAs.ACCOUNT:
            waiting = await self._heads_for_workers()
            found = [each for each in found if each[0] not in waiting]
        return found

    async def due_for_workers(self) -> list[tuple[SessionKey, float]]:
        """Return sessions with due work for workers, and for how many seconds it has been due."""
        now, (some, whose) = self._now(), self._of_workers()
        rows = await self._reader.call(
            "due_for_workers", lambda db: maintenance_sql.due_for_workers(db, now, some, whose, _MOST)
        )
        return [
            (key, max(0.0, now - max(accepted_at, next_at or 0.0)))
            for text, next_at, accepted_at, _ in rows
            if (key := session_or_none(text)) is not None and self._is_shared(key)
        ]

    async def _heads_for_workers(self) -> set[SessionKey]:
        """Return the sessions whose next row is for workers, due or not."""
        now = self._now()
        rows = await self._reader.call(
            "for_workers", lambda db: db.execute(_HEADS, (now, now + LONGEST_S)).fetchall()
        )
        return {
            key
            for text, kind, waits_for in rows
            if _is_for_workers(kind, waits_for)
            and (key := session_or_none(text)) is not None
            and self._is_shared(key)
        }

    def _lose(self, owned: inbox_sql.Owned) -> None:
        """Remember that a turn is lost; the next claim records that nobody has it in hand."""
        if owned.worker:
            self._lost.add((inbox_sql.HELD + owned.turn, owned.fence))


def _for_workers(row: Raw) -> bool:
    return _is_for_workers(row[5], row[17])


def _is_for_workers(kind: str, waits_for: str | None) -> bool:
    return kind == "message" and waits_for != ACCOUNT
