"""What a turn without an answer has cost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from agent_core.errors import ModelRefused
from agent_core.models import Message, ModelChunk, ToolCall, ToolDefinition, Usage
from tests.integration.gateway_world import world


class Failing:
    """Asks for a tool, and then refuses; with ``after`` 0 it refuses at once."""

    def __init__(self, after: int) -> None:
        self._after = after
        self.calls = 0

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        self.calls += 1
        if self.calls > self._after:
            raise ModelRefused("no")
        return self._answer()

    async def _answer(self) -> AsyncIterator[ModelChunk]:
        yield ToolCall(id=f"w{self.calls}", name="memory_write", arguments={"content": f"- {self.calls}"})
        yield Usage(prompt_tokens=100, completion_tokens=7, calls=1)


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_a_buried_turn_is_in_the_usage(after: int, tmp_path: Path) -> None:
    """The calls before the failure are counted as talking, once each; a refusal at once costs nothing."""
    async with world(tmp_path, models={"demo": Failing(after)}) as there:
        await there.asked("hello")  # the apology
        assert (await there.inbox()) == {"dead": 1}
        rows = [row for row in await there.built.store.usage.rows() if row.usage.calls]
        assert sum(row.usage.calls for row in rows) == after
        assert sum(row.usage.prompt_tokens for row in rows) == 100 * after
        assert {row.purpose for row in rows} <= {"chat"}
