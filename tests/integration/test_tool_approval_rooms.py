"""Tools that need a yes in a room of several people: whose yes counts when they write at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import anyio

from agent_core.models import Message, ModelChunk, ToolDefinition
from tests.doubles.loopback import LoopbackServer
from tests.integration.test_answers_in_words import reply
from tests.integration.test_tool_approval import (
    ANN,
    BOB,
    EVE,
    Wishful,
    Writer,
    answers,
    asking,
    question,
    reaction,
)


class Slow(Wishful):
    """The same, that waits at ``gate`` over "slow"."""

    def __init__(self) -> None:
        super().__init__()
        self.thinking, self.gate = anyio.Event(), anyio.Event()

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        if messages[-1].role == "user" and messages[-1].content.endswith("slow"):
            self.thinking.set()
            await self.gate.wait()
        return await super().chat(messages, tools, stream=stream)


async def test_a_guest_says_no_yes_for_the_owner(tmp_path):
    """What the owner's words lead to is the owner's to decide."""
    tool, model, server = Writer(), Slow(), LoopbackServer()
    server.groups.add("room")
    async with asking(tmp_path, tool, model=model, server=server, queue="merge") as one:
        server.say(BOB, "slow", conversation="room")
        await model.thinking.wait()
        server.say(BOB, "hello", conversation="room")
        server.say(ANN, "write the secret", conversation="room")
        with anyio.fail_after(60):
            while (await one.inbox()).get("ready") != 2:
                await anyio.sleep(0.02)
        model.gate.set()
        notice, name = await question(one, "room")
        await one.hand_over(reaction(notice, "✅", BOB, place="room"))
        server.say(BOB, f"!approve {name}", conversation="room")
        assert "Nothing waits for you" in (await answers(one, "room", 3))[-1]
        assert tool.written == []
        server.say(ANN, f"!approve {name}", conversation="room")
        await answers(one, "room", 5)
    assert tool.written == ["the secret"]


async def test_whose_question_it_is_is_told_to_who_may_not_answer(tmp_path):
    """In reply to it, before and after it has expired; the control: the one who asked says yes."""
    tool, server = Writer(), LoopbackServer()
    server.groups.add("room")
    async with asking(tmp_path, tool, server=server, minutes=60) as one:
        server.say(BOB, "write it", conversation="room")
        notice, name = await question(one, "room")
        await one.hand_over(reply(notice, "yes", EVE, place="room"))
        told = (await answers(one, "room", 1))[-1]
        assert told == f"Only `{BOB}` or my owner may answer `{name}`. It still waits."
        await one.hand_over(reply(notice, "yes, but what is it?", EVE, place="room", number=1))
        assert (await answers(one, "room", 2))[-1].startswith("so: ")
        assert tool.written == []
        await one.hand_over(reply(notice, "yes", BOB, place="room"))
        await answers(one, "room", 4)
    assert tool.written == ["it"]
