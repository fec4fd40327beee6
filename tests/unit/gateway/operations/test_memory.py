"""What a person can ask about memory: the next prompt, the search index, versions, and what consolidation has cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_core.memory.manager import MemoryManager
from agent_core.memory.scopes import OWNER
from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.prompt import transcript_line
from agent_core.storage import JsonlMemory
from agent_core.storage.search_index import SearchIndex
from agent_core.storage.search_index.ranking import BestSentences
from gateway.errors import NotFound
from gateway.operations import render
from gateway.operations.operation_context import OperationContext
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.turns.post_turn import OfflinePostTurn
from tests.clock import EPOCH, LoopClock

ROOM = SessionKey("matrix", "!room:hs.test")


class Desk:
    def __init__(self, home: Path, store: SqliteQueue) -> None:
        self.store = store
        self.memory = JsonlMemory(home, clock=LoopClock())
        self.search = SearchIndex(home / "search.db", self.memory.layout)
        self.ask = OperationContext(
            store, self.memory, upkeep=OfflinePostTurn(MemoryManager(self.memory), self.search)
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
    store = await SqliteQueue.open(tmp_path / "gateway.db", clock=LoopClock())
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
    text = render.session(answer)
    assert "cursor     4: 4 messages are consolidated, 6 are not" in text
    assert "scope      owner" in text
    for part, tokens in prompt["tokens"].items():
        assert f"    {part:<8} {tokens:>6}" in text
    assert "They met." in text
    assert text.endswith("text 9")


async def test_a_conversation_that_began_anew_still_has_its_memory(desk: Desk) -> None:
    """Its next prompt holds the memory of its scope: both are shown, and that nothing was consolidated."""
    await desk.talk(4)
    await desk.memory.save_global_memory(OWNER, "- likes tea")
    await desk.ask.call("sessions_reset", {"session": str(ROOM)})
    answer = await desk.ask.call("sessions_show", {"session": str(ROOM)})
    assert (answer["scope"], answer["cursor"], answer["unconsolidated"]) == ("owner", 4, 0)
    assert answer["prompt"]["scope"] == "owner"
    assert answer["prompt"]["tokens"]["memory"] > 0
    assert "cursor     4: 4 messages are set aside, 0 are not" in render.session(answer)


async def test_a_session_says_when_it_is_consolidated_and_what_cannot_be_read(desk: Desk) -> None:
    """The limits of the configuration, that they are exceeded, and damaged lines."""
    await desk.talk(100)
    answer = await desk.ask.call("sessions_show", {"session": str(ROOM)})
    text = render.session(answer)
    assert "consolidated  above 100 messages or 12000 tokens\n" in text
    assert "damaged" not in text
    with desk.memory.layout.history(ROOM).open("ab") as history:
        history.write(b'{"role": "us\n')
    await desk.talk(1)
    answer = await desk.ask.call("sessions_show", {"session": str(ROOM)})
    text = render.session(answer)
    assert "or 12000 tokens; due with the next message\n" in text
    assert answer["damaged_lines"] == 1
    assert "damaged    1 of the newest lines cannot be read" in text


@pytest.mark.parametrize("name", ["memory_show", "memory_history", "memory_diff", "memory_undo"])
async def test_a_memory_that_never_was_is_told_with_those_that_are(desk: Desk, name: str) -> None:
    """The same words whatever was asked of it, so that a typing error is seen at once."""
    await desk.memory.save_global_memory(OWNER, "- tea")
    with pytest.raises(NotFound, match=r"there is no memory person:bob@x.*the memories are: owner"):
        await desk.ask.call(name, {"scope": "person:bob@x"})


async def test_every_version_says_when_and_where_it_was_written(desk: Desk) -> None:
    """Time, session and turn; an edit by hand has neither of the two."""
    await desk.memory.save_global_memory(OWNER, "- tea", session_id=str(ROOM), turn="7-abc")
    (desk.memory.layout.document(OWNER)).write_text("- coffee")
    answer = await desk.ask.call("memory_history", {})
    assert [(one["session"], one["turn"], one["text"]) for one in answer["versions"]] == [
        (str(ROOM), "7-abc", "- tea"),
        ("", "", "- coffee"),
    ]
    text = render.memory_versions(answer)
    assert f"in {ROOM}, turn 7-abc" in text
    assert text.count(", by hand or by undo") == 1
    assert "- - tea" in text and "+ - coffee" in text


def test_consolidating_that_fails_is_in_the_status() -> None:
    """How many conversations, why, and when it is tried again; nothing where all is well."""
    bad = {
        "failing_sessions": 2,
        "failures_in_a_row": 3,
        "last_error": "the model is away",
        "next_try_in_s": 90.0,
    }
    report = {"version": "1", "work": {"inbox": {}, "outbox": {}}, "consolidation": bad}
    told = "consolidation fails in 2 conversations (3 times in a row, again in 1 min 30 s): the model is away"
    assert told in render.status(report)
    once = render.status(report | {"consolidation": bad | {"failing_sessions": 1, "failures_in_a_row": 1}})
    assert "consolidation fails in 1 conversation (once, again in 1 min 30 s): the model is away" in once
    assert "consolidating" not in render.status(report | {"consolidation": bad | {"failing_sessions": 0}})


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
    assert "10 messages of 1 sessions" in render.render_reindex(answer)
    with pytest.raises(NotFound):
        await OperationContext(desk.store, desk.memory).call("sessions_reindex", {})


async def test_versions_can_be_compared(desk: Desk) -> None:
    """By default what the last write has changed; any two by number."""
    assert render.memory_diff(await desk.ask.call("memory_diff", {})) == "nothing changed"
    for text in ("- tea", "- tea\n- boat", "- boat"):
        await desk.memory.save_global_memory(OWNER, text)
    last = render.memory_diff(await desk.ask.call("memory_diff", {})).splitlines()
    assert last[:2] == ["--- version 2", "+++ version 3"]
    assert "-- tea" in last and " - boat" in last
    whole = await desk.ask.call("memory_diff", {"older": 0, "newer": 2})
    assert whole["diff"][-2:] == ["+- tea", "+- boat"]
    with pytest.raises(NotFound, match="known: 0, 1, 2, 3"):
        await desk.ask.call("memory_diff", {"newer": 9})


@pytest.mark.parametrize("spoken", [False, True])
async def test_of_a_long_message_the_sentence_is_shown_that_was_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, spoken: bool
) -> None:
    """As people read it, and not where words begin like those of the query; without the sentence it is those."""
    talk = "It rained all day and we stayed at home. " * 20
    text = f"{talk}I read a catalogue while calling them. {talk}Our cat is called Minka. {talk}"
    if spoken:
        text = transcript_line("voice.ogg", text=f"Our cat is called Minka. {talk}")
    told = f"[@ann:hs] {text}"
    await desk.memory.append_message(
        str(ROOM),
        Message(role="user", content=told, id="1", timestamp=EPOCH, scope="owner", sender="@ann:hs"),
    )
    (row,) = (await desk.ask.call("sessions_search", {"query": "cat called"}))["rows"]
    assert "Our cat is called Minka. It rained" in row["text"]
    assert "Spoken in" not in row["text"]
    if not spoken:
        monkeypatch.setattr(BestSentences, "best", lambda *_: "")
        (row,) = (await desk.ask.call("sessions_search", {"query": "cat called"}))["rows"]
        assert "catalogue" in row["text"]
        assert "Minka" not in row["text"]
