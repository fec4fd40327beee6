"""
Runs one tool call, and describes it for people; whatever happens becomes a result that the model can read. A
model is told what it did wrong; of a defect it only learns that there was one, and the log has the rest. A
tool that waits is cancelled at its limit; one that blocks the event loop cannot be, so tools must not do
that.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
import structlog

from agent_core.errors import AgentError, ToolError
from agent_core.models import ToolCall, ToolResult
from agent_core.ports import ToolPort
from agent_core.provenance import Origins
from agent_core.tools.effects import Effect
from agent_core.tools.person_port import limit_time
from agent_core.tools.tool_registry import fit_arguments, problem_with

PRIVATE_NOTE = (
    "In a private conversation with the owner there may be more, so do not say that you cannot do it at all."
)
"""Keeps a model from saying in a group that there are no files, no web and no commands."""
_step: ContextVar[int] = ContextVar("step_of_call", default=0)
_log = structlog.get_logger(__name__)


def step_of_call() -> int:
    """
    The number of the current tool call among the steps of its turn.

    With the turn's id it names the call for ever: one that was cut off and is made again has the same number.
    """
    return _step.get()


def changed_note(call: ToolCall) -> str:
    """Say to the model which arguments a person has put in the place of its own."""
    told = json.dumps(call.arguments, ensure_ascii=False, default=str)
    return f"[The person who approved this call changed its arguments first. It was made with: {told[:4000]}]"


class ToolRunner:
    """
    Runs calls; ``seconds`` is the default limit, longer results than ``result_chars`` are cut.

    ``elsewhere`` says to whoever calls a tool that is not here where there may be more; empty: nowhere.
    """

    def __init__(
        self, tools: Mapping[str, ToolPort], *, seconds: float, result_chars: int, elsewhere: str = ""
    ) -> None:
        self._tools = tools
        self._elsewhere = elsewhere
        self._seconds = seconds
        self._result_chars = result_chars

    def fit_call(self, call: ToolCall) -> ToolCall:
        """The call with its arguments as the tool's schema wants them, where that is meant without doubt."""
        tool = self._tools.get(call.name)
        if tool is None:
            return call
        fit = fit_arguments(call.arguments, getattr(tool, "checked", tool.parameters))
        return call if fit == call.arguments else call.model_copy(update={"arguments": fit})

    def refusal(self, call: ToolCall) -> ToolResult | None:
        """The error result of a call that cannot run at all, or None if it can. Nothing runs."""
        tool = self._tools.get(call.name)
        if tool is None:
            told = {name for name, each in self._tools.items() if not getattr(each, "deferred", False)}
            known = ", ".join(sorted(told)) or "none"
            text = f"There is no tool {call.name!r} here. The tools are: {known}. {self._elsewhere}".rstrip()
            return _error(call, text)
        problem = problem_with(call.arguments, getattr(tool, "checked", tool.parameters))
        try:
            inspect.signature(tool.execute).bind(**call.arguments)
        except TypeError as error:
            problem = problem or f"{error}."
        return _error(call, f"The arguments do not fit, so nothing was done: {problem}") if problem else None

    async def run(self, call: ToolCall, *, step: int = 0) -> ToolResult:
        """Run a call that was not refused, as a step of its turn. Raises nothing but cancellation."""
        began = anyio.current_time()
        token = _step.set(step)
        try:
            result = await self._outcome(call)
        finally:
            _step.reset(token)
        _log.info(
            "tool.finished",
            tool=call.name,
            failed=result.is_error,
            chars=len(result.content),
            took_s=round(anyio.current_time() - began, 3),
        )
        return self._capped(result)

    async def _outcome(self, call: ToolCall) -> ToolResult:
        tool = self._tools[call.name]
        seconds = float(getattr(tool, "seconds", self._seconds))
        try:
            with limit_time(seconds):
                result = await tool.execute(**call.arguments)
                return result.model_copy(update={"tool_call_id": call.id})
        except ToolError as error:
            return _error(call, str(error), error.origins)
        except AgentError as error:
            return _error(call, error.public)
        except Exception:  # noqa: BLE001 - a defect of a tool must not end the turn
            _log.exception("tool.defective", tool=call.name)
            return _cut_off(call, "The tool has a defect and failed. Do without it.")
        text = f"The tool was stopped after {seconds:g} seconds. It may or may not have had its effect."
        return _cut_off(call, text)

    def _capped(self, result: ToolResult) -> ToolResult:
        length = len(result.content)
        if length <= self._result_chars:
            return result
        note = f"\n[cut here: these are the first {self._result_chars} of {length} characters]"
        return result.model_copy(update={"content": result.content[: self._result_chars] + note})


def _cut_off(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(content=text, is_error=True, tool_call_id=call.id, is_unknown=True)


def _error(call: ToolCall, text: str, origins: Origins = ()) -> ToolResult:
    return ToolResult(content=text, is_error=True, tool_call_id=call.id, origins=origins)


_EFFECTS: Mapping[str, str] = {
    Effect.READ: "reads public information",
    Effect.PRIVATE_READ: "reads data that is kept here",
    Effect.WRITE_WORKSPACE: "changes files",
    Effect.PERSIST: "changes lasting data, such as memory, schedule or skills",
    Effect.SEND: "writes to people",
    Effect.NETWORK_GET: "fetches from the network",
    Effect.NETWORK_SEND: "sends data to a server",
    Effect.EXECUTE: "runs a program",
}
_YES_OR_NO = {True: "yes", False: "no", None: "nothing"}


def effect_in_words(effect: str) -> str:
    """An effect in words; an unknown effect of another version keeps its name."""
    return _EFFECTS.get(effect, effect)


def call_in_words(tool: str, arguments: Mapping[str, Any]) -> str:
    """The tool and its arguments, without program syntax."""
    return f"{tool}: {_named(arguments)}" if arguments else tool


def _named(arguments: Mapping[str, Any]) -> str:
    given = {name: value for name, value in arguments.items() if value != ""}
    return ", ".join(f"{str(name).replace('_', ' ')} {_said(value)}" for name, value in given.items())


def _said(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _YES_OR_NO[value]
    if isinstance(value, Mapping):
        return f"({_named(value)})"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"({', '.join(map(_said, value))})"
    return str(value)
