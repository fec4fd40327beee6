"""
The process that is killed: a whole gateway that answers one question with three model calls, the first two of
which use a tool. ``python -m tests.kill.spending_child FOLDER MOMENT``; without a moment it lives to the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from agent_core.models import ToolCall, Usage
from tests.doubles.agent import StreamingModel
from tests.integration.gateway_world import world
from tests.kill.points import Striker, StrikingQueue, append_line

CALLS = 3


class Noted(StreamingModel):
    """A model that writes down each answer before it is handed out."""

    def __init__(self, ledger: Path, point: Striker) -> None:
        self._ledger = ledger
        self._point = point

    async def answer(self, messages, tools):
        used = sum(message.role == "tool" for message in messages)
        append_line(self._ledger, str(used))
        self._point("model.answered")
        if used < CALLS - 1:
            yield ToolCall(id=f"c{used}", name="search_history", arguments={"query": f"q{used}"})
        else:
            yield "done"
        yield Usage(prompt_tokens=90, completion_tokens=10, calls=1, model="m")


async def live(folder: Path, moment: str) -> None:
    point = Striker(moment)
    async with world(
        folder / "home",
        models={"demo": Noted(folder / "calls", point)},
        wrap_queue=lambda queue: StrikingQueue(queue, point),  # type: ignore[arg-type, return-value]
        settings={"llm": {"budget": {"tokens_per_day": 100_000}}},
    ) as one:
        one.server.say("ann", "a question", native_id="$1")
        with anyio.fail_after(60):
            while await one.inbox() != {"settled": 1}:
                await anyio.sleep(0.02)


if __name__ == "__main__":
    anyio.run(live, Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
