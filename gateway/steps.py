"""
The step journal of one turn over the durable queue: what a restarted turn has already done.

Step by step the agent asks "did I do this before?" and tells "now I have". The digest must match: it stands for
everything that happened in the turn before the step, see `agent_core.agent`.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent_core.models import ToolCall, ToolResult, Usage
from gateway.work.port import Step, Turn, WorkStore

__all__ = ["StoreStepJournal"]

_UNKNOWN_OUTCOME = (
    "The outcome of this call is unknown: the program was stopped while it ran. It may or may not have had "
    "its effect, and it was not run again. Find out before repeating it."
)


class StoreStepJournal:
    """
    Implements `agent_core.ports.StepJournal` for a claimed turn.

    Args:
        store: The durable queue.
        turn: The claim.
        steps: What ``store.steps(turn)`` gave at its start.
    """

    def __init__(self, store: WorkStore, turn: Turn, steps: Sequence[Step]) -> None:
        self._store = store
        self._turn = turn
        self._steps = {step.number: step for step in steps}

    @classmethod
    async def load(cls, store: WorkStore, turn: Turn) -> StoreStepJournal:
        """The journal of a turn, with what its earlier starts have done."""
        return cls(store, turn, await store.steps(turn))

    def _find(self, number: int, kind: str, digest: str) -> Step | None:
        step = self._steps.get(number)
        return step if step is not None and step.kind == kind and step.digest == digest else None

    async def model_answer(self, number: int, digest: str) -> tuple[str, tuple[ToolCall, ...], Usage] | None:
        """The recorded answer of step ``number``, or None."""
        step = self._find(number, "model", digest)
        if step is None or step.result is None:
            return None
        calls = tuple(ToolCall.model_validate(call) for call in step.result["calls"])
        return step.result["text"], calls, Usage.model_validate(step.result["usage"])

    async def record_model_answer(
        self, number: int, digest: str, text: str, calls: Sequence[ToolCall], usage: Usage
    ) -> None:
        """Make an answer durable; one without tool calls ends the turn and is committed with it instead."""
        if not calls:
            return
        result = {
            "text": text,
            "calls": [call.model_dump(mode="json") for call in calls],
            "usage": usage.model_dump(mode="json"),
        }
        await self._store.step_finished(self._turn, Step(number, "model", digest, {}, result))

    async def tool_result(self, number: int, digest: str) -> ToolResult | None:
        """The recorded result, an "outcome unknown" for a tool that had only started, or None."""
        step = self._find(number, "tool", digest)
        if step is None:
            return None
        if step.result is None:
            return ToolResult(content=_UNKNOWN_OUTCOME, is_error=True)
        return ToolResult.model_validate(step.result)

    async def record_tool_start(self, number: int, digest: str, call: ToolCall) -> None:
        """Make durable that a tool is about to run."""
        request = call.model_dump(mode="json")
        await self._store.step_started(self._turn, Step(number, "tool", digest, request, None))

    async def record_tool_result(self, number: int, digest: str, result: ToolResult) -> None:
        """Make the result durable."""
        stored = result.model_dump(mode="json")
        await self._store.step_finished(self._turn, Step(number, "tool", digest, {}, stored))
