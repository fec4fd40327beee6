"""What only files can do wrong: torn lines, garbage, bad records, full disks, other people's editors."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import orjson
import pytest
from structlog.testing import capture_logs

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage import JsonlMemory
from agent_core.storage.history_lines import to_line
from tests.clock import ManualClock

KEY = SessionKey("matrix", "!room:hs.test")
SESSION = str(KEY)
OWNER = MemoryScope(ScopeKind.OWNER)
AT = datetime(2026, 1, 3, 14, 5, tzinfo=UTC)


def line(number: int) -> Message:
    role = "user" if number % 2 == 0 else "assistant"
    return Message(role=role, content=f"message {number}", id=f"m{number}", turn="t", timestamp=AT)


def texts(messages: object) -> list[str]:
    return [message.content for message in messages]  # type: ignore[attr-defined]


def opened(home: Path) -> JsonlMemory:
    return JsonlMemory(home, clock=ManualClock())


@pytest.fixture
def memory(tmp_path: Path) -> JsonlMemory:
    return opened(tmp_path)


@pytest.fixture
def history(memory: JsonlMemory) -> Path:
    return memory.layout.history(KEY)


# ── the shape on disk ──


async def test_a_line_has_the_promised_fields(memory: JsonlMemory, history: Path) -> None:
    """One JSON object per line with id, turn, role, content, aware UTC timestamp, sender and position."""
    await memory.append_message(
        SESSION, Message(role="user", content="hi\nthere", id="7.0", turn="7", timestamp=AT, sender="@a:b")
    )

    raw = history.read_bytes()
    assert raw.endswith(b"\n") and raw.count(b"\n") == 1
    assert json.loads(raw) == {
        "id": "7.0",
        "turn": "7",
        "role": "user",
        "content": "hi\nthere",
        "timestamp": "2026-01-03T14:05:00Z",
        "sender": "@a:b",
        "n": 0,
    }


async def test_files_lie_where_the_layout_says(memory: JsonlMemory, tmp_path: Path) -> None:
    """History, record, summary and documents have their places, and all are for the owner alone."""
    await memory.append_message(SESSION, line(0))
    await memory.save_session_summary(SESSION, "short")
    await memory.save_global_memory(OWNER, "own")
    await memory.save_global_memory(MemoryScope(ScopeKind.PERSON, "../../bob"), "bob's")
    await memory.save_global_memory(MemoryScope(ScopeKind.ROOM, SESSION), "the room's")

    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        "sessions/matrix=.=21room=3ahs=2etest.jsonl",
        "sessions/matrix=.=21room=3ahs=2etest.meta.json",
        "memory/matrix=.=21room=3ahs=2etest/summary.md",
        "memory/owner/MEMORY.history.jsonl",
        "memory/people/=2e=2e=2f=2e=2e=2fbob/MEMORY.md",
        "memory/people/=2e=2e=2f=2e=2e=2fbob/MEMORY.history.jsonl",
        "memory/rooms/matrix=2f=21room=253ahs=2etest/MEMORY.md",
        "memory/rooms/matrix=2f=21room=253ahs=2etest/MEMORY.history.jsonl",
        "workspace/MEMORY.md",
    }
    for path in tmp_path.rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert (tmp_path / "memory/matrix=.=21room=3ahs=2etest/summary.md").read_text() == "short"


async def test_the_workspace_may_be_elsewhere(tmp_path: Path) -> None:
    """The owner's document follows the configured workspace, its versions stay at home."""
    memory = JsonlMemory(tmp_path / "home", clock=ManualClock(), workspace=tmp_path / "work")
    await memory.save_global_memory(OWNER, "own")

    assert (tmp_path / "work" / "MEMORY.md").read_text() == "own"
    assert (tmp_path / "home" / "memory" / "owner" / "MEMORY.history.jsonl").exists()


# ── damaged histories ──


async def test_a_torn_line_is_closed_and_passed_over(memory: JsonlMemory, history: Path) -> None:
    """After a torn write the old bytes stay, the next line is whole, and the torn one is counted."""
    await memory.append_message(SESSION, line(0), line(1))
    whole = history.read_bytes()
    torn = whole + to_line(line(2), 2)[:-20]
    history.write_bytes(torn)

    again = opened(memory.layout.home)
    with capture_logs() as logs:
        await again.append_message(SESSION, line(2), line(3))
        tail = await again.load_history(SESSION)

    assert history.read_bytes().startswith(torn + b"\n")
    assert texts(tail.messages) == ["message 0", "message 1", "message 2", "message 3"]
    assert tail.skipped_lines == 1
    assert tail.positions == (0, 1, 3, 4)
    assert [log["event"] for log in logs] == ["history.line_skipped"]


async def test_a_line_without_its_newline_is_still_read(memory: JsonlMemory, history: Path) -> None:
    """If only the newline was torn off, the message is there, and is not kept twice."""
    await memory.append_message(SESSION, line(0), line(1))
    history.write_bytes(history.read_bytes()[:-1])

    again = opened(memory.layout.home)
    assert texts((await again.load_history(SESSION)).messages) == ["message 0", "message 1"]
    await again.append_message(SESSION, line(1), line(2))
    tail = await again.load_history(SESSION)
    assert texts(tail.messages) == ["message 0", "message 1", "message 2"]
    assert tail.skipped_lines == 0


async def test_garbage_never_shifts_the_cursor(memory: JsonlMemory, history: Path) -> None:
    """Lines that become unreadable before or after the cursor leave every other message where it was."""
    await memory.append_message(SESSION, *[line(number) for number in range(8)])
    await memory.save_consolidated_cursor(SESSION, 4)
    lines = history.read_bytes().splitlines(keepends=True)
    lines[1] = b"\xff\xfe\x00 no utf-8 {]\n"
    lines[5] = b'{"role":"emperor","content":"x","n":5}\n'
    lines[6] = b"[" * 5000 + b"\n"
    history.write_bytes(b"".join(lines))

    tail = await opened(memory.layout.home).load_history(SESSION)
    assert texts(tail.messages) == ["message 4", "message 7"]
    assert (tail.total, tail.unconsolidated, tail.skipped_lines) == (8, 4, 2)
    assert tail.positions == (4, 7)


async def test_a_line_of_zeros_is_not_held_in_memory(memory: JsonlMemory, history: Path) -> None:
    """A hole of many megabytes, as a crash of the file system leaves it, is one skipped line."""
    await memory.append_message(SESSION, line(0))
    with history.open("ab") as file:
        file.truncate(file.tell() + 40 * 1024 * 1024)
    again = opened(memory.layout.home)
    await again.append_message(SESSION, line(1))

    tail = await again.load_history(SESSION)
    assert texts(tail.messages) == ["message 0", "message 1"]
    assert tail.skipped_lines == 1


async def test_a_history_without_positions_is_counted(memory: JsonlMemory, history: Path) -> None:
    """A file made by hand, without ``n``, works; new lines continue its count."""
    history.parent.mkdir(parents=True)
    old = [{"role": "user", "content": f"old {number}"} for number in range(300)]
    history.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in old))

    tail = await memory.load_history(SESSION, max_messages=2)
    assert (texts(tail.messages), tail.total, tail.positions) == (["old 298", "old 299"], 300, (298, 299))
    await memory.save_consolidated_cursor(SESSION, 290)
    await memory.append_message(SESSION, line(0))
    assert json.loads(history.read_bytes().splitlines()[-1])["n"] == 300
    tail = await opened(memory.layout.home).load_history(SESSION)
    assert (tail.total, tail.unconsolidated, len(tail.messages)) == (301, 11, 11)


async def test_a_position_that_cannot_be_is_not_believed(memory: JsonlMemory, history: Path) -> None:
    """A line that says it is number ten million in a small file does not move the end there."""
    history.parent.mkdir(parents=True)
    history.write_bytes(
        b'{"role":"user","content":"a","n":10000000}\n{"role":"user","content":"b","n":true}\n'
    )

    tail = await memory.load_history(SESSION)
    assert (tail.total, texts(tail.messages), tail.positions) == (2, ["a", "b"], (0, 1))


async def test_lines_added_by_somebody_else_are_seen(memory: JsonlMemory, history: Path) -> None:
    """What another process appends is read, and nothing that is cached hides it."""
    await memory.append_message(SESSION, line(0))
    await memory.load_history(SESSION)
    await opened(memory.layout.home).append_message(SESSION, line(1))
    await memory.append_message(SESSION, line(1), line(2))

    assert texts((await memory.load_history(SESSION)).messages) == ["message 0", "message 1", "message 2"]


async def test_two_processes_never_give_two_messages_one_position(memory: JsonlMemory, history: Path) -> None:
    """While another process has the file, appending waits, and then goes on behind what that one has written."""
    await memory.append_message(SESSION, line(0))
    handle = os.open(history, os.O_WRONLY | os.O_APPEND)
    fcntl.flock(handle, fcntl.LOCK_EX)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(memory.append_message, SESSION, line(2))
        await anyio.sleep(0.2)  # time enough for one that does not wait
        os.write(handle, to_line(line(1), 1))
        os.close(handle)

    assert [json.loads(each)["n"] for each in history.read_bytes().splitlines()] == [0, 1, 2]
    assert texts((await memory.load_history(SESSION)).messages) == ["message 0", "message 1", "message 2"]


async def test_a_repetition_in_the_file_is_shown_once(memory: JsonlMemory, history: Path) -> None:
    """Lines that a crash wrote twice are one message for every reader."""
    await memory.append_message(SESSION, line(0), line(1))
    history.write_bytes(history.read_bytes() * 2)

    again = opened(memory.layout.home)
    assert texts((await again.load_history(SESSION)).messages) == ["message 0", "message 1"]
    assert texts((await again.load_segment(SESSION, start=0, max_messages=9)).messages) == [
        "message 0",
        "message 1",
    ]


# ── names ──


async def test_a_shortened_file_name_still_tells_its_session(memory: JsonlMemory) -> None:
    """A session whose name is too long for a file is listed by its full key."""
    long = SessionKey("email", "<" + "ü" * 300 + "@mail.test>")
    await memory.append_message(str(long), line(0))

    assert "=~" in memory.layout.history(long).name
    assert await opened(memory.layout.home).sessions() == [str(long)]


async def test_foreign_files_are_no_sessions(memory: JsonlMemory) -> None:
    """A file with another kind of name is reported and not listed."""
    await memory.append_message(SESSION, line(0))
    for name in ("notes.jsonl", "a=.b=~0000.jsonl", "matrix=.x.meta.json", "matrix=.=zz.jsonl"):
        (memory.layout.sessions / name).write_text("{}\n")

    assert await memory.sessions() == [SESSION]


# ── cost ──


class Reads:
    """Counts what is read from histories."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, handle: int, size: int, offset: int) -> bytes:
        self.bytes += size
        return os.pread(handle, size, offset)


def filled(path: Path, messages: int) -> None:
    """Write a history of that many messages of some 250 bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    value = orjson.loads(to_line(line(0), 0)) | {"content": "x" * 120}
    with path.open("wb") as file:
        for number in range(messages):
            role = "assistant" if number % 2 else "user"
            value |= {"id": f"m{number}", "n": number, "role": role}
            file.write(orjson.dumps(value) + b"\n")


@pytest.mark.parametrize("messages", [1_000, 200_000])
async def test_reading_costs_what_is_read(tmp_path: Path, messages: int) -> None:
    """A look at a history of 200,000 messages reads as little as at one of 1,000: a block, once it is known."""
    reads = Reads()
    memory = JsonlMemory(tmp_path, clock=ManualClock(), read_at=reads)
    path = memory.layout.history(KEY)
    filled(path, messages)

    tail = await memory.load_history(SESSION, max_messages=100)
    assert (len(tail.messages), tail.total) == (100, messages)
    assert reads.bytes <= 4 * 64 * 1024
    await memory.append_message(SESSION, line(messages), line(messages + 1))
    assert reads.bytes <= 16 * 64 * 1024
    before = reads.bytes
    for _ in range(20):
        await memory.load_history(SESSION, max_messages=100)
    assert reads.bytes <= before + 20 * 64 * 1024


async def test_the_reader_of_whole_files_would_be_caught(tmp_path: Path) -> None:
    """Negative control: the count of bytes does see a history that is read from its beginning."""
    reads = Reads()
    memory = JsonlMemory(tmp_path, clock=ManualClock(), read_at=reads)
    filled(memory.layout.history(KEY), 20_000)

    await memory.load_history(SESSION)
    assert reads.bytes > 16 * 64 * 1024


async def test_open_sessions_are_bounded(memory: JsonlMemory) -> None:
    """Thousands of sessions do not stay in memory."""
    for number in range(100):
        await memory.append_message(f"matrix/room{number}", line(0))

    assert len(memory._sessions._slots) <= 32
    assert len(await memory.sessions()) == 100


async def test_time_may_go_back(memory: JsonlMemory) -> None:
    """A clock that was set back changes neither order nor count."""
    for number, days in enumerate((0, -400, 3)):
        stamp = AT + timedelta(days=days)
        await memory.append_message(SESSION, line(number).model_copy(update={"timestamp": stamp}))

    assert texts((await memory.load_history(SESSION)).messages) == ["message 0", "message 1", "message 2"]


# ── threads ──


@pytest.mark.parametrize("how", ["ours", "abandoned"])
async def test_a_cancelled_caller_leaves_when_its_call_has_ended(memory: JsonlMemory, how: str) -> None:
    """
    Nobody works on a file behind a released lock.

    Negative control: a caller that abandons its thread is seen to leave before it.
    """
    begun, release, left = threading.Event(), threading.Event(), threading.Event()

    def work(_: object) -> None:
        begun.set()
        release.wait(5)
        left.set()

    async with anyio.create_task_group() as tasks:
        if how == "ours":
            tasks.start_soon(memory._in_session, SESSION, "read", work)
        else:
            tasks.start_soon(lambda: anyio.to_thread.run_sync(work, None, abandon_on_cancel=True))
        with anyio.fail_after(60):
            while not begun.is_set():
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
        threading.Timer(0.2, release.set).start()
    assert left.is_set() == (how == "ours")
    release.set()
