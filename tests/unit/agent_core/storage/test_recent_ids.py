"""Which lines a history knows again by their ids, and what is shown after its cursor has moved."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from agent_core.models import Message
from agent_core.storage import JsonlMemory
from agent_core.storage.history_file import HistoryFile
from agent_core.storage.history_lines import RecentIds
from agent_core.storage.history_paging import PageMark
from tests.clock import ManualClock

AT = datetime(2026, 1, 3, 14, 5, tzinfo=UTC)


def line(number: int) -> Message:
    role = "user" if number % 2 == 0 else "assistant"
    return Message(role=role, content="something that was said", id=f"m{number}", turn="t", timestamp=AT)


async def test_a_cursor_that_goes_back_shows_everything_again(tmp_path: Path) -> None:
    """What was consolidated is shown again when it is needed after all."""
    memory = JsonlMemory(tmp_path, clock=ManualClock())
    await memory.append_message("loop/room", *(line(number) for number in range(40)))
    await memory.save_consolidated_cursor("loop/room", 35)
    assert len((await memory.load_history("loop/room")).messages) == 5
    await memory.save_consolidated_cursor("loop/room", 3)

    tail = await memory.load_history("loop/room")
    assert tail.positions == tuple(range(3, 40))
    assert [message.id for message in tail.messages] == [f"m{number}" for number in range(3, 40)]


def test_an_id_that_looks_like_a_written_one_is_written(tmp_path: Path) -> None:
    """Ids are remembered as hashes, and a hash alone never keeps a message out of the history."""
    file = HistoryFile(tmp_path / "history.jsonl")
    file.append([line(0)], PageMark)
    assert file._recent is not None
    file._recent.add("m1")  # as if "m0" had the hash of "m1"

    assert file.append([line(1)], PageMark) == 1
    assert file.append([line(1), line(0)], PageMark) == 0
    assert file.end() == 2


def test_ids_take_eight_bytes_and_the_oldest_go() -> None:
    """At least the last ones are known, at most twice as many are kept."""
    recent = RecentIds((f"a{number}" for number in range(10)), keep=10)
    for number in range(1000):
        recent.add(f"b{number}")
        assert len(recent) <= 20
        assert all(recent.may_contain(f"b{late}") for late in range(max(0, number - 9), number + 1))

    assert not recent.may_contain("a1")
