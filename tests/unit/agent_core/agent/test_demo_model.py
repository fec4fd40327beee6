"""The agent with the real memory manager, the real memory tool and the demo model."""

from __future__ import annotations

import anyio
import pytest

from agent_core.agent import AgentLoop, TurnLimits
from agent_core.errors import ContextTooLong, ModelError, ModelRateLimited, TurnLimitReached
from agent_core.llm.demo.demo_model import DemoModel
from agent_core.llm.factory import build_models
from agent_core.llm.model_config import LLMSpec
from agent_core.memory.manager import MemoryManager
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session
from agent_core.prompt import BASE_PROMPT
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.tool_registry import ToolRegistry
from tests.clock import LoopClock
from tests.doubles.agent import Sink
from tests.doubles.in_memory_storage import InMemoryMemory

pytestmark = pytest.mark.virtual_time
OWNER = MemoryScope(ScopeKind.OWNER)


class Harness:
    """Everything that a turn needs, over memory that is gone afterwards."""

    def __init__(self, llm=None):
        self.storage = InMemoryMemory()
        self.manager = MemoryManager(self.storage)
        self.agent = AgentLoop(
            self.manager,
            ToolRegistry(),
            llm or build_models(LLMSpec(), LoopClock()).pool(),
            system_prompt=lambda: BASE_PROMPT,
            limits=TurnLimits(seconds=20),
            clock=LoopClock(),
        )
        self.turns = 0

    async def say(self, text, conversation="a", scope=OWNER, sink=None):
        self.turns += 1
        session = Session(SessionKey("test", conversation), scope, turn=f"t{self.turns}")
        tool = MemoryWriteTool(
            self.storage,
            session.id,
            scope=scope,
            turn=session.turn,
            shown_version=lambda: self.manager.shown_version(session.id),
        )
        result = await self.agent.run(session, text, sink or Sink(), extra_tools=[tool])
        await self.storage.append_message(session.id, *result.history)
        return result.reply


@pytest.fixture
def house():
    return Harness()


async def test_remember_in_one_room_and_recall_in_another(house):
    """A fact told in one conversation is known in the next, through the real document."""
    assert await house.say("remember that my cat is called Tom") == (
        "I will remember that your cat is called Tom."
    )
    assert await house.say("remember that I like tea") == "I will remember that I like tea."

    assert "- my cat is called Tom\n- I like tea" in await house.say("what do you know about me?", "b")
    assert await house.say("forget tea", "b") == "I have forgotten tea."
    assert (await house.storage.load_global_memory(OWNER)).text == "- my cat is called Tom"
    assert await house.say("My name is Ada.") == "I will remember that your name is Ada."
    assert await house.say("What is my name?", "b") == "I have this in my memory:\n\n- My name is Ada."


async def test_two_people_do_not_share(house):
    """Another scope knows nothing."""
    await house.say("remember that tea")

    assert "nothing" in await house.say(
        "what do you know about me?", "c", MemoryScope(ScopeKind.PERSON, "eve")
    )


class SlowDemo(DemoModel):
    """It thinks for a second."""

    async def chat(self, messages, tools, *, stream=True):
        await anyio.sleep(1)
        return await super().chat(messages, tools, stream=stream)


async def test_at_the_same_time_nothing_is_lost():
    """Two conversations that remember at once both get through, by the version check and a merge."""
    house = Harness(SlowDemo())
    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(house.say, f"remember that fact {name}", name)

    document = await house.storage.load_global_memory(OWNER)
    assert sorted(document.text.split("\n")) == ["- fact a", "- fact b", "- fact c"]


async def test_the_history_is_kept(house):
    """Question and answer are there, with the ids of their turn."""
    await house.say("hello")
    tail = await house.storage.load_history("test/a")

    assert [(m.role, m.id) for m in tail.messages] == [("user", "t1.0"), ("assistant", "t1.1")]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("!cut", "It works again"),
        ("!toolong", "It works again"),
        ("!toolfail", "no tool 'demo_broken_tool'"),
        ("!garbage", "No call of this answer was made"),
        ("!slow 5", "took a while"),
        ("!long 500", "This line"),
    ],
)
async def test_what_is_survived(house, word, expected):
    """These failures end in an answer within the same turn."""
    assert expected in await house.say(word)


@pytest.mark.parametrize(
    "word", ["!timeout", "!ratelimit", "!auth", "!empty", "!toolong always", "!endless", "!crash"]
)
async def test_what_is_told(house, word):
    """These end in an error with a sentence for people (a crash is the caller's business), and talk goes on."""
    sink = Sink()
    with pytest.raises((ModelError, TurnLimitReached, RuntimeError)) as caught:
        await house.say(word, sink=sink)
    if word != "!crash":
        assert caught.value.public.endswith(".")
    if word == "!toolong always":
        assert isinstance(caught.value, ContextTooLong)
    assert sink.sent == []

    await anyio.sleep(10)
    assert "Hello" in await house.say("hello")


async def test_waiting_as_told(house):
    """After the time that it asked for, the same question is answered."""
    with pytest.raises(ModelRateLimited) as caught:
        await house.say("!ratelimit")
    await anyio.sleep(caught.value.retry_after_s)

    assert "It works again" in await house.say("!ratelimit")
