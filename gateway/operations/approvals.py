"""What the operator can do about calls of tools that wait for a yes, from the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_core.messages import SessionKey
from gateway.errors import NotFound
from gateway.queue.model import Question
from gateway.queue.ports import AskStore
from gateway.turns.approvals.tool_calls import cleaned, verdict_on

__all__ = ["CALL_OPERATIONS", "CallOperations"]

CALL_OPERATIONS = frozenset({"calls_list", "calls_decide"})


class CallOperations:
    """The part of `Operations` that concerns calls of tools. Whoever has the home may decide about all."""

    _questions: AskStore | None
    _wake: Callable[[SessionKey], None]
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
            now = await self._questions.decide(name, verdict_on(yes=yes, why=why))
        if now is None:
            raise NotFound(f"no call {name} waits; `squidbot inbox list --held` shows those that do")
        changed = waited and now.verdict is not None
        if changed:
            self._wake(now.session)
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
