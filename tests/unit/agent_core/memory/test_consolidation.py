"""When a conversation is consolidated and how much of it, and that no failure on the way costs a message."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from agent_core.errors import ContextTooLong, ModelUnavailable
from agent_core.memory.manager import MemoryManager
from agent_core.memory.scopes import OWNER
from agent_core.models import Message
from gateway.settings import Settings
from tests.clock import ManualClock
from tests.doubles.consolidation import (
    S,
    ScriptedLLM,
    TokenKeeper,
    manager_of,
    material_in,
    prompt,
    say,
    talk,
)
from tests.doubles.in_memory_storage import InMemoryMemory

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def storage() -> InMemoryMemory:
    return InMemoryMemory(clock=ManualClock())


# ── the tests that the seeds name ──


def test_consolidation_defaults() -> None:
    """A hundred messages, a fifth of them kept, by the default pool."""
    settings = Settings()

    assert settings.agents.consolidation_threshold == 100
    assert settings.agents.keep_recent_ratio == 0.2
    assert settings.agents.consolidation_pool == ""


@pytest.mark.parametrize("threshold", [1, 2, 3, 100_000])
def test_small_thresholds_are_allowed(threshold: int) -> None:
    """From one message on; nought is none."""
    agents = Settings.model_validate({"agents": {"consolidation_threshold": threshold}}).agents
    assert (agents.consolidation_threshold, agents.consolidation_tokens) == (threshold, 12_000)
    with pytest.raises(ValueError, match="consolidation_threshold"):
        Settings.model_validate({"agents": {"consolidation_threshold": 0}})


async def test_consolidation_not_triggered_below_threshold(storage: InMemoryMemory) -> None:
    """Up to the threshold nothing is consolidated and no model is asked."""
    llm = ScriptedLLM("Summary: talked about nothing.")
    manager = manager_of(storage, llm, threshold=10, ratio=0.3)
    await say(storage, *[f"msg {number}" for number in range(10)])

    assert (await manager.consolidate_if_due(S)).segments == 0
    assert len(await prompt(manager)) == 10
    assert (await storage.load_session_summary(S), llm.requests) == ("", [])


async def test_consolidation_triggered_above_threshold(storage: InMemoryMemory) -> None:
    """One message more, and all but the newest are in the summary and out of the prompt."""
    llm = ScriptedLLM("Summary: talked about Python.")
    manager = manager_of(storage, llm)
    await say(storage, *[f"msg {number}" for number in range(6)])

    done = await manager.consolidate_if_due(S)
    assert (done.segments, done.failure, done.usage.calls) == (1, "", 1)
    system, *history, _ = await manager.build_messages(S, "sys", "new")
    assert [each.content for each in history] == ["msg 4", "msg 5"]
    assert "Summary: talked about Python." in system.content
    assert await storage.load_session_summary(S) == "Summary: talked about Python."
    assert await storage.load_consolidated_cursor(S) == 4
    assert (await storage.load_history(S)).total == 6


async def test_consolidation_appends_to_existing_memory_doc(storage: InMemoryMemory) -> None:
    """What was consolidated before stays in front of what is consolidated now; the memory document is not touched."""
    await storage.save_session_summary(S, "# Existing\nUser likes cats.")
    await storage.save_global_memory(OWNER, "notes")
    manager = manager_of(storage, ScriptedLLM("Summary: discussed dogs."), threshold=3, ratio=0.34)
    await say(storage, *[f"msg {number}" for number in range(4)])

    await manager.consolidate_if_due(S)
    assert await storage.load_session_summary(S) == "# Existing\nUser likes cats.\n\nSummary: discussed dogs."
    assert (await storage.load_global_memory(OWNER)).text == "notes"


async def test_call_llm_returns_text_on_success(storage: InMemoryMemory) -> None:
    """The pieces of an answer come back joined, without space around them."""
    manager = manager_of(storage, ScriptedLLM(" one " + "x" * 2000 + " two\n"))

    assert await manager._call_llm([Message(role="user", content="?")]) == "one " + "x" * 2000 + " two"


async def test_call_llm_returns_none_on_exception(storage: InMemoryMemory) -> None:
    """Whatever a model raises is None and a line in the log."""
    for error in (ModelUnavailable("away"), RuntimeError("defect"), TimeoutError()):
        with capture_logs() as logs:
            assert (
                await manager_of(storage, ScriptedLLM(error))._call_llm([Message(role="user", content="?")])
                is None
            )
        assert [log["event"] for log in logs] == ["consolidation.call_failed"]


async def test_call_llm_returns_none_on_empty_response(storage: InMemoryMemory) -> None:
    """An answer without a word is none."""
    for text in ("", "  \n\t "):
        assert (
            await manager_of(storage, ScriptedLLM(text))._call_llm([Message(role="user", content="?")])
            is None
        )


# ── beyond the names ──


async def test_two_hundred_messages_and_cursor_180_cost_nothing(storage: InMemoryMemory) -> None:
    """What is in the summary is never summarised again, also not after a restart."""
    await talk(storage, 100)
    await storage.save_consolidation(S, summary="all of it", cursor=180)
    llm = ScriptedLLM("again?")

    for _ in range(3):
        await MemoryManager(storage, llm=llm).consolidate_if_due(S)
    assert llm.requests == []
    assert await prompt(MemoryManager(storage, llm=llm)) == [f"m{number}" for number in range(180, 200)]


async def test_the_numbers_of_the_seeds(storage: InMemoryMemory) -> None:
    """Of 101 messages the first 80 are consolidated into about 8 sentences; 20 stay word for word."""
    await talk(storage, 50)
    llm = TokenKeeper()
    manager = MemoryManager(storage, llm=llm)
    await manager.consolidate_if_due(S)
    assert llm.requests == []
    await say(storage, "m100")

    await manager.consolidate_if_due(S)
    assert "about 8 sentences" in llm.requests[0][-1].content
    assert await storage.load_consolidated_cursor(S) == 80  # 81 would have torn m80 from its answer
    assert (await prompt(manager))[0] == "m80"


@pytest.mark.parametrize("threshold", [1, 2, 3])
async def test_the_smallest_thresholds_work(storage: InMemoryMemory, threshold: int) -> None:
    """After every turn everything but the last pairs is consolidated, each message once, and no pair is torn."""
    manager = manager_of(storage, TokenKeeper(), threshold=threshold, ratio=0.2)
    for turn in range(1, 12):
        await talk(storage, 1)
        await manager.consolidate_if_due(S)
        summarised = (await storage.load_session_summary(S)).split()
        shown = await prompt(manager)
        assert summarised + shown == [f"m{number}" for number in range(2 * turn)]
        assert len(shown) % 2 == 0
        assert len(shown) <= threshold + 1


async def test_long_messages_are_consolidated_before_they_are_many(storage: InMemoryMemory) -> None:
    """Estimated tokens are a trigger of their own; fewer messages are kept then."""
    llm = ScriptedLLM("They said a lot.")
    manager = manager_of(storage, llm, threshold=100, ratio=0.2, consolidation_tokens=2000)
    await talk(storage, 4, text="many words here " * 60 + "{}")
    assert (await manager.consolidate_if_due(S)).segments == 1
    assert await storage.load_consolidated_cursor(S) == 6
    await manager.consolidate_if_due(S)
    assert len(llm.requests) == 1


async def test_one_huge_pair_is_left_alone_until_there_is_another(storage: InMemoryMemory) -> None:
    """A megabyte as the last question does not make the model be asked again and again."""
    llm = ScriptedLLM("A megabyte of x.")
    manager = manager_of(storage, llm, threshold=100)
    await talk(storage, 1, text="x" * 1_000_000 + "{}")
    for _ in range(3):
        assert (await manager.consolidate_if_due(S)).segments == 0
    assert llm.requests == []
    await talk(storage, 1)
    assert (await manager.consolidate_if_due(S)).segments == 1
    assert len(llm.requests[0][-1].content) < 100_000
    assert await prompt(manager) == ["m2", "m3"]


async def test_a_backlog_is_caught_up_on_in_steps(storage: InMemoryMemory) -> None:
    """What no call can read at once is consolidated in several segments, a few per visit, each message once."""
    llm = TokenKeeper()
    manager = manager_of(storage, llm, threshold=20, ratio=0.2, window=lambda: 2667)
    await talk(storage, 600)
    visits = 0
    while (await manager.consolidate_if_due(S)).segments:
        visits += 1
    assert 1 < visits < 60
    tail = await storage.load_history(S)
    assert tail.unconsolidated <= 20
    read = [
        token
        for request in llm.requests
        for token in material_in(request)[1].split()
        if material_in(request)[0] == "conversation" and token.startswith("m")
    ]
    assert read == [f"m{number}" for number in range(tail.cursor)]
    for request in llm.requests:
        assert manager.estimate.request(request) <= 2000


async def test_a_model_that_reads_less_than_thought_gets_smaller_parts(storage: InMemoryMemory) -> None:
    """A part that is too long for the model is halved until it fits."""

    def small_minded(messages: Sequence[Message]) -> str:
        _, text = material_in(messages)
        if len(text) > 2500:
            raise ContextTooLong("too long")
        return f"{len(text.splitlines())} lines"

    manager = manager_of(storage, ScriptedLLM(small_minded), threshold=100, window=lambda: 10667)
    await talk(storage, 60, text="some words {}")
    done = await manager.consolidate_if_due(S)
    assert done.segments > 0 and done.failure == ""


@pytest.mark.parametrize("ratio", [0, 1, -0.2, 1.5])
def test_a_share_that_cannot_be_kept_is_refused(ratio: float) -> None:
    """Nothing kept, everything kept: neither is a rule."""
    with pytest.raises(ValueError, match="cannot consolidate"):
        MemoryManager(InMemoryMemory(), keep_recent_ratio=ratio)
    with pytest.raises(ValueError, match="keep_recent_ratio"):
        Settings.model_validate({"agents": {"keep_recent_ratio": ratio}})
