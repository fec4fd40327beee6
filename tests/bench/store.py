"""
How fast the durable queue is: messages per second from acceptance to the committed answer, and latencies.

``python -m tests.bench.store`` prints one JSON object; `measure` returns it. 16 acceptors hand in messages
one by one, round robin over the sessions; the handler sleeps for a while and completes the turn with one
answer and two history lines. A second number has the answers sent as well. ``fsync_delay_s`` adds that much
to every fsync by a small library that is compiled and preloaded into a child process.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio

from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import Message
from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, NewOutbound, Pending, Queue
from gateway.system.clock import SystemClock
from gateway.turns.dispatcher import SessionDispatcher

ACCEPTORS = 16
_HOT = SessionKey("bench", "!hot:hs.test")
_ROOT = Path(__file__).resolve().parents[2]


async def measure(
    *, sessions: int = 200, messages: int = 20, handler_s: float = 0.01, fsync_delay_s: float = 0.0
) -> dict[str, Any]:
    """
    Run the load once and return what was measured.

    ``msg_s`` counts to the commit of the answer, ``msg_s_sent`` to the commit of its having been sent. The
    latencies are those under this load, where all acceptors always wait for one another; the ``quiet`` ones
    are those of one message every few milliseconds.
    ``skipped`` is set, and nothing measured, where fsync cannot be slowed down for lack of a C compiler.
    """
    if fsync_delay_s and "SQUIDBOT_FSYNC_DELAY_US" not in os.environ:
        return await _in_slow_child(
            sessions=sessions, messages=messages, handler_s=handler_s, fsync_delay_s=fsync_delay_s
        )
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        result = await _run(
            await _embedded(folder), sessions=sessions, messages=messages, handler_s=handler_s, send=False
        )
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        sent = await _run(
            await _embedded(folder), sessions=sessions, messages=messages, handler_s=handler_s, send=True
        )
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        quiet = await _run(
            await _embedded(folder),
            sessions=10,
            messages=20,
            handler_s=0.0,
            send=False,
            acceptors=1,
            pause_s=0.002,
        )
    return {
        **result,
        "quiet_accept_ms": quiet["accept_ms"],
        "quiet_dispatch_ms": quiet["dispatch_ms"],
        "msg_s_sent": sent["msg_s"],
        "order_violations": sum(run["order_violations"] for run in (result, sent, quiet)),
        "fsync_delay_s": fsync_delay_s,
    }


async def measure_server(
    url: str,
    *,
    sessions: int = 200,
    messages: int = 20,
    handler_s: float = 0.01,
    pause_s: float = 0.0,
    waiting: int = 0,
) -> dict[str, Any]:
    """
    Run the load once on a database of PostgreSQL that has its tables and nothing else.

    Args:
        url: Of the database.
        sessions, messages, handler_s: The load.
        pause_s: One acceptor, which pauses so long after each message; 0: 16 of them in a hurry.
        waiting: So many messages wait in one more session before the others begin; only the others count.
    """
    store = await PostgresQueue.open(url, clock=SystemClock())
    return await _run(
        store, sessions=sessions, messages=messages, handler_s=handler_s, send=False, pause_s=pause_s,
        acceptors=1 if pause_s else ACCEPTORS, waiting=waiting,
    )  # fmt: skip


async def _embedded(folder: str) -> SqliteQueue:
    return await SqliteQueue.open(Path(folder) / "gateway.db", clock=SystemClock())


async def _run(
    store: Queue,
    *,
    sessions: int,
    messages: int,
    handler_s: float,
    send: bool,
    acceptors: int = ACCEPTORS,
    pause_s: float = 0.0,
    waiting: int = 0,
) -> dict[str, Any]:
    load = _Load(store, handler_s, send=send, pause_s=pause_s)
    total = sessions * messages
    keys = [SessionKey("bench", f"!room{number}:hs.test") for number in range(sessions)]
    todo = iter([(key, number) for number in range(messages) for key in keys])
    async with load.store, anyio.create_task_group() as tasks:
        await load.fill(waiting)
        before_s, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        tasks.start_soon(load.dispatcher.run, load.work)
        async with anyio.create_task_group() as accepting:
            for _ in range(acceptors):
                accepting.start_soon(load.accept_all, todo)
        accepted_s = time.perf_counter() - before_s
        while load.done < total:
            await load.progress.wait()
            load.progress = anyio.Event()
        took_s = time.perf_counter() - before_s
        load.dispatcher.stop()
        load.stopped = True
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "messages": total,
        "msg_s": round(total / took_s),
        "accepted_s": round(total / accepted_s),
        "accept_ms": _percentiles(load.accept_s),
        "dispatch_ms": _percentiles(load.dispatch_s),
        "complete_ms": _percentiles(load.complete_s),
        "cpu_ms_per_message": round(
            (after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime) / total * 1000, 3
        ),
        "order_violations": load.violations(messages),
        "rss_mib": round(after.ru_maxrss / 1024, 1),
    }


class _Load:
    """The acceptors, the handler and what they see."""

    def __init__(self, store: Queue, handler_s: float, *, send: bool, pause_s: float) -> None:
        self.store = store
        self.dispatcher = SessionDispatcher(concurrency=1000)
        self.progress = anyio.Event()
        self.done = 0
        self.accept_s: list[float] = []
        self.dispatch_s: list[float] = []
        self.complete_s: list[float] = []
        self.stopped = False
        self._handler_s = handler_s
        self._send = send
        self._pause_s = pause_s
        self._accepted_at: dict[tuple[SessionKey, int], float] = {}
        self._freed_at: dict[SessionKey, float] = defaultdict(float)
        self._seen: dict[SessionKey, list[int]] = defaultdict(list)

    async def fill(self, count: int) -> None:
        """Have so many messages wait in one session."""
        for begin in range(0, count, 100):
            batch = [Pending(_message(_HOT, number)) for number in range(begin, min(begin + 100, count))]
            await self.store.inbox.accept("bench", "@bot:hs.test", batch, {"next_batch": f"h{begin}"})
        if count:
            self.dispatcher.wake(_HOT)

    async def accept_all(self, todo: Any) -> None:
        for key, number in todo:
            pending = [Pending(_message(key, number))]
            begun = time.perf_counter()
            await self.store.inbox.accept("bench", "@bot:hs.test", pending, {"next_batch": f"s{number}"})
            now = time.perf_counter()
            self.accept_s.append(now - begun)
            self._accepted_at[key, number] = now
            self.dispatcher.wake(key)
            if self._pause_s:
                await anyio.sleep(self._pause_s)

    async def work(self, key: SessionKey) -> None:
        while not self.stopped and (turn := await self.store.turns.claim(key)) is not None:
            number = int(turn.head.message.native_id.rpartition("#")[2])
            now = time.perf_counter()
            # A session's next turn can begin when it was accepted and the one before has ended.
            began = max(self._accepted_at.get((key, number), now), self._freed_at[key])
            if key != _HOT:
                self.dispatch_s.append(now - began)
            await anyio.sleep(self._handler_s)
            if key != _HOT:
                self._seen[key].append(number)
            rows = await self.store.turns.complete(
                turn,
                Completion(
                    outbound=[NewOutbound("bench", "@bot:hs.test", key, f"answer to {number}")],
                    history=[
                        Message(role="user", content=turn.head.message.text, id=f"{turn.id}.0", turn=turn.id),
                        Message(role="assistant", content="answer", id=f"{turn.id}.1", turn=turn.id),
                    ],
                ),
            )
            self._freed_at[key] = time.perf_counter()
            if key == _HOT:
                continue
            self.complete_s.append(self._freed_at[key] - began)
            if self._send:
                for row in rows:
                    await self.store.outbox.sending(row)
                    await self.store.outbox.uncertain(row)
                    await self.store.outbox.record_send(row, f"${row.id}")
            self.done += 1
            self.progress.set()

    def violations(self, messages: int) -> int:
        """Sessions whose messages were not handled exactly once and in order."""
        return sum(seen != list(range(messages)) for seen in self._seen.values())


def _message(key: SessionKey, number: int) -> InboundMessage:
    return InboundMessage(
        channel="bench",
        account="@bot:hs.test",
        native_id=f"{key}#{number}",
        session=key,
        sender=Sender(address="@alice:hs.test"),
        text=f"message {number} of an ordinary length, as people write them",
        received_at=datetime.now(UTC),
        context={"route": {"event": f"${number}"}},
    )


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        name: round(ordered[int(len(ordered) * share)] * 1000, 2)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


async def _in_slow_child(*, fsync_delay_s: float, **load: Any) -> dict[str, Any]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return {"skipped": "no C compiler, so fsync cannot be slowed down", "fsync_delay_s": fsync_delay_s}
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        library = Path(folder) / "slow_fsync.so"
        source = Path(__file__).with_name("slow_fsync.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        child = await anyio.run_process(
            [sys.executable, "-m", "tests.bench.store", json.dumps({**load, "fsync_delay_s": fsync_delay_s})],
            cwd=_ROOT,
            env={
                **os.environ,
                "LD_PRELOAD": str(library),
                "SQUIDBOT_FSYNC_DELAY_US": str(round(fsync_delay_s * 1_000_000)),
            },
        )
    result: dict[str, Any] = json.loads(child.stdout)
    return result


def main() -> None:
    """Print one measurement; the first argument is a JSON object of `measure`'s arguments."""
    arguments = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    run = measure_server if "url" in arguments else measure
    print(json.dumps(anyio.run(lambda: run(**arguments))))


if __name__ == "__main__":
    main()
