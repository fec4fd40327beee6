"""How a conversation becomes a summary, and that no failure on the way costs a message."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from agent_core.errors import ContextTooLong, ModelUnavailable
from agent_core.memory import OWNER, MemoryManager
from agent_core.memory.consolidation import newest_of
from agent_core.memory.essentials import split_list
from agent_core.models import Message
from agent_core.storage import InMemoryMemory
from gateway.settings import Settings
from tests.clock import ManualClock
from tests.condensing_doubles import (
    S,
    ScriptedLLM,
    TokenKeeper,
    manager_of,
    material_in,
    prompt,
    say,
    talk,
)


@pytest.fixture
def anyio_backend(virtual_backend: object) -> object:
    return virtual_backend


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
    """Up to the threshold nothing is condensed and no model is asked."""
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
    """What was condensed before stays in front of what is condensed now; the memory document is not touched."""
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


LONG = "word " * 700


async def test_meta_consolidation_triggered_above_word_limit(storage: InMemoryMemory) -> None:
    """Above six hundred words the whole summary is rewritten into about eight sentences, by prompts of its own."""
    await storage.save_session_summary(S, LONG)
    llm = ScriptedLLM("New part.", "Compressed summary.")
    await say(storage, *[f"msg {number}" for number in range(6)])

    await manager_of(storage, llm).consolidate_if_due(S)
    assert await storage.load_session_summary(S) == "Compressed summary."
    first, second = llm.requests
    assert first[0].content != second[0].content
    kind, text = material_in(second)
    assert (kind, text.split()[-2:]) == ("summary", ["New", "part."])
    assert "8 sentences" in second[-1].content


async def test_meta_consolidation_not_triggered_below_word_limit(storage: InMemoryMemory) -> None:
    """A summary of six hundred words costs no further call."""
    await storage.save_session_summary(S, "word " * 598)
    llm = ScriptedLLM("New part.")
    await say(storage, *[f"msg {number}" for number in range(6)])

    await manager_of(storage, llm).consolidate_if_due(S)
    assert len(llm.requests) == 1
    assert len((await storage.load_session_summary(S)).split()) == 600


@pytest.mark.parametrize("second", [ModelUnavailable("away"), "", "x" * 50_000, LONG + "and more"])
async def test_meta_consolidation_failure_keeps_original_summary(
    storage: InMemoryMemory, second: object
) -> None:
    """Without a shorter one the long summary is saved as it is, with the new part, and the cursor moves."""
    await storage.save_session_summary(S, LONG)
    await say(storage, *[f"msg {number}" for number in range(6)])

    done = await manager_of(storage, ScriptedLLM("New part.", second)).consolidate_if_due(S)  # type: ignore[arg-type]
    assert (done.segments, done.failure) == (1, "")
    assert await storage.load_session_summary(S) == f"{LONG}\n\nNew part."
    assert await storage.load_consolidated_cursor(S) == 4


# ── beyond the names ──


async def test_a_summary_that_no_model_shortens_stops_growing(storage: InMemoryMemory) -> None:
    """The newest whole sentences stay, the note is there once, and a single failure leaves all of it."""

    def never_shorter(messages: Sequence[Message]) -> str:
        kind, text = material_in(messages)
        return (
            f"{text} More."
            if kind == "summary"
            else " ".join(f"{word} was said." for word in text.split()[:90])
        )

    lengths = []
    manager = manager_of(storage, ScriptedLLM(never_shorter))
    for number in range(40):
        await say(storage, *[f"about{number} thing{number}x{each} " * 20 for each in range(6)])
        await manager.consolidate_if_due(S)
        lengths.append(len(await storage.load_session_summary(S)))
    summary = await storage.load_session_summary(S)
    assert max(lengths[:5]) < lengths[-1] == max(lengths)
    assert lengths[-1] < 1.2 * lengths[20]
    assert summary.startswith("(What came before this is left out")
    assert summary.count("left out of the summary") == 1
    assert "thing39x" in summary
    assert "thing0x" not in summary
    assert all(
        each.endswith("was said")
        for each in newest_of(summary, 200).rstrip(".").split("\n\n")[-1].split(". ")
    )


async def test_a_summary_without_spaces_is_rewritten_too(storage: InMemoryMemory) -> None:
    """What has no words to count is too long when it fills its share of a prompt."""
    await storage.save_session_summary(S, "猫が好きです。" * 800)
    llm = ScriptedLLM("新しい。", "短い。")
    await say(storage, *["こんにちは"] * 6)

    await manager_of(storage, llm).consolidate_if_due(S)
    assert await storage.load_session_summary(S) == "短い。"


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
    """Of 101 messages the first 80 are condensed into about 8 sentences; 20 stay word for word."""
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
    """After every turn everything but the last pairs is condensed, each message once, and no pair is torn."""
    manager = manager_of(storage, TokenKeeper(), threshold=threshold, ratio=0.2)
    for turn in range(1, 12):
        await talk(storage, 1)
        await manager.consolidate_if_due(S)
        summarised = (await storage.load_session_summary(S)).split()
        shown = await prompt(manager)
        assert summarised + shown == [f"m{number}" for number in range(2 * turn)]
        assert len(shown) % 2 == 0
        assert len(shown) <= threshold + 1


async def test_long_messages_are_condensed_before_they_are_many(storage: InMemoryMemory) -> None:
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
    """What no call can read at once is condensed in several segments, a few per visit, each message once."""
    llm = TokenKeeper()
    manager = manager_of(storage, llm, threshold=20, ratio=0.2, context_tokens=2000)
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

    manager = manager_of(storage, ScriptedLLM(small_minded), threshold=100, context_tokens=8000)
    await talk(storage, 60, text="some words {}")
    done = await manager.consolidate_if_due(S)
    assert done.segments > 0 and done.failure == ""


async def test_what_is_forgotten_is_asked_for_once_more_and_then_listed(storage: InMemoryMemory) -> None:
    """Numbers, dates, names and addresses that the summary lacks come back, from the model or from us."""
    facts = [
        "my locker code is 48213 by the way",
        "the boat survey is on 14 May with Ms Reis",
        "see https://example.org/plan for the plan",
        "we decided not to use Redis",
    ]
    llm = ScriptedLLM("They talked.", "The locker code is 48213, and they decided not to use Redis.")
    await say(storage, *facts, "ok", "ok", "ok")

    await manager_of(storage, llm).consolidate_if_due(S)
    assert len(llm.requests) == 2
    summary = await storage.load_session_summary(S)
    prose, listed = split_list(summary)
    assert prose == "They talked. The locker code is 48213, and they decided not to use Redis."
    assert listed == ["https://example.org/plan", "the boat survey is on 14 May with Ms Reis"]


async def test_what_is_in_the_memory_document_is_not_forgotten(storage: InMemoryMemory) -> None:
    """A fact that memory_write has kept needs not stand in the summary."""
    await storage.save_global_memory(OWNER, "- locker: 48213")
    llm = ScriptedLLM("They talked.")
    await storage.append_message(S, Message(role="user", content="my locker code is 48213", scope="owner"))
    await say(storage, *["ok"] * 6)

    await manager_of(storage, llm).consolidate_if_due(S)
    assert len(llm.requests) == 1
    assert await storage.load_session_summary(S) == "They talked."


async def test_rewriting_a_summary_loses_nothing_either(storage: InMemoryMemory) -> None:
    """What the shorter summary lacks is listed."""
    await storage.save_session_summary(S, f"The locker code is 48213. {LONG}")
    await say(storage, *["ok"] * 7)

    await manager_of(storage, ScriptedLLM("New part.", "Short.")).consolidate_if_due(S)
    assert await storage.load_session_summary(S) == "Short.\n\nAlso mentioned: The locker code is 48213."


async def test_the_list_has_a_limit(storage: InMemoryMemory) -> None:
    """However much is said, the summary stays within its share of a prompt; the newest of the list is kept."""
    manager = manager_of(storage, ScriptedLLM("Talk."), threshold=20)
    for number in range(2000):
        await say(storage, f"the part costs {number * 7919 + 1000} crowns, item {number}")
        await manager.consolidate_if_due(S)
    summary = await storage.load_session_summary(S)
    assert manager.estimate.text(summary) < 24_000 // 8 * 1.4
    assert len(split_list(summary)[1]) > 20


@pytest.mark.parametrize("ratio", [0, 1, -0.2, 1.5])
def test_a_share_that_cannot_be_kept_is_refused(ratio: float) -> None:
    """Nothing kept, everything kept: neither is a rule."""
    with pytest.raises(ValueError, match="cannot condense"):
        MemoryManager(InMemoryMemory(), keep_recent_ratio=ratio)
    with pytest.raises(ValueError, match="keep_recent_ratio"):
        Settings.model_validate({"agents": {"keep_recent_ratio": ratio}})
