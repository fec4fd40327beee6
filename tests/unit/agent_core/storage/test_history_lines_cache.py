"""How much of the histories is kept in memory: bounded for the whole process, and nothing before the cursor."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pytest

from agent_core.models import Message
from agent_core.storage import JsonlMemory
from agent_core.storage.history_file import HistoryFile
from agent_core.storage.history_lines import RecentIds
from agent_core.storage.history_paging import PageMark
from agent_core.storage.jsonl_memory import CACHE_BYTES
from tests.clock import ManualClock

AT = datetime(2026, 1, 3, 14, 5, tzinfo=UTC)
LIMIT = 200_000
ROOMS = [f"loop/room{number}" for number in range(8)]


def line(number: int, text: str = "something that was said") -> Message:
    role = "user" if number % 2 == 0 else "assistant"
    return Message(role=role, content=text, id=f"m{number}", turn="t", timestamp=AT)


def held(memory: JsonlMemory) -> int:
    """What all sessions that are open keep."""
    return sum(slot.files.history.cached_bytes for slot in memory._sessions._slots.values())


async def talk(memory: JsonlMemory, *, lines: int) -> list[int]:
    """People talk in eight rooms, ten lines in each before the next; what is held after each visit."""
    after: list[int] = []
    for begin in range(0, lines, 10):
        for room in ROOMS:
            await memory.append_message(room, *(line(number) for number in range(begin, begin + 10)))
            await memory.load_history(room, max_messages=20)
            after.append(held(memory))
    return after


async def test_all_conversations_together_hold_no_more_than_the_limit(tmp_path: Path) -> None:
    """However much is said, the decoded lines of all sessions stay within their bytes; without a limit they grow."""
    bounded = JsonlMemory(tmp_path / "bounded", clock=ManualClock(), cached_bytes=LIMIT)
    unbounded = JsonlMemory(tmp_path / "unbounded", clock=ManualClock(), cached_bytes=inf)

    assert max(await talk(bounded, lines=100)) <= LIMIT
    assert (await talk(unbounded, lines=100))[-1] > 5 * LIMIT


async def test_what_was_let_go_is_read_again(tmp_path: Path) -> None:
    """A conversation whose lines were let go is shown as before, and repeated lines are still known."""
    memory = JsonlMemory(tmp_path, clock=ManualClock(), cached_bytes=0)
    await talk(memory, lines=50)
    assert held(memory) == 0

    await memory.append_message(ROOMS[0], line(49), line(50), line(50))
    tail = await memory.load_history(ROOMS[0])

    assert [message.id for message in tail.messages] == [f"m{number}" for number in range(51)]
    assert tail.positions == tuple(range(51))


async def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    """Who talks now keeps his lines; those of the one who was silent longest go."""
    memory = JsonlMemory(tmp_path, clock=ManualClock(), cached_bytes=LIMIT)
    for room in ROOMS[:3]:
        await memory.append_message(room, *(line(number) for number in range(50)))

    slots = [slot.files.history.cached_bytes for slot in memory._sessions._slots.values()]
    assert slots[0] == 0
    assert min(slots[1:]) > 0


@pytest.mark.parametrize("consolidated", [True, False])
async def test_nothing_before_the_cursor_is_kept(tmp_path: Path, *, consolidated: bool) -> None:
    """After a consolidation only what came since is held; as long as there is none, all of it is."""
    memory = JsonlMemory(tmp_path, clock=ManualClock())
    await memory.append_message(ROOMS[0], *(line(number) for number in range(300)))
    before = held(memory)
    if consolidated:
        await memory.save_consolidation(ROOMS[0], summary="they talked", cursor=290)
    tail = await memory.load_history(ROOMS[0])

    assert len(tail.messages) == (10 if consolidated else 300)
    assert (held(memory) < before / 20) == consolidated


async def test_lines_before_the_cursor_do_not_come_back(tmp_path: Path) -> None:
    """What a new process reads to know repeated lines again is not kept."""
    await (memory := JsonlMemory(tmp_path, clock=ManualClock())).append_message(
        ROOMS[0], *(line(number) for number in range(300))
    )
    await memory.save_consolidation(ROOMS[0], summary="they talked", cursor=290)
    again = JsonlMemory(tmp_path, clock=ManualClock())
    await again.load_history(ROOMS[0])
    few = held(again)
    await again.append_message(ROOMS[0], line(299), line(300))
    await again.load_history(ROOMS[0])

    assert 0 < held(again) <= few * 12 / 10
    assert (await again.load_history(ROOMS[0])).total == 301


async def test_a_cursor_that_goes_back_shows_everything_again(tmp_path: Path) -> None:
    """What was let go because it was consolidated is decoded again when it is needed after all."""
    memory = JsonlMemory(tmp_path, clock=ManualClock())
    await memory.append_message(ROOMS[0], *(line(number) for number in range(40)))
    await memory.save_consolidated_cursor(ROOMS[0], 35)
    assert len((await memory.load_history(ROOMS[0])).messages) == 5
    await memory.save_consolidated_cursor(ROOMS[0], 3)

    tail = await memory.load_history(ROOMS[0])
    assert tail.positions == tuple(range(3, 40))
    assert [message.id for message in tail.messages] == [f"m{number}" for number in range(3, 40)]


def test_a_warm_conversation_is_not_read_from_the_disk(tmp_path: Path) -> None:
    """What the tail is for: after the first look a prompt costs no read; after `let_go` it does once more."""
    reads: list[int] = []

    def counted(handle: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return os.pread(handle, size, offset)

    def read() -> int:
        begun = len(reads)
        file.read(cursor=0, max_messages=50, max_chars=None, hint=PageMark())
        return len(reads) - begun

    file = HistoryFile(tmp_path / "history.jsonl", read_at=counted)
    file.append([line(number) for number in range(100)], PageMark)
    assert read() == 0
    file.drop_cache()
    assert (file.cached_bytes, read(), read()) == (0, 1, 0)


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


def test_one_conversation_fits(tmp_path: Path) -> None:
    """The lines of one conversation alone never reach the limit, also where each letter takes four bytes."""
    file = HistoryFile(tmp_path / "history.jsonl")
    for begin in range(0, 1200, 100):
        file.append([line(number, "🦑" * 600) for number in range(begin, begin + 100)], PageMark)

    assert CACHE_BYTES / 4 < file.cached_bytes < CACHE_BYTES
