"""What the operator can do about drafts and tool calls that wait for approval, from the command line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.errors import NotFound
from gateway.operations.arguments import within
from gateway.operations.views import draft
from gateway.queue.model import Question
from gateway.queue.ports import ApprovalStore, OutboxRow, Queue
from gateway.queue.states import IllegalMove, OutboxState
from gateway.turns.approvals.tool_decisions import cleaned, decision

__all__ = ["CALL_OPERATIONS", "DraftOperations", "ToolApprovalOperations"]

CALL_OPERATIONS = frozenset({"calls_list", "calls_decide"})


class ToolApprovalOperations:
    """The part of `Operations` that concerns calls of tools. Whoever has the home may decide about all."""

    _questions: ApprovalStore | None
    _report: Any

    async def calls_list(self) -> dict[str, Any]:
        """The calls that wait for a yes, oldest first."""
        return {"rows": [_shown(one) for one in await self._asked() if one.verdict is None]}

    async def calls_decide(self, call: str, yes: bool, why: str = "") -> dict[str, Any]:  # noqa: FBT001 - called by name
        """Say yes or no to a call; what was decided first counts, and it can be too late."""
        name = cleaned(call)
        waited = any(one.name == name and one.verdict is None for one in await self._asked())
        now = None
        if self._questions is not None:
            now = await self._questions.decide(
                name, decision(yes=yes, by="somebody at the machine", owner=True, why=why)
            )
        if now is None:
            raise NotFound(f"no call {name} waits; `squidbot inbox list --held` shows those that do")
        changed = waited and now.verdict is not None
        return {"changed": changed, "running": self._report is not None, "call": _shown(now)}

    async def _asked(self) -> list[Question]:
        return [] if self._questions is None else await self._questions.questions()


def _shown(question: Question) -> Mapping[str, Any]:
    return {
        "name": question.name,
        "session": str(question.session),
        "asked": list(question.asked),
        "tool": question.tool,
        "until": question.until.isoformat(),
        "verdict": None if question.verdict is None else question.verdict.get("verdict"),
    }


class DraftOperations(ToolApprovalOperations):
    """The part of `Operations` that concerns drafts."""

    _store: Queue
    _report: Callable[[], Awaitable[Mapping[str, Any]]] | None

    async def drafts_list(self, limit: int = 50) -> dict[str, Any]:
        """What waits for approval, newest first, whole: it is to be judged. Calls of tools, too."""
        rows = await self._store.outbox.rows(states=[OutboxState.HELD], limit=within(limit))
        return {"rows": [draft(row) for row in rows], "calls": (await self.calls_list())["rows"]}

    async def drafts_show(self, id: int) -> dict[str, Any]:  # noqa: A002
        """One draft, whatever became of it."""
        row = await self._store.outbox.row(id)
        if row is None:
            raise NotFound(f"there is no draft {id}; `squidbot inbox list --held` shows them")
        return draft(row)

    async def drafts_approve(self, id: int, text: str | None = None) -> dict[str, Any]:  # noqa: A002
        """Send a draft, in other words if there are any."""
        return await self._decided(id, self._store.outbox.approve(id, text))

    async def drafts_reject(self, id: int, why: str = "") -> dict[str, Any]:  # noqa: A002
        """Never send a draft."""
        return await self._decided(id, self._store.outbox.reject(id, why))

    async def _decided(self, number: int, decision: Awaitable[OutboxRow]) -> dict[str, Any]:
        running = self._report is not None
        try:
            row = await decision
        except IllegalMove as error:
            known = await self._store.outbox.row(number)
            if known is None:
                raise NotFound(
                    f"there is no draft {number}; `squidbot inbox list --held` shows them"
                ) from error
            return {"id": number, "changed": False, "running": running, "draft": draft(known)}
        return {"id": number, "changed": True, "running": running, "draft": draft(row)}
