"""
In a busy room the words of several people become one turn. Its tool for the schedule worked for whoever had
spoken last: a guest who asked for something just before the owner said hello saw the owner's jobs of that room
and made new ones in the owner's name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import anyio
import pytest

from agent_core.models import Message, ModelChunk, ToolCall, ToolDefinition
from tests.doubles.loopback import LoopbackServer
from tests.integration.command_world import ANN, BOB, Mind, settled, talking

ROOM = "room"
ADD = {"action": "add", "kind": "remind", "text": "the owner's secret", "in_minutes": 500}
WISHES = [
    {"action": "list"},
    {"action": "add", "kind": "ask", "text": "mine now", "every_minutes": 60},
    {"action": "remove", "id": "JOB"},
]


class Obedient(Mind):
    """Asks the schedule for what ``wish`` says as soon as somebody speaks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.wish: dict[str, object] = {}

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        last = messages[-1]
        if last.role == "user" and "WISH" not in last.content:
            return await super().chat(messages, tools, stream=stream)

        async def answer() -> AsyncIterator[ModelChunk]:
            if last.role == "user":
                yield ToolCall(id="w", name="schedule", arguments=self.wish)
            else:
                yield f"told: {last.content}"

        return answer()


@pytest.mark.parametrize("wish", WISHES, ids=[str(wish["action"]) for wish in WISHES])
@pytest.mark.parametrize("first", [BOB, ANN], ids=["guest first", "owner first"])
async def test_nobody_wishes_in_the_name_of_another(tmp_path, first, wish):
    """What a guest wishes is not done as the owner, nor the other way, whoever of the two speaks last."""
    mind, server = Obedient(), LoopbackServer()
    server.groups.add(ROOM)
    second = ANN if first == BOB else BOB
    async with talking(tmp_path, mind, server=server) as one:
        mind.wish = ADD
        server.say(ANN, "WISH: remind me", conversation=ROOM)
        await server.answers(1, conversation=ROOM, within_s=20)
        [job] = await one.built.proactive.plans.jobs()
        mind.wish = {name: job.id if value == "JOB" else value for name, value in wish.items()}
        server.say(BOB, "slow", conversation=ROOM)
        await mind.thinking.wait()
        server.say(first, "WISH: please", conversation=ROOM)
        server.say(second, "hello", conversation=ROOM)
        with anyio.fail_after(20):
            while (await one.inbox()).get("ready") != 2:
                await anyio.sleep(0.02)
        mind.gate.set()
        said = await server.answers(3, conversation=ROOM, within_s=20)
        await settled(one, settled=4)
        jobs = await one.built.proactive.plans.jobs()
    assert [(each.id, each.person) for each in jobs] == [(job.id, ANN)]
    assert "several people" in said[-1].text
    assert "secret" not in said[-1].text
