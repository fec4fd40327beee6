"""What a person can ask about memory: the next prompt, the search index, versions, and what condensing has cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_core.memory import OWNER, MemoryManager
from agent_core.messages import SessionKey
from agent_core.models import Message, Purpose, Usage
from agent_core.storage import JsonlMemory
from agent_core.storage.search_index import SearchIndex
from gateway.cli import show
from gateway.errors import NotFound
from gateway.operations import Operations
from gateway.upkeep import UpkeepAtRest
from gateway.work.sqlite import SqliteWorkStore
from tests.clock import EPOCH, LoopClock

ROOM = SessionKey("matrix", "!room:hs.test")


class Desk:
    def __init__(self, home: Path, store: SqliteWorkStore) -> None:
        self.store = store
        self.memory = JsonlMemory(home, clock=LoopClock())
        self.search = SearchIndex(home / "search.db", self.memory.layout)
        self.ask = Operations(
            store, self.memory, upkeep=UpkeepAtRest(MemoryManager(self.memory), self.search)
        )

    async def talk(self, count: int) -> None:
        for number in range(count):
            role = "user" if number % 2 == 0 else "assistant"
            await self.memory.append_message(
                str(ROOM),
                Message(role=role, content=f"text {number}", id=str(number), timestamp=EPOCH, scope="owner"),
            )


@pytest.fixture
async def desk(tmp_path: Path) -> Any:
    store = await SqliteWorkStore.open(tmp_path / "gateway.db", clock=LoopClock())
    yield Desk(tmp_path, store)
    await store.aclose()


async def test_a_session_shows_its_cursor_scope_summary_and_next_prompt(desk: Desk) -> None:
    """Everything that decides what the assistant will know, with tokens for each part."""
    await desk.talk(10)
    await desk.memory.save_consolidation(str(ROOM), summary="They met.", cursor=4)
    await desk.memory.save_global_memory(OWNER, "- likes tea")

    answer = await desk.ask.call("sessions_show", {"session": str(ROOM)})
    assert (answer["cursor"], answer["scope"], answer["summary"], answer["unconsolidated"]) == (
        4,
        "owner",
        "They met.",
        6,
    )
    prompt = answer["prompt"]
    assert (prompt["messages"], prompt["left_out"], prompt["cursor"]) == (6, 0, 4)
    assert all(prompt["tokens"][part] > 0 for part in ("base", "memory", "summary", "history"))
    parts = sum(prompt["tokens"].values())
    assert parts <= prompt["total_tokens"] <= parts + 60
    text = show.session(answer)
    assert "condensed  4, not yet 6" in text
    assert "scope      owner" in text
    assert "tokens (base" in text


async def test_looking_at_a_prompt_shows_nothing_to_a_model(desk: Desk) -> None:
    """The version that `memory_write` compares with is that of a real prompt."""
    manager = MemoryManager(desk.memory)
    await desk.talk(2)
    await manager.preview(str(ROOM))
    assert manager.shown_version(str(ROOM)) is None


async def test_the_index_can_be_made_anew(desk: Desk) -> None:
    """From nothing but the histories."""
    await desk.talk(10)
    answer = await desk.ask.call("sessions_reindex", {})
    assert (answer["sessions"], answer["messages"], answer["complete"]) == (1, 10, True)
    assert "10 messages of 1 sessions" in show.reindexed(answer)
    with pytest.raises(NotFound):
        await Operations(desk.store, desk.memory).call("sessions_reindex", {})


async def test_versions_can_be_compared(desk: Desk) -> None:
    """By default what the last write has changed; any two by number."""
    assert show.memory_diff(await desk.ask.call("memory_diff", {})) == "nothing changed"
    for text in ("- tea", "- tea\n- boat", "- boat"):
        await desk.memory.save_global_memory(OWNER, text)
    last = show.memory_diff(await desk.ask.call("memory_diff", {})).splitlines()
    assert last[:2] == ["--- version 2", "+++ version 3"]
    assert "-- tea" in last and " - boat" in last
    whole = await desk.ask.call("memory_diff", {"older": 0, "newer": 2})
    assert whole["diff"][-2:] == ["+- tea", "+- boat"]
    with pytest.raises(NotFound, match="known: 0, 1, 2, 3"):
        await desk.ask.call("memory_diff", {"newer": 9})


async def test_usage_is_told_by_purpose(desk: Desk) -> None:
    """What condensing costs stands beside what talking costs."""
    assert "nothing was spent" in show.usage(await desk.ask.call("usage", {}))
    for purpose, tokens in ((Purpose.CHAT, 100), (Purpose.CONSOLIDATION, 30), (Purpose.CONSOLIDATION, 12)):
        await desk.store.add_usage(ROOM, Usage(prompt_tokens=tokens, calls=1, model="m"), purpose)
    answer = await desk.ask.call("usage", {})
    assert {purpose: one["prompt_tokens"] for purpose, one in answer["by_purpose"].items()} == {
        "chat": 100,
        "consolidation": 42,
    }
    assert "consolidation  2      42" in show.usage(answer)
