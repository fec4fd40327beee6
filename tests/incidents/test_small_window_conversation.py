"""Sixty turns with files, tools and check-ins on an Ollama as most have it: nothing is lost in silence."""

from __future__ import annotations

import re
from contextlib import aclosing

import pytest

from agent_core.agent import AgentLoop
from agent_core.llm.ollama_client import OllamaClient
from agent_core.llm.openai_client import OpenAIClient
from agent_core.memory.consolidation.prompts import CONSOLIDATION_SYSTEM
from agent_core.memory.manager import MemoryManager
from agent_core.prompt import BASE_PROMPT, CUT_NOTE
from agent_core.tools.tool_registry import ToolRegistry
from tests.clock import LoopClock
from tests.doubles.agent import FakeTool, Sink, session
from tests.doubles.in_memory_storage import InMemoryMemory
from tests.doubles.ollama_server import FakeOllama, call

SUMMARISES = " ".join(CONSOLIDATION_SYSTEM.split())[:60]
BEGINS = " ".join(BASE_PROMPT.split())[:60]
FACT = re.compile(r"code (\d+) is (\w+)")
PAGE = "Some line of a file of which nobody needs to know anything. " * 380
"""22 kB."""


def answers(read):
    """A model that looks into files, summarises every fact and is silent at check-ins."""
    question = read.rsplit("<user>", 1)[-1]
    if read.startswith(f"<system> {SUMMARISES}"):
        part = read.rsplit("<conversation>", 1)[-1]  # what is recorded before is not to be repeated
        return " ".join(f"The code {number} is {word}." for number, word in dict(FACT.findall(part)).items())
    if "check-in" in question:
        return "HEARTBEAT_OK"
    if "file" in question and "<tool>" not in question and "<tool>" not in read[read.rfind("<user>") :]:
        return call("look", n=1)
    return "Noted."


async def converse(fake, client, storage, turns=60):
    """What the model has read of the conversation at each turn's last step."""
    fake.answer = answers
    look = FakeTool("look", PAGE, n="integer")
    registry = ToolRegistry()
    registry.register(look)
    memory = MemoryManager(storage, llm=client, window=lambda: client.window or 32_000)
    loop = AgentLoop(memory, registry, client, system_prompt=lambda: BASE_PROMPT, clock=LoopClock())
    read = []
    for number in range(turns):
        said = f"The code {number} is word{number}. " + "It is good weather and we talk of it. " * 20
        said += "Read the file." if number % 7 == 3 else ""
        result = await loop.run(session(f"t{number}"), said, Sink())
        await memory.persist_exchange("test/room", said, result.reply, turn=f"t{number}")
        read.append(fake.read[-1])
        if number % 10 == 5:
            await loop.run(session(f"c{number}", "beat"), "This is a check-in.", Sink())
        await memory.consolidate_if_due("test/room")
    assert look.runs
    return read


@pytest.mark.parametrize("window", [16_384, 8_192])
async def test_nothing_is_forgotten_in_silence(window):
    """Every fact of every turn is in what the model reads, or a note says that something is missing."""
    async with FakeOllama() as fake:
        client = OllamaClient("ollama/qwen3:4b", api_base=fake.api_base, clock=LoopClock(), window=window)
        async with aclosing(client):
            storage = InMemoryMemory()
            read = await converse(fake, client, storage)
    assert fake.cuts == 0
    assert (await storage.load_history("test/room")).cursor > 0
    note = " ".join(CUT_NOTE.split())
    for number, text in enumerate(read):
        known = {int(found) for found, _ in FACT.findall(text)}
        assert known >= set(range(number + 1)) or note in text, number
        assert BEGINS in text
    assert {int(found) for found, _ in FACT.findall(read[-1])} == set(range(60))


async def test_control_without_its_window_it_is():
    """In OpenAI's protocol the same server cuts off the beginning: first the system text, then facts."""
    async with FakeOllama() as fake:
        client = OpenAIClient("openai/qwen3:4b", api_base=f"{fake.api_base}/v1", clock=LoopClock())
        async with aclosing(client):
            read = await converse(fake, client, InMemoryMemory(), turns=30)
    assert fake.cuts > 0
    assert BEGINS not in read[-1]
    assert CUT_NOTE not in read[-1]
    assert {int(found) for found, _ in FACT.findall(read[-1])} != set(range(30))
