"""Cursor and summary on the disk: bad records, cursors that point nowhere, the readable copy."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock

KEY = SessionKey("matrix", "!room:hs.test")
SESSION = str(KEY)


def line(number: int) -> Message:
    role = "user" if number % 2 == 0 else "assistant"
    return Message(role=role, content=f"message {number}", id=f"m{number}", turn="t")


def opened(home: Path) -> JsonlMemory:
    return JsonlMemory(home, clock=ManualClock())


@pytest.fixture
def memory(tmp_path: Path) -> JsonlMemory:
    return opened(tmp_path)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x00" * 64,
        b"{",
        b"[]",
        b'{"last_consolidated": "8"}',
        b'{"last_consolidated": true}',
        b'{"last_consolidated": -1}',
        b'{"last_consolidated": 2, "summary": 7}',
        b'{"last_consolidated": 2, "session": "matrix/other"}',
    ],
)
async def test_a_bad_record_is_kept_aside_and_the_cursor_is_nought(memory: JsonlMemory, bad: bytes) -> None:
    """It is kept under a dated name and reported once. The text of the copy is not believed: it would be summarised twice."""
    await memory.append_message(SESSION, line(0), line(1))
    await memory.save_consolidation(SESSION, summary="what was", cursor=2)
    record = memory.layout.record(KEY)
    record.write_bytes(bad)

    again = opened(memory.layout.home)
    with capture_logs() as logs:
        tail = await again.load_history(SESSION)
    assert ([each.content for each in tail.messages], tail.cursor, tail.summary) == (
        ["message 0", "message 1"],
        0,
        "",
    )
    (aside,) = record.parent.glob("*.bad-*")
    assert aside.read_bytes() == bad
    assert [log["event"] for log in logs] == ["record.unreadable"]
    restarted = opened(memory.layout.home)
    assert await restarted.load_consolidated_cursor(SESSION) == 0
    await restarted.save_consolidation(SESSION, summary="again", cursor=1, base_cursor=0)
    tail = await opened(memory.layout.home).load_history(SESSION)
    assert (tail.cursor, tail.summary, memory.layout.summary(KEY).read_text()) == (1, "again", "again")


async def test_a_bad_record_that_cannot_be_moved_is_reported_once(
    memory: JsonlMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that takes nothing."""
    await memory.append_message(SESSION, line(0), line(1))
    await memory.save_consolidation(SESSION, summary="what was", cursor=2)
    memory.layout.record(KEY).write_bytes(b"{")

    def refused(path: Path, _target: Path) -> Path:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "replace", refused)
    again = opened(memory.layout.home)
    with capture_logs() as logs:
        for _ in range(3):
            assert await again.load_consolidated_cursor(SESSION) == 0
    assert [(log["event"], log["kept_as"]) for log in logs] == [("record.unreadable", None)]


async def test_without_a_record_the_copy_is_not_believed(memory: JsonlMemory) -> None:
    """Nobody knows whose words are in it."""
    await memory.append_message(SESSION, line(0), line(1))
    await memory.save_consolidation(SESSION, summary="what was", cursor=2)
    memory.layout.record(KEY).unlink()
    tail = await opened(memory.layout.home).load_history(SESSION)
    assert (len(tail.messages), tail.cursor, tail.summary) == (2, 0, "")


async def test_a_minimal_record_is_enough(memory: JsonlMemory) -> None:
    """A record with nothing but the cursor counts, and takes the summary of the readable copy."""
    await memory.append_message(SESSION, line(0), line(1))
    await memory.save_session_summary(SESSION, "what was")
    memory.layout.record(KEY).write_text('{"last_consolidated": 1}')

    again = opened(memory.layout.home)
    assert await again.load_consolidated_cursor(SESSION) == 1
    assert await again.load_session_summary(SESSION) == "what was"


async def test_a_cursor_beyond_the_end_is_kept_aside_clamped_and_reported_once(memory: JsonlMemory) -> None:
    """A cursor behind the last message stands at the end from then on, so that what is said next is shown."""
    await memory.append_message(SESSION, line(0), line(1))
    record = memory.layout.record(KEY)
    record.write_text('{"last_consolidated": 180, "offset": 99999, "message_id": "x", "summary": "was"}')

    again = opened(memory.layout.home)
    with capture_logs() as logs:
        assert await again.load_consolidated_cursor(SESSION) == 2
        assert (await again.load_history(SESSION)).messages == ()
    assert [log["event"] for log in logs] == ["cursor.clamped"]
    assert json.loads(record.read_text())["last_consolidated"] == 2
    assert json.loads((record.parent / logs[0]["kept_as"]).read_text())["last_consolidated"] == 180
    await again.append_message(SESSION, line(2))
    tail = await opened(memory.layout.home).load_history(SESSION)
    assert ([message.content for message in tail.messages], tail.summary) == (["message 2"], "was")


async def test_a_cursor_that_cannot_be_corrected_is_clamped_all_the_same(memory: JsonlMemory) -> None:
    """Where the folder cannot be written, reading goes on with the clamped cursor."""
    await memory.append_message(SESSION, line(0), line(1))
    record = memory.layout.record(KEY)
    record.write_text('{"last_consolidated": 180}')
    (record.parent / f"{record.name}.tmp").mkdir()  # stands in the way of every replacement

    with capture_logs() as logs:
        assert await opened(memory.layout.home).load_consolidated_cursor(SESSION) == 2
    assert [log["event"] for log in logs] == ["cursor.not_corrected"]


async def test_the_readable_copy_is_repaired_from_the_record(memory: JsonlMemory) -> None:
    """summary.md is a copy: what it says is never believed while there is a record."""
    await memory.save_session_summary(SESSION, "the truth")
    copy = memory.layout.summary(KEY)
    copy.write_text("an old lie")

    assert await opened(memory.layout.home).load_session_summary(SESSION) == "the truth"
    assert copy.read_text() == "the truth"
