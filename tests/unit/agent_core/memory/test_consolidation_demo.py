"""The demo model consolidates too, so that everything can be tried without a key."""

from __future__ import annotations

from agent_core.llm.demo.consolidation import demo_summary
from agent_core.llm.demo.demo_model import DemoModel
from agent_core.memory.consolidation.prompts import consolidation_messages
from agent_core.models import Message
from tests.doubles.consolidation import S, manager_of, prompt
from tests.doubles.in_memory_storage import InMemoryMemory


async def test_the_demo_model_consolidates() -> None:
    """What was said is in the summary, in few words, and no magic word in it does anything."""
    storage = InMemoryMemory()
    for number, text in enumerate(
        ["my boat is called Mathilda", "!crash always", "the code is 48213", "ok", "ok", "ok"]
    ):
        await storage.append_message(S, Message(role="user", content=text, id=str(number)))
    manager = manager_of(storage, DemoModel())

    done = await manager.consolidate_if_due(S)
    assert (done.segments, done.failure) == (1, "")
    summary = await storage.load_session_summary(S)
    assert summary == "The user said: my boat is called Mathilda. the code is 48213."
    assert await prompt(manager) == ["ok", "ok"]


async def test_the_demo_model_shortens_a_summary() -> None:
    """Eight sentences are left, and what they lack is listed."""
    storage = InMemoryMemory()
    await storage.save_session_summary(
        S, " ".join(f"Sentence {number} has a few words more than that." for number in range(80))
    )
    for number in range(6):
        await storage.append_message(S, Message(role="user", content="ok", id=str(number)))
    manager = manager_of(storage, DemoModel())

    await manager.consolidate_if_due(S)
    summary = await storage.load_session_summary(S)
    assert summary.count("Sentence") == 8


async def test_the_demo_model_says_no_sentence_twice() -> None:
    """What it is asked for once more it gives whole and once, also where several things of a sentence are missing."""
    storage = InMemoryMemory()
    fact = "My boat lies in Hamburg, berth 4711, since 3 May 2026, and the phone there is +49 40 123456."
    address = "The paint is at https://example.org/paint."
    for number, text in enumerate(
        ["hello", *(f"I have {n} apples" for n in range(11, 21)), fact, address, fact]
    ):
        for role, said in (("user", text), ("assistant", f"You wrote: “{text}”. Say `help`.")):
            await storage.append_message(S, Message(role=role, content=said, turn=str(number)))
    manager = manager_of(storage, DemoModel(), threshold=4, ratio=0.3)

    while (await manager.consolidate_if_due(S)).segments:
        pass
    summary = await storage.load_session_summary(S)
    assert summary.count("berth 4711") == 1
    assert summary.count("https://example.org/paint") == 1
    assert "hello" not in summary.casefold()


def test_what_is_recorded_before_is_not_summarised_again() -> None:
    """The request of every segment but the first begins with the summary so far."""
    asked = consolidation_messages("USER: My cat is Minka.\nASSISTANT: ok", 3, recorded="They live in Leeds.")
    assert demo_summary(asked) == "The user said: My cat is Minka."
