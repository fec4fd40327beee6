"""What stands in the place of a file and is none: folders, pipes, links to nowhere. Nobody waits for it for ever."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent_core.errors import DocumentUnusable, StorageUnavailable
from agent_core.messages import SessionKey
from agent_core.models import MemoryDocument, MemoryScope, Message, ScopeKind
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock

KEY = SessionKey("matrix", "!room:hs.test")
S = str(KEY)
OTHER = str(SessionKey("matrix", "!other:hs.test"))
OWNER = MemoryScope(ScopeKind.OWNER)
NO_FILES: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
}


def opened(home: Path) -> JsonlMemory:
    return JsonlMemory(home, clock=ManualClock())


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """Two conversations of four messages, two of them consolidated, and a memory document."""
    memory = opened(tmp_path)
    for session in (S, OTHER):
        for number in range(4):
            message = Message(
                role="assistant" if number % 2 else "user", content=f"m{number}", id=str(number)
            )
            await memory.append_message(session, message, durable=True)
        await memory.save_consolidation(session, summary="m0 m1", cursor=2, base_cursor=0)
    await memory.save_global_memory(OWNER, "- a fact", session_id=S)
    return tmp_path


@pytest.mark.parametrize("what", NO_FILES)
async def test_what_is_no_record_is_put_aside_and_the_cursor_is_nought(home: Path, what: str) -> None:
    """The conversation goes on, and it is told once."""
    record = opened(home).layout.record(KEY)
    record.unlink()
    NO_FILES[what](record)

    memory = opened(home)
    with capture_logs() as logs:
        for _ in range(2):
            tail = await memory.load_history(S)
            assert (tail.cursor, tail.summary, [each.content for each in tail.messages]) == (
                0,
                "",
                ["m0", "m1", "m2", "m3"],
            )
    assert [(log["event"], bool(log["kept_as"])) for log in logs] == [("record.unreadable", True)]
    await memory.save_consolidation(S, summary="m0 m1 m2", cursor=3, base_cursor=0)
    assert await opened(home).load_consolidated_cursor(S) == 3


@pytest.mark.parametrize("what", NO_FILES)
async def test_what_is_no_summary_is_no_summary(home: Path, what: str) -> None:
    """Without a record and with something else in the copy's place a conversation begins at 0."""
    layout = opened(home).layout
    layout.record(KEY).unlink()
    layout.summary(KEY).unlink()
    NO_FILES[what](layout.summary(KEY))

    tail = await opened(home).load_history(S)
    assert (tail.cursor, tail.summary, len(tail.messages)) == (0, "", 4)


@pytest.mark.parametrize("what", NO_FILES)
async def test_what_is_no_history_is_moved_away_and_costs_no_other(home: Path, what: str) -> None:
    """A new history begins from its first line, the old one can be put back, and the others go on."""
    layout = opened(home).layout
    history = layout.history(KEY)
    kept = history.rename(home / "kept.jsonl")
    NO_FILES[what](history)

    memory = opened(home)
    await memory.load_history(S)
    await memory.append_message(S, Message(role="user", content="new"))
    assert [message.content for message in (await memory.load_history(S)).messages][-1:] == ["new"]
    assert os.path.lexists(f"{history}.set-aside-1")
    assert (await memory.load_history(OTHER)).cursor == 2
    assert OTHER in await memory.sessions()
    kept.rename(history)
    assert len((await opened(home).load_history(S)).messages) == 4


@pytest.mark.parametrize("what", NO_FILES)
@pytest.mark.parametrize("which", ["document", "versions"])
async def test_what_is_no_document_is_refused_for_good(home: Path, what: str, which: str) -> None:
    """Waiting would not help, so nobody is told to wait; what was remembered comes back with the file."""
    layout = opened(home).layout
    path = getattr(layout, which)(OWNER)
    kept = path.rename(home / "kept")
    NO_FILES[what](path)

    memory = opened(home)
    for _ in range(2):
        with pytest.raises(DocumentUnusable) as refused:
            await memory.load_global_memory(OWNER)
        assert str(path) in str(refused.value)
        assert not refused.value.temporary
    with pytest.raises(DocumentUnusable):
        await memory.save_global_memory(OWNER, "- another", base_version=1)
    path.rmdir() if what == "a folder" else path.unlink()
    kept.rename(path)
    assert await memory.load_global_memory(OWNER) == MemoryDocument("- a fact", 1)


async def test_a_disk_that_fails_is_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same door lets through what comes back by itself: an error of the disk is temporary."""

    def broken(_path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("agent_core.storage.durable_files.read", broken)
    with pytest.raises(StorageUnavailable):
        await opened(home).load_global_memory(OWNER)


async def test_a_folder_with_a_session_s_name_hides_no_other_session(home: Path) -> None:
    """One thing that cannot be read does not make the whole list unreadable."""
    sessions = opened(home).layout.sessions
    (sessions / "a=~b.jsonl").touch()
    (sessions / "a=~b.meta.json").mkdir()

    assert sorted(await opened(home).sessions()) == sorted([S, OTHER])
