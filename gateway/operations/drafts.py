"""What a person can do with drafts: messages that are ready and are not sent before somebody has agreed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.errors import NotFound
from gateway.operations.approvals import CallOperations
from gateway.operations.arguments import within
from gateway.operations.views import draft
from gateway.queue.ports import OutboxRow, WorkStore
from gateway.queue.states import IllegalMove, OutboxState

__all__ = ["DraftOperations", "given_up_by_a_person"]


def given_up_by_a_person(row: OutboxRow) -> bool:
    """Whether somebody knows that this will not be sent, so that nobody needs to be told."""
    why = row.error or ""
    return row.state is OutboxState.DEAD and (why in ("dropped", "left") or why.startswith("rejected"))


class DraftOperations(CallOperations):
    """The part of `Operations` that concerns drafts."""

    _store: WorkStore
    _wake_sending: Callable[[], None]
    _report: Callable[[], Awaitable[Mapping[str, Any]]] | None

    async def drafts_list(self, limit: int = 50) -> dict[str, Any]:
        """What waits for approval, newest first, whole: it is to be judged. Calls of tools, too."""
        rows = await self._store.outbox(states=[OutboxState.HELD], limit=within(limit))
        return {"rows": [draft(row) for row in rows], "calls": (await self.calls_list())["rows"]}

    async def drafts_show(self, id: int) -> dict[str, Any]:  # noqa: A002
        """One draft, whatever became of it."""
        row = await self._store.outbox_row(id)
        if row is None:
            raise NotFound(f"there is no draft {id}; `squidbot inbox list --held` shows them")
        return draft(row)

    async def drafts_approve(self, id: int, text: str | None = None) -> dict[str, Any]:  # noqa: A002
        """Send a draft, in other words if there are any."""
        changed = await self._decided(id, self._store.approve(id, text))
        if changed["changed"]:
            self._wake_sending()
        return changed

    async def drafts_reject(self, id: int, why: str = "") -> dict[str, Any]:  # noqa: A002
        """Never send a draft."""
        return await self._decided(id, self._store.reject(id, why))

    async def _decided(self, number: int, decision: Awaitable[OutboxRow]) -> dict[str, Any]:
        running = self._report is not None
        try:
            row = await decision
        except IllegalMove as error:
            known = await self._store.outbox_row(number)
            if known is None:
                raise NotFound(
                    f"there is no draft {number}; `squidbot inbox list --held` shows them"
                ) from error
            return {"id": number, "changed": False, "running": running, "draft": draft(known)}
        return {"id": number, "changed": True, "running": running, "draft": draft(row)}
