"""Cursor and summary on the disk: bad records, their spares, cursors that point nowhere, the readable copy."""

from __future__ import annotations

import json
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
async def test_a_bad_record_is_kept_aside_and_its_spare_counts(memory: JsonlMemory, bad: bytes) -> None:
    """A record that cannot be read is kept under a dated name and reported; nothing is summarised twice."""
    await memory.append_message(SESSION, line(0), line(1))
    await memory.save_consolidation(SESSION, summary="what was", cursor=2)
    record = memory.layout.record(KEY)
    record.write_bytes(bad)

    again = opened(memory.layout.home)
    with capture_logs() as logs:
        tail = await again.load_history(SESSION)
    assert (tail.messages, tail.cursor, tail.summary) == ((), 2, "what was")
    (aside,) = record.parent.glob("*.bad-*")
    assert aside.read_bytes() == bad
    assert [log["event"] for log in logs] == ["record.restored"]
    restarted = opened(memory.layout.home)
    assert await restarted.load_consolidated_cursor(SESSION) == 2
    assert await restarted.load_session_summary(SESSION) == "what was"


async def test_a_spare_that_is_one_behind_is_sound_too(memory: JsonlMemory) -> None:
    """If the process died between record and spare, the pair before comes back: summary and cursor of one moment."""
    await memory.append_message(SESSION, *[line(number) for number in range(4)])
    await memory.save_consolidation(SESSION, summary="first half", cursor=2)
    before = memory.layout.spare_record(KEY).read_bytes()
    await memory.save_consolidation(SESSION, summary="first half, second half", cursor=4)
    memory.layout.spare_record(KEY).write_bytes(before)
    memory.layout.record(KEY).write_bytes(b"{")

    again = opened(memory.layout.home)
    assert await again.load_session_summary(SESSION) == "first half"
    assert await again.load_consolidated_cursor(SESSION) == 2
    assert memory.layout.summary(KEY).read_text() == "first half"


async def test_a_spare_that_cannot_be_put_back_counts_all_the_same(memory: JsonlMemory) -> None:
    """On a disk that takes nothing the spare is used without being moved, and is not reported for every look."""
    await memory.append_message(SESSION, line(0), line(1))
    await memory.save_consolidation(SESSION, summary="what was", cursor=2)
    record = memory.layout.record(KEY)
    record.write_bytes(b"{")
    (record.parent / f"{record.name}.tmp").mkdir()

    again = opened(memory.layout.home)
    with capture_logs() as logs:
        for _ in range(3):
            assert await again.load_consolidated_cursor(SESSION) == 2
    assert [log["event"] for log in logs] == ["record.not_restored"]


async def test_what_was_reset_does_not_come_back_by_a_spare(memory: JsonlMemory) -> None:
    """A spare that cannot be written is removed: the pair of before must not return after a reset."""
    await memory.append_message(SESSION, line(0), line(1))
    await memory.save_consolidation(SESSION, summary="secret", cursor=2)
    spare = memory.layout.spare_record(KEY)
    (spare.parent / f"{spare.name}.tmp").mkdir()
    with capture_logs() as logs:
        await memory.save_consolidation(SESSION, summary="", cursor=2)
    assert [log["event"] for log in logs] == ["record.spare_failed"]
    memory.layout.record(KEY).write_bytes(b"{")
    assert await opened(memory.layout.home).load_session_summary(SESSION) == ""


@pytest.mark.parametrize("bad", [b"", b"{", b'{"last_consolidated": -1}'])
async def test_a_bad_record_without_a_spare_begins_at_nought(memory: JsonlMemory, bad: bytes) -> None:
    """Then it moves aside, is reported, the text of the readable copy stays, and the cursor is 0."""
    await memory.append_message(SESSION, line(0), line(1))
    await memory.save_consolidation(SESSION, summary="what was", cursor=2)
    record = memory.layout.record(KEY)
    record.write_bytes(bad)
    memory.layout.spare_record(KEY).write_bytes(bad)

    again = opened(memory.layout.home)
    with capture_logs() as logs:
        tail = await again.load_history(SESSION)
    assert len(tail.messages) == 2
    assert await again.load_session_summary(SESSION) == "what was"
    (aside,) = record.parent.glob("*.bad-*")
    assert aside.read_bytes() == bad
    assert [log["event"] for log in logs] == ["record.unreadable"]
    await again.save_consolidated_cursor(SESSION, 1)
    assert await opened(memory.layout.home).load_consolidated_cursor(SESSION) == 1


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
