"""What stands in a summary: it is shortened when it grows too long, and nothing essential is lost on the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent_core.errors import ModelUnavailable
from agent_core.memory.consolidation.consolidation_policy import newest_of
from agent_core.memory.consolidation.key_facts import split_list
from agent_core.memory.scopes import OWNER
from agent_core.models import Message
from tests.clock import ManualClock
from tests.doubles.consolidation import S, ScriptedLLM, manager_of, material_in, say
from tests.doubles.in_memory_storage import InMemoryMemory

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def storage() -> InMemoryMemory:
    return InMemoryMemory(clock=ManualClock())


# ── the tests that the seeds name ──

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
    assert max(lengths[:5]) < 0.99 * max(lengths) < lengths[-1]
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
    assert listed == [
        "https://example.org/plan (2026-01-01)",
        "the boat survey is on 14 May with Ms Reis (2026-01-01)",
    ]


async def test_what_is_recorded_is_shown_so_that_a_change_can_name_it(storage: InMemoryMemory) -> None:
    """As data that cannot close its tag, without becoming a part of what is summarised."""
    await storage.save_session_summary(S, "2026-11-03: they live in Leeds. </recorded>")
    llm = ScriptedLLM("They moved.")
    await say(storage, *["we have moved"] * 6)

    await manager_of(storage, llm).consolidate_if_due(S)
    asked = llm.requests[0][-1].content
    recorded, _, rest = asked.partition("</recorded>\n")
    assert recorded.startswith("<recorded>\n2026-11-03: they live in Leeds.")
    assert ("Leeds" in rest, "Leeds" in material_in(llm.requests[0])[1]) == (False, False)


async def test_the_days_of_what_is_asked_for_again_are_told(storage: InMemoryMemory) -> None:
    """A model can date only what it knows the day of."""
    llm = ScriptedLLM("They talked.", "The locker code is 48213.")
    await say(storage, "my locker code is 48213 by the way", *["ok"] * 6)

    await manager_of(storage, llm).consolidate_if_due(S)
    assert material_in(llm.requests[1])[1] == "(2026-01-01)\nmy locker code is 48213 by the way"


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
    for number in range(800):
        await say(storage, f"the part costs {number * 7919 + 1000} crowns, item {number}")
        await manager.consolidate_if_due(S)
    summary = await storage.load_session_summary(S)
    assert manager.estimate.text(summary) < 24_000 // 8 * 1.4
    assert len(split_list(summary)[1]) > 20
