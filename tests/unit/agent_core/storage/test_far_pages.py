"""A page from the middle of a long history, and the order of the conversations, without reading all of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage import JsonlMemory
from agent_core.storage.history_file import HistoryFile
from agent_core.storage.history_paging import PageMark
from tests.clock import ManualClock

COUNT = 5_000
EVERYTHING = {"max_messages": 5, "max_chars": None, "cursor": 0, "hint": PageMark()}


def history(path: Path, *, numbered: bool = True) -> bytes:
    """A long history; without numbers it is one of before lines had them."""
    file = HistoryFile(path)
    said = [Message(role="user", content=f"{number} " + "word " * 40) for number in range(COUNT)]
    file.append(said, PageMark)
    if not numbered:
        plain = path.read_bytes().splitlines()
        path.write_bytes(b"".join(line.rpartition(b',"n":')[0] + b"}\n" for line in plain))
    return path.read_bytes()


@pytest.mark.parametrize("start", [0, 1, 7, COUNT // 2, COUNT - 3, COUNT + 4])
def test_a_page_from_anywhere_reads_little(tmp_path: Path, start: int) -> None:
    size = len(history(tmp_path / "one.jsonl"))
    read = 0

    def counting(handle: int, count: int, offset: int) -> bytes:
        nonlocal read
        block = os.pread(handle, count, offset)
        read += len(block)
        return block

    page = HistoryFile(tmp_path / "one.jsonl", read_at=counting).segment(start=start, **EVERYTHING)
    assert page.positions == tuple(range(start, min(start + 5, COUNT)))
    assert [each.content.split()[0] for each in page.messages] == [str(each) for each in page.positions]
    assert read < size / 2


def test_a_damaged_or_old_history_gives_the_same_page_as_reading_all(tmp_path: Path) -> None:
    """Torn and joined lines, and lines that do not know their position."""
    whole = history(tmp_path / "one.jsonl")
    damaged = whole[: len(whole) // 3] + b"\x00\xff torn\n\n" + whole[len(whole) // 3 :]
    (tmp_path / "two.jsonl").write_bytes(damaged)
    plain = history(tmp_path / "three.jsonl", numbered=False)
    assert b'"n":' not in plain
    for name in ("two", "three"):
        near = HistoryFile(tmp_path / f"{name}.jsonl")
        scan = HistoryFile(tmp_path / f"{name}.jsonl")
        scan._nearer = lambda _handle, place, _start: place  # type: ignore[method-assign]
        for start in range(0, COUNT, 249):
            assert near.segment(start=start, **EVERYTHING) == scan.segment(start=start, **EVERYTHING)


async def test_conversations_come_in_the_order_of_their_last_message(tmp_path: Path) -> None:
    memory = JsonlMemory(tmp_path, clock=ManualClock())
    for name, second in (("matrix/a", 2), ("matrix/b", 3), ("matrix/c", 1)):
        await memory.append_message(name, Message(role="user", content="hello"))
        os.utime(memory.layout.history(SessionKey.parse(name)), (second, second))
    assert await memory.sessions() == ["matrix/b", "matrix/a", "matrix/c"]
