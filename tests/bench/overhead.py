"""
What the gateway adds to a turn: from the accepted message to the committed answer, with a model that takes no
time, for sessions of different lengths.

``python -m tests.bench.overhead`` prints one JSON object; `measure` runs that as a process of its own. The
whole gateway runs as in the daemon, on the loopback channel. The sessions take turns, one question at a time,
so that whatever else happens on the machine meets all of them alike; between the questions the floor does what
no durable turn can do without: append to a file, fdatasync, commit to SQLite.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.provenance import person
from agent_core.storage.history_lines import encode_object, to_line
from agent_core.storage.layout import Layout
from agent_core.storage.search_index.search_index import SearchIndex
from gateway.app import Overrides, build
from gateway.observability.logs import configure_logs
from gateway.settings import Settings
from gateway.store.stores import Queue
from gateway.system.home import open_home
from tests.bench.rig import Rig, in_child
from tests.bench.table import Figure, Goal, median, share
from tests.doubles.loopback import LoopbackChannel, LoopbackServer

_KEPT = 20
"""What a session has after its cursor at first: the tail that consolidation leaves by default."""
_SESSIONS = {"10": 10, "10,000": 10_000, "200,000": 200_000, "200,000 unconsolidated": 200_000}
_WARM_UP = 5


def measure(rig: Rig) -> list[Figure]:
    """The figures of one run in a clean process."""
    turns = 30 if rig.quick else 200
    rig.say(f"{turns} turns in each of {len(_SESSIONS)} sessions")
    found = in_child("tests.bench.overhead", json.dumps({"turns": turns}))
    floor = found["floor"]
    figures = []
    for name, goals in (
        ("10", True),
        ("10,000", True),
        ("200,000", True),
        ("200,000 unconsolidated", False),
    ):
        for part, label, limit in ((0.5, "p50", 10.0), (0.95, "p95", 25.0)):
            figures.append(
                Figure(
                    f"history of {name} messages: {label}",
                    share(found["turn"][name], part),
                    "ms",
                    Goal("<", limit),
                    floor=share(floor, part),
                    floor_is="append + fdatasync + SQLite commit" if name == "10" else "",
                    note="" if goals else "the prompt is as long as the model can read",
                )
            )
    worst = 0.0
    for name in ("10,000", "200,000"):
        pairs = zip(found["turn"][name], found["turn"]["10"], strict=True)
        worst = max(worst, abs(median([long / short for long, short in pairs]) - 1) * 100)
    figures.append(
        Figure(
            "long histories, difference from 10 messages", worst, "%", Goal("<", 10), note="median of pairs"
        )
    )
    figures.append(Figure("accepting one message: p50", share(found["accept"], 0.5), "ms"))
    figures.append(Figure("from a message to its answer: p50", share(found["whole"], 0.5), "ms"))
    figures.append(Figure("processor time of a turn", found["cpu_ms"], "ms"))
    return figures


async def run(turns: int) -> dict[str, Any]:
    """Milliseconds by session, of accepting, of the whole way, and of the floor."""
    configure_logs("error")
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        return await _run(Path(folder), turns)


async def _run(folder: Path, turns: int) -> dict[str, Any]:
    home = open_home(folder / "home")
    settings = Settings.model_validate(
        {"llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}}}
    )
    layout = Layout(home.root, home.path(settings.agents.workspace))
    for name, length in _SESSIONS.items():
        key = SessionKey("loopback", name)
        _prepare(layout, key, length, consolidated=length if name.endswith("consolidated") is False else 0)
    index = SearchIndex(home.root / "search.db", layout)
    await index.update_all()  # as a home has it that grew by one message after the other
    await index.aclose()
    server = LoopbackServer()
    watches: list[_StopWatch] = []

    def watched(queue: Queue) -> Queue:
        watches.append(_StopWatch(queue))
        return queue

    overrides = Overrides(
        channels={"loopback": (LoopbackChannel(server), "merge")},
        allow_from={"loopback": ("alice",)},
        wrap_queue=watched,
    )
    built = await build(settings, home, overrides)
    floor = Floor(folder)
    turn: dict[str, list[float]] = defaultdict(list)
    accept: list[float] = []
    whole: list[float] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        while not built.supervisor.all_up:
            await anyio.sleep(0.01)
        gc.collect()
        gc.freeze()  # as the daemon does
        cpu = time.process_time()
        for number, name in itertools.product(range(_WARM_UP + turns), _SESSIONS):
            if number == _WARM_UP and name == next(iter(_SESSIONS)):
                cpu, floor_cpu = time.process_time(), floor.cpu_s
            floor.once()
            begun = time.perf_counter()
            answers = len(server.delivered) + 1
            server.say(
                "alice", f"question {number} of an ordinary length, as people write", conversation=name
            )
            await server.answers(answers)
            ended = time.perf_counter()
            if number >= _WARM_UP:
                watch = watches[0]
                turn[name].append((watch.answered - watch.accepted) * 1000)
                accept.append((watch.accepted - watch.handed) * 1000)
                whole.append((ended - begun) * 1000)
        cpu_ms = (time.process_time() - cpu - (floor.cpu_s - floor_cpu)) * 1000 / len(whole)
        built.stop()
    return {
        "turn": turn,
        "accept": accept,
        "whole": whole,
        "floor": floor.took_ms[_WARM_UP:],
        "cpu_ms": cpu_ms,
    }


class _StopWatch:
    """Notes when a message was handed over, accepted and answered."""

    def __init__(self, queue: Queue) -> None:
        self.handed = self.accepted = self.answered = 0.0
        accept, complete = queue.inbox.accept, queue.turns.complete

        async def timed_accept(*arguments: Any, **named: Any) -> Any:
            self.handed = time.perf_counter()
            rows = await accept(*arguments, **named)
            self.accepted = time.perf_counter()
            return rows

        async def timed_complete(*arguments: Any, **named: Any) -> Any:
            rows = await complete(*arguments, **named)
            self.answered = time.perf_counter()
            return rows

        queue.inbox.accept = timed_accept  # type: ignore[method-assign]
        queue.turns.complete = timed_complete  # type: ignore[method-assign]


class Floor:
    """The least that makes a turn durable, without any gateway."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "floor.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._db = sqlite3.connect(folder / "floor.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, payload TEXT)")
        self.took_ms: list[float] = []
        self.cpu_s = 0.0

    def once(self) -> None:
        begun, cpu = time.perf_counter(), time.process_time()
        os.write(self._file, b'{"role":"assistant","content":"an answer of an ordinary length"}\n')
        os.fdatasync(self._file)
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT INTO outbox (payload) VALUES ('an answer of an ordinary length')")
        self._db.execute("COMMIT")
        self.took_ms.append((time.perf_counter() - begun) * 1000)
        self.cpu_s += time.process_time() - cpu


def _prepare(layout: Layout, key: SessionKey, length: int, *, consolidated: int) -> None:
    """Write a history as the gateway would have, and the cursor so that a short tail is not consolidated."""
    path = layout.history(key)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    cursor, offset = max(0, consolidated - _KEPT), 0
    with path.open("wb") as file:
        for number in range(length):
            if number == cursor:
                offset = file.tell()
            role = "assistant" if number % 2 else "user"
            message = Message(
                role=role,
                content=f"line {number}: " + "what people say and what is answered to them. " * 3,
                id=f"t{number // 2}.{number % 2}",
                turn=f"t{number // 2}",
                timestamp=begin + timedelta(seconds=number),
                origins=(person("alice", begin + timedelta(seconds=number)),),
                sender=None if number % 2 else "alice",
            )
            file.write(to_line(message, number))
    record = {
        "version": 1,
        "session": str(key),
        "last_consolidated": cursor,
        "offset": offset,
        "message_id": f"t{cursor // 2}.{cursor % 2}" if cursor else None,
        "summary": "They have talked about many things before. " * 10,
    }
    layout.record(key).write_bytes(encode_object(record))


def main() -> None:
    """Print one measurement; the first argument is a JSON object with ``turns``."""
    arguments = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {"turns": 100}
    print(json.dumps(anyio.run(run, arguments["turns"])))


if __name__ == "__main__":
    main()
