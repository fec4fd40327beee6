"""
The step journal of one turn over the durable queue: what a restarted turn has already done. A step is reused
if its digest matches, which stands for all that happened before it (`agent_core.agent`). A `Resumable` tool's
state is recorded with each step. A ``repeatable`` tool (read-only, or idempotent) simply runs again after a
kill; any other's outcome is unknown then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from agent_core.models import ModelAnswer, Reasoning, ToolCall, ToolResult, Usage
from agent_core.ports import ToolPort
from agent_core.provenance import Origins, describe, from_json, to_json
from agent_core.tools.effects import Effect
from agent_core.tools.execution import changed_note
from agent_core.tools.policy import HARMLESS, Approval
from gateway.observability.traces import begin_tool, end_tool
from gateway.store.model import EffectReceipt
from gateway.store.stores import Queue, Step, Turn

_UNKNOWN_OUTCOME = (
    "The outcome of this call is unknown: the program was stopped while it ran. It may or may not have "
    "had its effect, and it was not run again. Find out before you repeat it."
)


@runtime_checkable
class Resumable(Protocol):
    """A tool of one run that needs its state again in a restarted turn."""

    name: str

    def state(self) -> Any:
        """Its state, as JSON can hold it."""

    def restore(self, state: Any) -> None:
        """Take a state from `state` back."""


class StoreStepJournal:
    """
    Implements `agent_core.ports.StepJournal` for a claimed turn.

    ``steps`` are those at its start; of ``tools``, `Resumable` and ``repeatable`` ones matter.
    """

    def __init__(
        self, store: Queue, turn: Turn, steps: Sequence[Step], tools: Sequence[ToolPort] = ()
    ) -> None:
        self._store = store
        self._turn = turn
        self._steps = {step.number: step for step in steps}
        # Not `isinstance`, which is slow with a protocol in Python 3.11.
        self._resumable = [cast("Resumable", tool) for tool in tools if hasattr(tool, "restore")]
        self._repeatable = {tool.name for tool in tools if getattr(tool, "repeatable", False)}

    def _find(self, number: int, kind: str, digest: str) -> Step | None:
        """The recorded step; the tools know again what they knew when it was recorded."""
        step = self._steps.get(number)
        if step is None or step.kind != kind or step.digest != digest:
            return None
        states = step.request.get("states", {})
        for tool in self._resumable:
            if tool.name in states:
                tool.restore(states[tool.name])
        return step

    def _states(self) -> dict[str, Any]:
        return {"states": {tool.name: tool.state() for tool in self._resumable}}

    async def model_answer(self, number: int, digest: str) -> tuple[ModelAnswer, Origins] | None:
        """The recorded answer of step ``number`` and the origins of what the model was shown, or None."""
        step = self._find(number, "model", digest)
        if step is None or step.result is None:
            return None
        calls = tuple(ToolCall.model_validate(call) for call in step.result["calls"])
        reasoning = step.result.get("reasoning")
        answer = ModelAnswer(
            step.result["text"],
            calls,
            Usage.model_validate(step.result["usage"]),
            reasoning=None if reasoning is None else Reasoning.model_validate(reasoning),
            loaded=tuple(step.result.get("loaded", ())),
        )
        return answer, from_json(step.result.get("origins"))

    async def record_model_answer(
        self, number: int, digest: str, answer: ModelAnswer, *, origins: Origins = ()
    ) -> None:
        """Make an answer durable; one without tool calls ends the turn and is committed with it instead."""
        if not answer.calls:
            return
        result = {
            "text": answer.text,
            "calls": [call.model_dump(mode="json") for call in answer.calls],
            "usage": (answer.usage or Usage()).model_dump(mode="json"),
            "origins": to_json(origins),
            "loaded": answer.loaded,
        }
        if answer.reasoning is not None:
            result["reasoning"] = answer.reasoning.model_dump(mode="json")
        await self._store.turns.record_step_result(
            self._turn, Step(number, "model", digest, self._states(), result)
        )

    async def tool_result(self, number: int, digest: str) -> ToolResult | None:
        """The recorded result; for a tool that had only started "outcome unknown", or None: run it."""
        step = self._find(number, "tool", digest)
        if step is None:
            return None
        if step.result is None:
            if step.request["call"]["name"] in self._repeatable:
                return None
            changed = (step.request.get("approval") or {}).get("changed")
            note = f"{changed_note(ToolCall.model_validate(step.request['call']))}\n" if changed else ""
            return ToolResult(content=note + _UNKNOWN_OUTCOME, is_error=True)
        return ToolResult.model_validate(step.result)

    async def record_tool_start(
        self,
        number: int,
        digest: str,
        call: ToolCall,
        *,
        effect: str,
        origins: Origins,
        approval: tuple[str, Origins, str, Sequence[Mapping[str, Any]], bool] | None,
    ) -> None:
        """Make durable that a tool is about to run, with a receipt if it is to have an effect."""
        request = {"call": call.model_dump(mode="json"), **self._states()}
        approved_by, theirs, state, also, changed = Approval(*approval or ("",))
        if approved_by:
            told = {"by": approved_by, "origins": to_json(theirs), "state": state}
            request["approval"] = {**told, "also": list(also), "changed": changed}
        receipt = None
        if Effect(effect) not in HARMLESS:
            receipt = EffectReceipt(
                self._turn.session,
                call.name,
                effect,
                call.arguments,
                asked_by=self._turn.head.message.sender.address,
                origins=describe(origins),
                approved_by=f"{approved_by}, who changed it" if changed else approved_by,
            )
        step = Step(number, "tool", digest, request, None, receipt)
        await self._store.turns.record_step_start(self._turn, step)
        begin_tool(step, call, effect, origins)

    async def record_tool_result(self, number: int, digest: str, result: ToolResult) -> None:
        """Make the result durable."""
        end_tool(number, result)
        stored = result.model_dump(mode="json")
        await self._store.turns.record_step_result(
            self._turn, Step(number, "tool", digest, self._states(), stored)
        )
