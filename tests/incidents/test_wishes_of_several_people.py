"""
In a busy room the words of several people became one turn. Its tool for the schedule worked for whoever had
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
    """Of two who speak at the same time each gets an answer, and what each may do."""
    mind, server = Obedient(), LoopbackServer()
    server.groups.add(ROOM)
    second = ANN if first == BOB else BOB
    async with talking(tmp_path, mind, server=server) as one:
        mind.wish = ADD
        server.say(ANN, "WISH: remind me", conversation=ROOM)
        await server.answers(1, conversation=ROOM, within_s=60)
        [job] = await one.built.proactive.plans.jobs()
        mind.wish = {name: job.id if value == "JOB" else value for name, value in wish.items()}
        server.say(BOB, "slow", conversation=ROOM)
        await mind.thinking.wait()
        server.say(first, "WISH: please", conversation=ROOM)
        server.say(second, "hello", conversation=ROOM)
        with anyio.fail_after(60):
            while (await one.inbox()).get("ready") != 2:
                await anyio.sleep(0.02)
        mind.gate.set()
        said = await server.answers(4, conversation=ROOM, within_s=60)
        await settled(one, settled=4)
        jobs = await one.built.proactive.plans.jobs()
    asked = [question.rpartition("\n\n")[2] for question in mind.asked]
    assert len(asked) == 2
    assert said[-1].text == "answer 2"  # to the second, who has asked nothing of the schedule
    hers = first == ANN
    kept = [] if hers and wish["action"] == "remove" else [ANN]
    made = [first] if wish["action"] == "add" else []
    assert sorted(each.person for each in jobs) == sorted(kept + made)
    assert ("secret" in said[-2].text) == (wish["action"] == "list")  # of a shared room, everybody's to see
