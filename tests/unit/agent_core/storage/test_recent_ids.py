"""Which lines a history knows again by their ids, and what is shown after its cursor has moved."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from agent_core.models import Message
from agent_core.storage import JsonlMemory
from agent_core.storage.history_file import HistoryFile, _decode
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


def test_the_newest_ids_are_known_again_and_no_more_of_them_are_kept(tmp_path: Path) -> None:
    """By the process that has written them, and by the next one."""
    path = tmp_path / "history.jsonl"
    file = HistoryFile(path)
    for begin in range(0, 1500, 100):
        file.append([line(number) for number in range(begin, begin + 100)], PageMark)

    assert file._recent is not None
    assert list(file._recent) == [f"m{number}" for number in range(500, 1500)]
    assert file.append([line(1499), line(500), line(1500)], PageMark) == 1
    assert HistoryFile(path).append([line(1500), line(501), line(1501)], PageMark) == 1


async def test_what_was_erased_does_not_stay_in_memory(tmp_path: Path) -> None:
    """Short lines are kept decoded; a file that somebody else has changed is read anew."""
    _decode.cache_clear()
    memory = JsonlMemory(tmp_path, clock=ManualClock())
    await memory.append_message("loop/room", line(0), line(1))
    await memory.load_history("loop/room")
    await memory.load_history("loop/room")
    assert (_decode.cache_info().currsize, _decode.cache_info().hits > 0) == (2, True)

    path = next(tmp_path.rglob("*.jsonl"))
    path.write_bytes(path.read_bytes().replace(b"something that was said", b"_"))
    assert [each.content for each in (await memory.load_history("loop/room")).messages] == ["_", "_"]
    assert _decode.cache_info().currsize == 2
