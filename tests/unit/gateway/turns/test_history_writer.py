"""From the journal to the files: nothing forgotten, nothing in the way of others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.errors import StorageUnavailable
from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import Message
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, Pending
from gateway.turns.history_writer import HistoryWriter
from tests.clock import EPOCH, ManualClock
from tests.doubles.in_memory_storage import InMemoryMemory

ANN, BOB = SessionKey("loopback", "dm-ann"), SessionKey("loopback", "dm-bob")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock()) as opened:
        yield opened


class Shelf(InMemoryMemory):
    """A memory in which some sessions cannot be written, and appending can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.appended = 0
        self.gate = anyio.Event()
        self.gate.set()
        self.entered = anyio.Event()

    async def append_message(self, session_id: str, *messages: Message, durable: bool = False) -> None:
        self.entered.set()
        await self.gate.wait()
        if session_id in self.broken:
            raise StorageUnavailable("a folder is in the way", path=session_id)
        self.appended += len(messages)
        await super().append_message(session_id, *messages)


async def answered(store: SqliteQueue, session: SessionKey, number: int) -> None:
    """A turn of ``session`` that is committed, with one line for its history."""
    said = InboundMessage(
        channel="loopback",
        account="bot",
        native_id=f"{session}-{number}",
        session=session,
        sender=Sender(address="ann", verified=True),
        text="x",
        received_at=EPOCH,
    )
    await store.inbox.accept("loopback", "bot", [Pending(said)], {})
    turn = await store.turns.claim(session)
    assert turn is not None
    line = Message(
        role="user",
        content=f"line {number}",
        id=f"{session}.{number}",
        timestamp=EPOCH + timedelta(seconds=number),
    )
    await store.turns.complete(turn, Completion(history=[line]))


async def lines_of(memory: InMemoryMemory, session: SessionKey) -> list[str]:
    tail = await memory.load_history(str(session))
    return [message.content for message in tail.messages]


async def test_what_is_committed_while_a_flush_runs_is_not_forgotten(store: SqliteQueue) -> None:
    """A turn ends just when the background writes the lines of the turn before: both get into the file."""
    memory = Shelf()
    history = HistoryWriter(store, memory)
    await answered(store, ANN, 1)
    history.note_lines(ANN)
    memory.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(history.flush, ANN)
        await memory.entered.wait()
        await answered(store, ANN, 2)
        history.note_lines(ANN)
        memory.gate.set()
    await history.flush(ANN)

    assert await lines_of(memory, ANN) == ["line 1", "line 2"]


async def test_a_quiet_session_gets_its_lines_too(store: SqliteQueue) -> None:
    """After its last turn nobody flushes a session but the background, which has to notice by itself."""
    memory = Shelf()
    history = HistoryWriter(store, memory)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(history.run)
        await answered(store, ANN, 1)
        history.note_lines(ANN)
        with anyio.fail_after(60):
            while (await store.maintenance.stats()).journal_lines:
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()

    assert await lines_of(memory, ANN) == ["line 1"]


async def test_one_broken_session_keeps_only_itself_waiting(store: SqliteQueue) -> None:
    """A file that cannot be written stops neither the start nor the other sessions."""
    memory = Shelf()
    memory.broken.add(str(ANN))
    await answered(store, ANN, 1)
    await answered(store, BOB, 2)
    history = HistoryWriter(store, memory)

    await history.recover()
    with pytest.raises(StorageUnavailable):
        await history.sync()
    with pytest.raises(StorageUnavailable):
        await history.flush(ANN)  # its next prompt must not be built without the line

    assert await lines_of(memory, BOB) == ["line 2"]
    assert [line.session for line in await store.journal.lines()] == [ANN]

    memory.broken.clear()
    await history.sync()
    assert await lines_of(memory, ANN) == ["line 1"]
    assert (await store.maintenance.stats()).journal_lines == 0


async def test_lines_that_wait_for_the_disk_are_not_appended_again(store: SqliteQueue) -> None:
    """While nothing can be made durable the journal grows; each line is handed to the memory once."""

    class Unsyncable(Shelf):
        refusing = True

        async def append_message(self, session_id: str, *messages: Message, durable: bool = False) -> None:
            await super().append_message(session_id, *messages)
            if durable:
                await self.sync_history(session_id)

        async def sync_history(self, session_id: str) -> None:
            if self.refusing:
                raise StorageUnavailable("no", path=session_id)

    memory = Unsyncable()
    history = HistoryWriter(store, memory)
    for number in range(4):
        await answered(store, ANN, number)
        history.note_lines(ANN)
        with pytest.raises(StorageUnavailable):
            await history.sync()

    # The first one twice, because of a durable append that fails nobody knows how far it got.
    assert memory.appended == 5
    assert (await store.maintenance.stats()).journal_lines == 4
    memory.refusing = False
    await history.sync()
    assert memory.appended == 5
    assert await lines_of(memory, ANN) == [f"line {number}" for number in range(4)]
    assert (await store.maintenance.stats()).journal_lines == 0


async def test_recovering_twice_changes_nothing(store: SqliteQueue) -> None:
    """A crash between appending and clearing: the ids tell that the lines are there."""
    memory = InMemoryMemory()
    await answered(store, ANN, 1)
    for _ in range(2):
        history: Any = HistoryWriter(store, memory)
        assert await history.recover() == 1
    await history.sync()

    assert await lines_of(memory, ANN) == ["line 1"]
    assert (await store.maintenance.stats()).journal_lines == 0
