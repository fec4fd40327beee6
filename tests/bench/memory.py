"""Histories: what a turn waits for when its conversation is very long, and how quickly something is found in it."""

from __future__ import annotations

import os
import random
import resource
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import anyio

from agent_core.memory import MemoryManager
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage import JsonlMemory
from agent_core.storage.lines import to_line
from agent_core.storage.search_index import SearchIndex
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal, median, share
from tests.clock import EPOCH, ManualClock

__all__ = ["measure"]

S = "bench/conversation"
OWNER = MemoryScope(ScopeKind.OWNER)
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


async def _context(home: Path, count: int) -> list[Figure]:
    memory = JsonlMemory(home, clock=ManualClock())
    _write(memory.layout.history(SessionKey.parse(S)), count)
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cold: list[float] = []
    for _ in range(20):
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
    memory = JsonlMemory(home, clock=ManualClock())
    ours: list[float] = []
    for number in range(count):
        message = _message(number)
        begun = time.perf_counter()
        await memory.append_message(S, message)
        await memory.sync_history(S)
        ours.append((time.perf_counter() - begun) * 1000)
    handle = os.open(home / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    bare: list[float] = []
    for number in range(count):
        line = to_line(_message(number), number)
        begun = time.perf_counter()
        os.write(handle, line)
        os.fdatasync(handle)
        bare.append((time.perf_counter() - begun) * 1000)
    os.close(handle)
    floor = median(bare)
    return [
        Figure(
            "append and make durable",
            median(ours),
            "ms",
            floor=floor,
            floor_is="write and fdatasync in one thread",
        ),
    ]


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
        await index.search(OWNER, query)
        took.append((time.perf_counter() - begun) * 1000)
    await index.aclose()
    size = (home / "search.db").stat().st_size / 1e6
    return [
        Figure(f"search in {count:,} messages, p95", share(took, 0.95), "ms", Goal("<", 50)),
        Figure("making that index", built_s, "s", note=f"{size:.0f} MB"),
    ]
