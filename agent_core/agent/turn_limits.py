"""The limits of one turn: steps, time, tokens, lengths. `gateway.settings` sets some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent_core.models import Usage
from agent_core.ports import AllowancePort, ToolPort
from agent_core.tools.execution import ToolRunner


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """
    The limits of one turn: ``steps`` model calls (the last without tools), ``tokens`` of all calls.

    Above ``tokens`` one more call is made, without tools. ``tool_result_chars`` of a result are shown.
    """

    steps: int = 20
    seconds: float = 600.0
    tokens: int = 400_000
    tool_seconds: float = 60.0
    tool_result_chars: int = 16_000
    answer_chars: int = 200_000


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of the calls of one run: its own, and what may be spent (``allowance``)."""

    limits: TurnLimits
    allowance: AllowancePort | None

    def runner(self, tools: Mapping[str, ToolPort], *, elsewhere: str) -> ToolRunner:
        """Make the runner of the tools of the run; ``elsewhere``: see `ToolRunner`."""
        limits = self.limits
        return ToolRunner(
            tools,
            seconds=limits.tool_seconds,
            result_chars=limits.tool_result_chars,
            elsewhere=elsewhere,
        )

    def final_call_reason(self, steps: int, usage: Usage) -> str:
        """Return why the next model call is the last by the run's own limits; empty if it is not."""
        if steps >= self.limits.steps - 1:
            return "the step limit is reached"
        if usage.prompt_tokens + usage.completion_tokens >= self.limits.tokens:
            return "the token limit is reached"
        return ""

    async def refusal_after(self, tokens: int, *, begun: bool) -> str:
        """Return why the allowance permits only one more call of ``tokens``; empty if it permits more."""
        return "" if self.allowance is None else await self.allowance.final_call_reason(tokens, begun=begun)
