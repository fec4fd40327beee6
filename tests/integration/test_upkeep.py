"""The whole gateway when conversations grow: consolidated behind the answers, searched only by those who may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio

from agent_core.errors import ModelUnavailable
from agent_core.messages import SessionKey
from agent_core.models import Message, ModelChunk, ToolCall, ToolDefinition, Usage
from gateway.observability import metrics
from gateway.routing.access import Alias
from tests.integration.gateway_world import Scenario, world

ANN = str(SessionKey("loopback", "dm-ann"))
SMALL = {"agents": {"consolidation_threshold": 4, "keep_recent_ratio": 0.5}}
OWNED = {"owner": {"aliases": [Alias("loopback", "ann")]}}


class Talker:
    """Answers ``ok``; searches when told to; consolidates as ``consolidate`` says, in its time."""

    def __init__(self, consolidate: str | Exception = "They talked.", takes_s: float = 0.0) -> None:
        self.consolidate = consolidate
        self.takes_s = takes_s
        self.consolidating = 0
        self.prompts: list[list[Message]] = []

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        return self._answer(list(messages), [tool.name for tool in tools])

    async def _answer(self, messages: list[Message], tools: list[str]) -> AsyncIterator[ModelChunk]:
        last = messages[-1]
        if last.content.startswith(("<conversation>", "<recorded>", "<summary>")):
            self.consolidating += 1
            await anyio.sleep(self.takes_s)
            if isinstance(self.consolidate, Exception):
                raise self.consolidate
            yield self.consolidate
        elif last.role == "tool":
            yield f"found: {last.content}"
        elif "search " in last.content:
            assert "search_history" in tools
            yield ToolCall(
                id="s", name="search_history", arguments={"query": last.content.rpartition("search ")[2]}
            )
        else:
            self.prompts.append(messages)
            yield "ok"
        yield Usage(prompt_tokens=5, completion_tokens=1, calls=1)


async def until(condition: Any, within_s: float = 60.0) -> None:
    with anyio.fail_after(within_s):
        while not await condition():
            await anyio.sleep(0.05)


async def cursor(there: Scenario) -> int:
    return await there.built.memory.load_consolidated_cursor(ANN)


def conversation(prompt: Sequence[Message]) -> str:
    """What was said in a prompt, without what the look-up remembers beside it."""
    return "\n".join(message.content for message in prompt[1:] if "<remembered>" not in message.content)


async def test_a_conversation_is_consolidated_behind_the_answers(tmp_path: Path) -> None:
    """The summary is in the next prompt, what it stands for is not, and what it cost is noted under its purpose."""
    model = Talker("They spoke of the boat.")
    async with world(tmp_path, settings=SMALL, models={"demo": model}) as there:
        for number in range(4):
            await there.asked(f"message m{number}")

        async def consolidated() -> bool:
            return await cursor(there) >= 4

        await until(consolidated)
        await there.asked("and now?")
        system = model.prompts[-1][0]
        assert "They spoke of the boat." in system.content
        assert "message m0" in conversation(model.prompts[3])
        assert "message m0" not in conversation(model.prompts[-1])
        assert "message m3" in conversation(model.prompts[-1])
        used = {row.purpose: row.usage.calls for row in await there.built.store.usage.rows()}
        assert used["consolidation"] == model.consolidating >= 1
        assert used["chat"] == 5
        state = there.built.post_turn.state()
        assert state["consolidation"]["segments"] >= 1
        assert metrics.REGISTRY.get_sample_value("squidbot_consolidations_total", {"result": "done"}) >= 1


async def test_nobody_waits_for_a_summary_and_a_stop_does_not_either(tmp_path: Path) -> None:
    """While a model consolidates for an hour, the same conversation is answered at once, and the gateway stops."""
    model = Talker(takes_s=3600)
    async with world(tmp_path, settings=SMALL, models={"demo": model}) as there:
        for number in range(4):
            await there.asked(f"message m{number}")

        async def consolidating() -> bool:
            return model.consolidating > 0

        await until(consolidating)
        with anyio.fail_after(60):
            for number in range(4, 7):
                await there.asked(f"message m{number}")
        assert model.consolidating == 1
        built = there.built
        begun = anyio.current_time()
    assert anyio.current_time() - begun < 5
    assert built.stopping

    again = Talker("They talked after all.")
    async with world(tmp_path, server=there.server, settings=SMALL, models={"demo": again}) as there:
        await there.asked("message m7")

        async def consolidated() -> bool:
            return await cursor(there) > 0

        await until(consolidated)
        assert again.consolidating >= 1


async def test_a_failing_summary_is_told_and_freezes_nothing(tmp_path: Path) -> None:
    """Messages are answered, the status says what is wrong, and the model is not asked again and again."""
    model = Talker(ModelUnavailable("away"))
    async with world(tmp_path, settings=SMALL, models={"demo": model}) as there:
        for number in range(8):
            await there.asked(f"message m{number}")

        async def told() -> bool:
            return bool(there.built.post_turn.state()["consolidation"]["failing_sessions"])

        await until(told)
        await there.asked("message m8")
        await anyio.sleep(1)
        assert model.consolidating == 1
        state = there.built.post_turn.state()["consolidation"]
        assert state["last_error"] == "away"
        assert b"squidbot_consolidation_failing 1.0" in metrics.exposition()
        assert "ann" not in str(state)
        about = await there.built.post_turn.about(SessionKey.parse(ANN))
        assert about["trouble"]["failures"] == 1
        assert about["prompt"]["messages"] == 18
        assert any("m0" in message.content for message in model.prompts[-1])


async def test_a_stranger_finds_nothing_of_the_owner(tmp_path: Path) -> None:
    """By the tool, each finds what was said in conversations of the same audience, over restarts."""
    async with world(tmp_path, settings=OWNED, models={"demo": Talker()}) as there:
        await there.asked("the safe code is 4711", person="ann")
        await there.asked("the safe code of bob is 1234", person="bob")
        assert "4711" in (await there.asked("search safe code", person="ann")).text
        told = (await there.asked("search safe code", person="bob")).text
        assert "1234" in told and "4711" not in told
    async with world(tmp_path, server=there.server, settings=OWNED, models={"demo": Talker()}) as there:
        there.server.say("ann", "search safe", conversation="second-ann")
        (told,) = await there.server.answers(1, conversation="second-ann")
        assert "4711" in told.text and "1234" not in told.text
        assert "dm-ann" in told.text
        answer = await there.asked("search safe", person="eve")
        assert "4711" not in answer.text and "1234" not in answer.text


async def test_each_is_reminded_of_their_own_words_alone(tmp_path: Path) -> None:
    """Before the model is asked, in another conversation, over restarts; unless the setting is off."""
    async with world(tmp_path, settings=OWNED, models={"demo": Talker()}) as there:
        await there.asked("the code of the safe is 4711", person="ann")
        await there.asked("the code of the safe is 1234", person="bob")
    for settings, owners, bobs in (
        (OWNED, ["4711"], ["1234"]),
        ({**OWNED, "memory": {"lookup": False}}, [], []),
    ):
        model = Talker()
        async with world(tmp_path, server=there.server, settings=settings, models={"demo": model}) as there:
            for person, expected in (("ann", owners), ("bob", bobs), ("eve", [])):
                asked = f"which code does my safe have, {person}?"
                there.server.say(person, asked, conversation=f"other-{person}-{len(owners)}")
                await there.server.answers(1, conversation=f"other-{person}-{len(owners)}")
                before = "".join(each.content for each in model.prompts[-1][1:-1])
                assert [code for code in ("4711", "1234") if code in before] == expected
                assert model.prompts[-1][-1].content.endswith(asked)
