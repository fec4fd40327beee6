"""Histories: what a turn waits for when its conversation is very long, and how quickly something is found in it."""

from __future__ import annotations

import gc
import os
import random
import resource
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import anyio

from agent_core.memory.manager import MemoryManager
from agent_core.memory_ports import SearchRequest
from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage import JsonlMemory
from agent_core.storage.history_lines import to_line
from agent_core.storage.search_index import SearchIndex
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, Pending
from gateway.turns.history_writer import HistoryWriter
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal, median, share
from tests.clock import EPOCH, ManualClock

S = "bench/conversation"
OWNER = MemoryScope(ScopeKind.OWNER)
_WARM = 50  # turns that are not counted
_CHANCE = random.Random(5)
_VOCABULARY = [f"word{number}" for number in range(5000)]


def measure(rig: Rig) -> list[Figure]:
    """A conversation of a million messages, an index of fifty thousand."""
    count = 50_000 if rig.quick else 1_000_000
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        rig.say(f"writing a conversation of {count:,} messages")
        figures = anyio.run(_context, Path(folder), count)
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        figures += anyio.run(_appending, Path(folder), 100 if rig.quick else 400)
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        rig.say("indexing 50,000 messages")
        figures += anyio.run(_search, Path(folder), 50_000)
    return figures


def _message(number: int) -> Message:
    """Frequencies of words as in a language: few that are everywhere, many that are rare."""
    words = [_VOCABULARY[int(len(_VOCABULARY) ** _CHANCE.random()) - 1] for _ in range(40)]
    return Message(
        role="user" if number % 2 == 0 else "assistant",
        content=" ".join(words),
        id=f"{number // 2}.{number % 2}",
        turn=str(number // 2),
        timestamp=EPOCH + timedelta(seconds=number),
        scope="owner",
    )


def _write(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pattern = [_message(number) for number in range(1000)]
    with path.open("wb") as file:
        for number in range(count):
            file.write(to_line(pattern[number % 1000].model_copy(update={"id": str(number)}), number))


def _on_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


async def _context(home: Path, count: int) -> list[Figure]:
    memory = JsonlMemory(home, clock=ManualClock())
    path = memory.layout.history(SessionKey.parse(S))
    _write(path, count)
    _on_disk(path)  # what the kernel still has to write of it is no part of what is measured
    gc.collect()
    gc.freeze()  # as the daemon does
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cold: list[float] = []
    for _ in range(100):
        manager = MemoryManager(JsonlMemory(home, clock=ManualClock()))
        begun = time.perf_counter()
        await manager.build_messages(S, "sys", "question")
        cold.append((time.perf_counter() - begun) * 1000)
    manager = MemoryManager(memory)
    warm: list[float] = []
    for _ in range(50):
        begun = time.perf_counter()
        await manager.build_messages(S, "sys", "question")
        warm.append((time.perf_counter() - begun) * 1000)
    grown_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
    return [
        Figure(f"prompt from {count:,} messages, new process, p95", share(cold, 0.95), "ms", Goal("<", 20)),
        Figure("the same once it is open, p95", share(warm, 0.95), "ms"),
        Figure("memory that it takes", grown_mb, "MB", Goal("<", 16)),
    ]


async def _appending(home: Path, count: int) -> list[Figure]:
    """
    The two lines of a turn, as the history writer files them, taking turns with the bare minimum.

    Both write the same bytes to files of their own and wait for the same disk; one after the other, so that
    whatever else the machine does meets both. The last figure is all that the writer does for a turn.
    """
    memory = JsonlMemory(home, clock=ManualClock())
    handle = os.open(home / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ours: list[float] = []
    bare: list[float] = []
    for number in range(0, 2 * (count + _WARM), 2):
        turn = [_message(number), _message(number + 1)]
        lines = b"".join(to_line(message, number + n) for n, message in enumerate(turn))
        for mine in (True, False) if number % 4 else (False, True):  # neither always comes first
            begun = time.perf_counter()
            if mine:
                await memory.append_message(S, *turn, durable=True)
            else:
                os.write(handle, lines)
                os.fdatasync(handle)
            (ours if mine else bare).append((time.perf_counter() - begun) * 1000)
    os.close(handle)
    ours, bare = ours[_WARM:], bare[_WARM:]
    whole = await _filing(home, count)
    floor_is = "write and fdatasync in one thread, in turns with ours"
    ratio = median(ours) / median(bare)
    return [
        Figure("append a turn and make it durable, p50", median(ours), "ms", None, median(bare), floor_is),
        Figure("the same, p95", share(ours, 0.95), "ms", None, share(bare, 0.95), floor_is),
        Figure("ratio of the two at p50", ratio, "", Goal("<", 2)),
        Figure("with the journal read and cleared, p50", median(whole), "ms", note="all of a turn's filing"),
    ]


async def _filing(home: Path, count: int) -> list[float]:
    """What the history writer takes for a turn, its journal in the store included."""
    session = SessionKey.parse(S)
    memory = JsonlMemory(home / "filing", clock=ManualClock())
    took: list[float] = []
    async with await SqliteQueue.open(home / "gateway.db", clock=ManualClock()) as store:
        writer = HistoryWriter(store, memory)
        for number in range(0, 2 * count, 2):
            said = InboundMessage(
                channel="bench",
                account="bot",
                native_id=str(number),
                session=session,
                sender=Sender(address="ann", verified=True),
                text="x",
                received_at=EPOCH,
            )
            await store.inbox.accept("bench", "bot", [Pending(said)], {})
            turn = await store.turns.claim(session)
            assert turn is not None
            await store.turns.complete(turn, Completion(history=[_message(number), _message(number + 1)]))
            writer.note_lines(session)
            begun = time.perf_counter()
            await writer.settle(session)
            took.append((time.perf_counter() - begun) * 1000)
    return took


async def _search(home: Path, count: int) -> list[Figure]:
    memory = JsonlMemory(home, clock=ManualClock())
    _write(memory.layout.history(SessionKey.parse(S)), count)
    index = SearchIndex(home / "search.db", memory.layout)
    begun = time.perf_counter()
    await index.update_all()
    built_s = time.perf_counter() - begun
    took: list[float] = []
    for number in range(200):
        query = " ".join(_CHANCE.sample(_VOCABULARY[: 50 if number % 2 else 5000], 1 + number % 3))
        begun = time.perf_counter()
        await index.search(SearchRequest(OWNER, query))
        took.append((time.perf_counter() - begun) * 1000)
    await index.aclose()
    size = (home / "search.db").stat().st_size / 1e6
    return [
        Figure(f"search in {count:,} messages, p95", share(took, 0.95), "ms", Goal("<", 50)),
        Figure("making that index", built_s, "s", note=f"{size:.0f} MB"),
    ]
