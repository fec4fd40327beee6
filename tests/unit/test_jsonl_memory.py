"""What only files can do wrong: torn lines, garbage, bad records, full disks, other people's editors."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import orjson
import pytest
from structlog.testing import capture_logs

from agent_core.errors import MemoryConflict, StorageUnavailable
from agent_core.messages import SessionKey
from agent_core.models import MemoryDocument, MemoryScope, Message, ScopeKind
from agent_core.storage import JsonlMemory
from agent_core.storage.lines import to_line
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


# ── the record ──


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
async def test_a_bad_record_is_kept_aside(memory: JsonlMemory, bad: bytes) -> None:
    """A record that cannot be read moves aside under a dated name, is reported, and the cursor is 0."""
    await memory.append_message(SESSION, line(0), line(1))
    await memory.save_consolidation(SESSION, summary="what was", cursor=2)
    record = memory.layout.record(KEY)
    record.write_bytes(bad)

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


async def test_a_cursor_beyond_the_end_is_clamped_and_reported_once(memory: JsonlMemory) -> None:
    """A cursor that points behind the last message stands at the end; the file is not touched."""
    await memory.append_message(SESSION, line(0), line(1))
    memory.layout.record(KEY).write_text('{"last_consolidated": 180, "offset": 99999, "message_id": "x"}')

    again = opened(memory.layout.home)
    with capture_logs() as logs:
        assert await again.load_consolidated_cursor(SESSION) == 2
        assert (await again.load_history(SESSION)).messages == ()
    assert [log["event"] for log in logs] == ["cursor.clamped"]
    assert json.loads(memory.layout.record(KEY).read_text())["last_consolidated"] == 180


async def test_the_readable_copy_is_repaired_from_the_record(memory: JsonlMemory) -> None:
    """summary.md is a copy: what it says is never believed while there is a record."""
    await memory.save_session_summary(SESSION, "the truth")
    copy = memory.layout.summary(KEY)
    copy.write_text("an old lie")

    assert await opened(memory.layout.home).load_session_summary(SESSION) == "the truth"
    assert copy.read_text() == "the truth"


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
    """The first look at a history of 200,000 messages reads as little as at one of 1,000."""
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
    assert reads.bytes == before


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


# ── a disk that says no ──


def in_child(code: str, home: Path) -> str:
    """Run code in a process of its own and give what it printed."""
    prologue = """
        import os, resource, sys, anyio
        from pathlib import Path
        from agent_core.errors import StorageUnavailable
        from agent_core.models import MemoryScope, Message, ScopeKind
        from agent_core.storage import JsonlMemory
        from tests.clock import ManualClock
        home = Path(sys.argv[1])
        memory = JsonlMemory(home, clock=ManualClock())
        owner = MemoryScope(ScopeKind.OWNER)
        def limit(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prologue) + textwrap.dedent(code), str(home)],
        capture_output=True,
        text=True,
        timeout=25,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_disk_says_so_and_loses_nothing(tmp_path: Path) -> None:
    """Whatever cannot be written raises StorageUnavailable, leaves what was there, and works again later."""
    printed = in_child(
        """
        async def refused(what):
            try:
                await what
            except StorageUnavailable as error:
                print("refused", error.fields["errno"], error.temporary)

        async def main():
            big = "y" * 5000
            await memory.append_message("matrix/r", Message(role="user", content="first", id="1"))
            await memory.save_consolidation("matrix/r", summary="was", cursor=1)
            await memory.save_global_memory(owner, "fact")
            limit(2000)
            await refused(memory.append_message("matrix/r", Message(role="user", content=big, id="2")))
            await refused(memory.save_consolidation("matrix/r", summary=big, cursor=0))
            await refused(memory.save_global_memory(owner, big, base_version=1))
            limit(resource.RLIM_INFINITY)
            tail = await memory.load_segment("matrix/r", start=0, max_messages=9)
            print([m.content for m in tail.messages], await memory.load_session_summary("matrix/r"))
            print(await memory.load_consolidated_cursor("matrix/r"), await memory.load_global_memory(owner))
            await memory.append_message("matrix/r", Message(role="user", content=big, id="2"))
            await memory.save_global_memory(owner, big, base_version=1)
            tail = await memory.load_segment("matrix/r", start=0, max_messages=9)
            print([len(m.content) for m in tail.messages], tail.skipped_lines)
            print(len((await memory.load_global_memory(owner)).text))

        anyio.run(main)
        """,
        tmp_path,
    )
    wanted = [
        "refused EFBIG True",
        "refused EFBIG True",
        "refused EFBIG True",
        "['first'] was",
        "1 MemoryDocument(text='fact', version=1)",
        "[5, 5000] 1",
        "5000",
    ]
    assert [row for row in printed.splitlines() if "[warning" not in row] == wanted


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_home_that_cannot_be_written_can_be_read(memory: JsonlMemory, tmp_path: Path) -> None:
    """On a read-only home reading works and writing says StorageUnavailable."""
    await memory.append_message(SESSION, line(0))
    for folder in (tmp_path, memory.layout.sessions):
        folder.chmod(0o500)
    try:
        assert len((await opened(tmp_path).load_history(SESSION)).messages) == 1
        with pytest.raises(StorageUnavailable):
            await memory.save_session_summary(SESSION, "x")
    finally:
        for folder in (tmp_path, memory.layout.sessions):
            folder.chmod(0o700)


async def test_something_in_the_way_is_storage_unavailable(memory: JsonlMemory, history: Path) -> None:
    """A folder or a link in the place of a file is an error of the storage, not a crash, and is not followed."""
    history.mkdir(parents=True)
    with pytest.raises(StorageUnavailable):
        await memory.append_message(SESSION, line(0))
    history.rmdir()
    history.symlink_to("/dev/null")
    with pytest.raises(StorageUnavailable):
        await memory.append_message(SESSION, line(0))
    with pytest.raises(StorageUnavailable):
        await memory.load_history(SESSION)


# ── memory documents ──


async def test_an_edit_by_hand_becomes_a_version(memory: JsonlMemory) -> None:
    """What somebody types into MEMORY.md is read, kept as a version of its own, and protected by it."""
    await memory.save_global_memory(OWNER, "- tea", session_id=SESSION, turn="1")
    path = memory.layout.document(OWNER)
    path.write_text("- coffee\r\n")
    edited_at = datetime(2026, 1, 2, tzinfo=UTC)
    os.utime(path, (edited_at.timestamp(), edited_at.timestamp()))

    with pytest.raises(MemoryConflict) as caught:
        await memory.save_global_memory(OWNER, "- tea and cake", base_version=1)
    assert (caught.value.current_text, caught.value.current_version) == ("- coffee\r\n", 2)
    assert await memory.load_global_memory(OWNER) == MemoryDocument("- coffee\r\n", 2)
    await memory.save_global_memory(OWNER, "- coffee and cake", base_version=2)
    versions = await opened(memory.layout.home).memory_versions(OWNER)
    assert [each[0].text for each in versions] == ["- tea", "- coffee\r\n", "- coffee and cake"]
    assert versions[1][1:] == (edited_at, "", "")


async def test_a_document_that_was_there_first_is_version_one(memory: JsonlMemory) -> None:
    """A MEMORY.md that a person brought along is noticed, broken characters and all."""
    path = memory.layout.document(OWNER)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"- caf\xe9\n")

    assert await memory.load_global_memory(OWNER) == MemoryDocument("- caf\ufffd\n", 1)
    assert await opened(memory.layout.home).load_global_memory(OWNER) == MemoryDocument("- caf\ufffd\n", 1)


async def test_a_deleted_document_is_an_edit_too(memory: JsonlMemory) -> None:
    """Deleting MEMORY.md empties the memory and can be undone from the versions."""
    await memory.save_global_memory(OWNER, "- tea")
    memory.layout.document(OWNER).unlink()

    assert await memory.load_global_memory(OWNER) == MemoryDocument("", 2)
    assert [each[0].text for each in await memory.memory_versions(OWNER)] == ["- tea", ""]


async def test_a_write_cut_off_before_its_rename_is_finished(memory: JsonlMemory) -> None:
    """If the process dies after the version was kept, the next one puts the document in place."""
    await memory.save_global_memory(OWNER, "old")
    await memory.save_global_memory(OWNER, "new", session_id=SESSION)
    path = memory.layout.document(OWNER)
    path.rename(path.with_name("MEMORY.md.next"))
    path.write_text("old")

    again = opened(memory.layout.home)
    assert await again.load_global_memory(OWNER) == MemoryDocument("new", 2)
    assert path.read_text() == "new"
    assert not path.with_name("MEMORY.md.next").exists()
    assert len(await again.memory_versions(OWNER)) == 2


async def test_a_write_cut_off_before_its_version_never_was(memory: JsonlMemory) -> None:
    """A prepared document without its version, and a torn version, change nothing."""
    await memory.save_global_memory(OWNER, "old")
    path = memory.layout.document(OWNER)
    path.with_name("MEMORY.md.next").write_text("new")
    with memory.layout.versions(OWNER).open("ab") as file:
        file.write(b'{"version":2,"time":"2026-')

    again = opened(memory.layout.home)
    assert await again.load_global_memory(OWNER) == MemoryDocument("old", 1)
    assert await again.save_global_memory(OWNER, "newer", base_version=1) == MemoryDocument("newer", 2)
    assert [each[0].version for each in await again.memory_versions(OWNER)] == [1, 2]


async def test_an_edit_after_a_cut_off_write_wins(memory: JsonlMemory) -> None:
    """What a person typed meanwhile is never overwritten by a write that is caught up on."""
    await memory.save_global_memory(OWNER, "old")
    await memory.save_global_memory(OWNER, "new")
    path = memory.layout.document(OWNER)
    path.rename(path.with_name("MEMORY.md.next"))
    path.write_text("typed by hand")

    assert await opened(memory.layout.home).load_global_memory(OWNER) == MemoryDocument("typed by hand", 3)


async def test_two_processes_cannot_wipe_each_others_facts(tmp_path: Path) -> None:
    """Writers in different processes are held to the same comparison."""
    code = """
        from agent_core.errors import MemoryConflict
        async def main():
            for number in range(15):
                while True:
                    document = await memory.load_global_memory(owner)
                    try:
                        await memory.save_global_memory(
                            owner, f"{document.text}{os.getpid()} {number}\\n", base_version=document.version
                        )
                        break
                    except MemoryConflict:
                        pass
        anyio.run(main)
    """
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(anyio.to_thread.run_sync, in_child, code, tmp_path)

    facts = (tmp_path / "workspace" / "MEMORY.md").read_text().splitlines()
    assert len(facts) == len(set(facts)) == 30
    versions = await opened(tmp_path).memory_versions(OWNER)
    assert [each[0].version for each in versions] == list(range(1, 31))


async def test_a_giant_edit_is_not_copied_but_kept(memory: JsonlMemory) -> None:
    """A document of megabytes is read, gets no version, and is set aside when it is replaced."""
    await memory.save_global_memory(OWNER, "small")
    path = memory.layout.document(OWNER)
    path.write_text("x" * 3_000_000)

    document = await memory.load_global_memory(OWNER)
    assert (len(document.text), document.version) == (3_000_000, 2)
    assert await memory.load_global_memory(OWNER) == document
    await memory.save_global_memory(OWNER, "small again", base_version=2)
    assert path.with_name("MEMORY.md.kept-2").stat().st_size == 3_000_000
    assert len(await memory.memory_versions(OWNER)) == 2


async def test_time_may_go_back(memory: JsonlMemory) -> None:
    """A clock that was set back changes neither order nor count."""
    for number, days in enumerate((0, -400, 3)):
        stamp = AT + timedelta(days=days)
        await memory.append_message(SESSION, line(number).model_copy(update={"timestamp": stamp}))

    assert texts((await memory.load_history(SESSION)).messages) == ["message 0", "message 1", "message 2"]
