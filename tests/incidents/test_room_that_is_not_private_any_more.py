"""
A direct room of the owner got a third member. The memory document stayed closed, but the history and the
summary of the room told the newcomer everything that had been said while the owner was alone with the
assistant, what it had repeated from the memory document included.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_core.memory.manager import MemoryManager
from agent_core.memory.scopes import OWNER
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.doubles.consolidation import TokenKeeper
from tests.doubles.in_memory_storage import InMemoryMemory

KEY = SessionKey("matrix", "!room:hs.test")
S = str(KEY)
ROOM = MemoryScope(ScopeKind.ROOM, S)
BOB = MemoryScope(ScopeKind.PERSON, "@bob:hs.test")
SCOPES = {"owner": OWNER, "room": ROOM, "bob": BOB}


@pytest.fixture(params=["files", "memory"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    if request.param == "files":
        return lambda: JsonlMemory(tmp_path, clock=ManualClock())
    kept = InMemoryMemory(clock=ManualClock())
    return lambda: kept


async def say(memory: Any, scope: MemoryScope, *numbers: int) -> None:
    for number in numbers:
        turn = {"turn": f"t{number}", "scope": str(scope)}
        await memory.append_message(
            S,
            Message(role="user", content=f"m{number}", id=f"{number}.0", **turn),
            Message(role="assistant", content=f"m{number}a", id=f"{number}.1", **turn),
        )


async def shown(memory: Any, scope: MemoryScope) -> str:
    built = await MemoryManager(memory).build_messages(S, "sys", "what was said?", scope=scope)
    return " ".join(message.content for message in built)


async def consolidated(memory: Any) -> None:
    manager = MemoryManager(memory, llm=TokenKeeper(), consolidation_threshold=3, keep_recent_ratio=0.34)
    assert (await manager.consolidate_if_due(S)).segments


async def test_what_was_said_alone_is_not_shown_before_others(reopen: Callable[[], Any]) -> None:
    """In the history: hidden while somebody reads along, and there again when they have left."""
    memory = reopen()
    await say(memory, OWNER, 1, 2)
    await say(memory, ROOM, 3)
    told = await shown(memory, ROOM)
    assert "m3" in told and "m3a" in told
    assert "m1" not in told and "m2" not in told
    assert "m1" not in await shown(memory, BOB)
    alone = await shown(reopen(), OWNER)
    assert all(f"m{number}" in alone for number in (1, 2, 3))


async def test_nor_is_its_summary(reopen: Callable[[], Any]) -> None:
    """Also when the summary has gone on, over a restart, and after the record had to be restored."""
    memory = reopen()
    await say(memory, OWNER, 1, 2, 3)
    await consolidated(memory)
    assert "m1" in await shown(memory, OWNER)
    assert "m1" not in await shown(memory, ROOM)
    await say(memory, ROOM, 4, 5, 6)
    await consolidated(memory)
    memory = reopen()
    assert "m1" not in await shown(memory, ROOM)
    assert "m4" in await shown(memory, OWNER)
    if isinstance(memory, JsonlMemory):
        memory.layout.record(KEY).write_bytes(b"{")
        assert "m1" not in await shown(reopen(), ROOM)


async def test_what_all_have_heard_may_be_told(reopen: Callable[[], Any]) -> None:
    """What was said in a room, and its summary, is shown to whoever is left in it, and lines without a scope too."""
    memory = reopen()
    await memory.append_message(S, Message(role="user", content="m0", id="0"))
    await say(memory, ROOM, 1, 2, 3)
    for scope in SCOPES.values():
        assert "m0" in await shown(memory, scope) and "m1" in await shown(memory, scope)
    await consolidated(memory)
    for scope in SCOPES.values():
        assert "m1" in await shown(memory, scope)


async def test_a_new_beginning_is_not_bound_by_the_old_one(reopen: Callable[[], Any]) -> None:
    """After a reset nothing private is in the summary any more, so the room sees it again."""
    memory = reopen()
    await say(memory, OWNER, 1, 2, 3)
    await consolidated(memory)
    await memory.save_consolidation(S, summary="", cursor=6)
    await say(memory, ROOM, 4, 5, 6)
    await consolidated(memory)
    told = await shown(memory, ROOM)
    assert "m4" in told and "m1" not in told


async def test_a_record_of_before_is_read(tmp_path: Path) -> None:
    """Records without the field, or with nonsense in it, are records."""
    memory = JsonlMemory(tmp_path, clock=ManualClock())
    await say(memory, ROOM, 1, 2)
    for private in ({}, {"private": 7}, {"private": ["owner"]}):
        memory.layout.record(KEY).write_text(json.dumps({"last_consolidated": 2, "summary": "m1", **private}))
        memory = JsonlMemory(tmp_path, clock=ManualClock())
        assert ("m1" in await shown(memory, ROOM)) == (private != {"private": ["owner"]})
        assert await memory.load_consolidated_cursor(S) == 2
