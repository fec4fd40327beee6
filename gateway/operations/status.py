"""
`squidbot status`: the daemon, its channels, the queue, and what is stuck.

A file of its own because ``status`` is asked most often: on a home at rest it needs the queue and
nothing else of `gateway.operations`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agent_core.messages import OutboundKind
from gateway.operations.views import trouble
from gateway.queue.states import DROPPED_REASONS, InboxState, OutboxState
from gateway.queue.stores import OutboxRow, Queue
from gateway.system.version import version

_SHOWN = 10
_LOOKED_AT = 200


class StatusOperations:
    """The operation that reports the state; ``status`` is a running daemon's, ``others`` its peers."""

    def __init__(
        self,
        store: Queue,
        *,
        status: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
        others: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
    ) -> None:
        self._others = others
        self._store = store
        self._report = status

    async def status(self, reasons: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - called by name
        """
        The daemon, its channels, the queue, and what is stuck. No texts, no people.

        With ``reasons`` also why it is stuck, and what is tried again and why; that may name people.
        """
        report = await (self._report() if self._report is not None else self._without_daemon())
        stuck, given_up = await self._stuck(reasons=reasons)
        report = {**report, "running": self._report is not None, "stuck": stuck, "given_up": given_up}
        return {**report, "trying": await self._trying()} if reasons else report

    async def turns_list(self) -> dict[str, Any]:
        """The turns at work, the longest one first: where, since when, at which step, with which tool."""
        rows = await self._store.turns.running()
        return {
            "rows": [
                {
                    "session": str(row.session),
                    "since": row.since.isoformat(),
                    "messages": row.messages,
                    "step": row.number,
                    "tool": row.tool,
                }
                for row in rows
            ]
        }

    async def _without_daemon(self) -> dict[str, Any]:
        return {
            "version": version(),
            "ready": False,
            "channels": {},
            **({} if self._others is None else await self._others()),
            "work": (await self._store.maintenance.stats()).as_work(),
        }

    async def _stuck(self, *, reasons: bool) -> tuple[list[dict[str, Any]], int]:
        """Return the failures without a notice, and the number of those with a delivered apology."""
        dead = await self._store.inbox.rows(states=[InboxState.DEAD], limit=_LOOKED_AT)
        unsent = await self._store.outbox.rows(
            states=[OutboxState.DEAD, OutboxState.UNKNOWN], limit=_LOOKED_AT
        )
        troubles = [("not answered", row.id, row) for row in dead] + [
            ("not sent" if row.state is OutboxState.DEAD else "perhaps not sent", row.inbox_id, row)
            for row in unsent
        ]
        found: list[dict[str, Any]] = []
        told: set[int] = set()
        for what, inbox_id, row in troubles:
            if isinstance(row, OutboxRow) and given_up_by_a_person(row):
                continue
            decided = row.state is not OutboxState.UNKNOWN  # a person must say what became of it
            if decided and inbox_id is not None and (inbox_id in told or await self._apologised(inbox_id)):
                told.add(inbox_id)
            else:
                found.append(trouble(what, inbox_id, row))
        found = found[: 2 * _SHOWN]
        return found if reasons else [{**one, "why": None} for one in found], len(told)

    async def _apologised(self, inbox_id: int) -> bool:
        """The person has been told, by the newest apology of this message."""
        found = await self._store.inbox.row(inbox_id)
        kind = OutboundKind.APOLOGY
        apologies = [row for row in found[1] if row.message.kind is kind] if found else []
        return bool(apologies) and apologies[-1].state is OutboxState.SENT

    async def _trying(self) -> list[dict[str, Any]]:
        unanswered = await self._store.inbox.rows(states=[InboxState.READY], limit=10)
        unsent = await self._store.outbox.rows(states=[OutboxState.PENDING, OutboxState.UNCERTAIN], limit=10)
        found = [trouble("not answered yet", row.id, row) for row in unanswered if row.error]
        return found + [trouble("not sent yet", row.inbox_id, row) for row in unsent if row.error]


def given_up_by_a_person(row: OutboxRow) -> bool:
    """Return True if a person has dropped the message, so that nobody needs a notice."""
    why = row.error or ""
    return row.state is OutboxState.DEAD and (why in DROPPED_REASONS or why.startswith("rejected"))
