"""
The daemon and its commands in a home of 200,000 messages in 2,000 conversations, beside one of a few messages.

``python -m tests.bench.large [MESSAGES] [--postgres]`` prints for both homes the seconds from start to ready, the
processor's time of that, the memory of the daemon at rest, and for each command the milliseconds by the clock and
the milliseconds that the command and the daemon have used a processor. A tenth of the messages are rows of the queue.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import timedelta

import anyio
import structlog
import yaml

from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.storage import JsonlMemory
from gateway.store.postgres.histories.database_memory import PostgresMemory
from gateway.store.postgres.postgres_queue import HOME, PostgresQueue
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, Pending
from gateway.system.clock import SystemClock
from tests.bench.memory import _message
from tests.bench.rig import ROOT, Daemon, Rig, child_environment
from tests.bench.table import median
from tests.postgres_server import PostgresServer

_CONVERSATIONS = 2_000
_TIMES = 7
_SETTLE_S = 10.0
_COMMANDS = {
    "status": ("status",),
    "inbox list": ("inbox", "list"),
    "search": ("sessions", "search", "word3 word40 word900"),
    "sessions list": ("sessions", "list", "--limit", "20"),
    "people": ("person", "list"),
    "cost": ("usage",),
}


async def _fill(daemon: Daemon, messages: int, url: str) -> None:
    """Half of the messages in one conversation, the rest in all others; settled rows for a tenth."""
    clock, said = SystemClock(), [_message(number) for number in range(1000)]
    conversations = min(_CONVERSATIONS, messages)
    queue = (
        await PostgresQueue.open(url, clock=clock)
        if url
        else await SqliteQueue.open(daemon.home / "gateway.db", clock=clock)
    )
    async with queue as store:
        memory = PostgresMemory(queue.database, HOME) if url else JsonlMemory(daemon.home, clock=clock)
        for number in range(conversations):
            key = SessionKey("email", f"thread-{number}")
            count = messages // 2 if number == 0 else max(1, messages // 2 // conversations)
            for start in range(0, count, 500):
                lines = [
                    said[each % 1000].model_copy(
                        update={
                            "id": f"{each}",
                            "timestamp": clock.now() - timedelta(seconds=(count - each) * 60),
                        }
                    )
                    for each in range(start, min(start + 500, count))
                ]
                await memory.append_message(str(key), *lines)
        for number in range(messages // 10):
            key = SessionKey("email", f"thread-{number % conversations}")
            told = InboundMessage(
                channel="email",
                account="bot",
                native_id=f"m{number}",
                session=key,
                sender=Sender(address=f"p{number % 300}@example.org", verified=True),
                text="words of a message",
                received_at=clock.now(),
            )
            await store.inbox.accept("email", "bot", [Pending(told)], {})
            turn = await store.turns.claim(key)
            assert turn is not None
            await store.turns.complete(turn, Completion())


def _measure(daemon: Daemon, python: str) -> dict[str, tuple[float, ...]]:
    daemon.start()  # with the first index, where there is one to make
    _settle(daemon)
    daemon.stop()
    starts = []
    for _ in range(3):
        took_s = daemon.start()
        starts.append((took_s, daemon.cpu_s))
        if len(starts) < 3:
            daemon.stop()
    _settle(daemon)
    found = {
        "ready, s": (median([each for each, _ in starts]), median([each for _, each in starts])),
        "memory, MB": (daemon.rss_mb,),
    }
    for name, words in _COMMANDS.items():
        took = [_called(daemon, python, words) for _ in range(_TIMES)]
        found[f"{name}, ms"] = tuple(median([each[part] for each in took]) for part in range(3))
    daemon.stop()
    return found


def _settle(daemon: Daemon) -> None:
    """Wait until the daemon has been at rest for a while: what a start does afterwards begins after seconds."""
    used = -1.0
    while daemon.cpu_s - used > 0.05:
        used = daemon.cpu_s
        time.sleep(_SETTLE_S)


def _called(daemon: Daemon, python: str, words: tuple[str, ...]) -> tuple[float, float, float]:
    begun, used = time.perf_counter(), daemon.cpu_s
    command = [python, "-m", "gateway", *words, "--home", str(daemon.home)]
    child = subprocess.Popen(command, cwd=ROOT, env=child_environment(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = status
    assert status == 0, words
    took = 1000 * (time.perf_counter() - begun)
    return took, 1000 * (usage.ru_utime + usage.ru_stime), 1000 * (daemon.cpu_s - used)


def main() -> None:
    """Measure a small and a large home and print them side by side."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.large", description=__doc__.split("\n\n")[0])
    parser.add_argument("messages", type=int, nargs="?", default=200_000)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    found = []
    with ExitStack() as stack:
        rig = stack.enter_context(Rig(quick=False, say=print))
        server = stack.enter_context(PostgresServer.start(fsync=True)) if options.postgres else None
        for count in (10, options.messages):
            daemon, url = rig.daemon(chat=False), server.with_tables() if server else ""
            # The Python of the other benchmarks has no extras.
            daemon.python = python = sys.executable if server else rig.python
            if url:
                config = daemon.home / "squidbot.yaml"
                settings = yaml.safe_load(config.read_text())
                settings["gateway"]["store"] = url
                config.write_text(yaml.safe_dump(settings))
            anyio.run(_fill, daemon, count, url)
            found.append(_measure(daemon, python))
    for name, small in found[0].items():
        columns = (" ".join(f"{each:9.2f}" for each in part) for part in (small, found[1][name]))
        print(f"{name:20}" + " | ".join(f"{column:32}" for column in columns))


if __name__ == "__main__":
    main()
