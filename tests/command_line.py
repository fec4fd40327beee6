"""The command line as a real process, a daemon beside it, and a home with something to show."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage.jsonl_memory import JsonlMemory
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import NewOutbound, Pending
from gateway.system.clock import SystemClock
from gateway.system.home import Home, open_home
from tests.clock import EPOCH
from tests.command_fork import run_command

ROOM = SessionKey("terminal", "main")

CONFIG = "owner: {aliases: ['@a:hs.test']}\nagents: {heartbeat: {enabled: false}}\n"


def squidbot(home, *arguments, stdin="", environ=None):
    """Run a command on ``home``; ``stdin`` is what it reads, as a text or a file."""
    env = {**os.environ, "SQUIDBOT_HOME": str(home), **(environ or {})}
    return run_command(*arguments, env=env, stdin=stdin)


def answer(home, *arguments):
    done = squidbot(home, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def free_port():
    with socket.socket() as probe:
        for port in range(20000 + os.getpid() % 10000, 32768):
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no free port")


@contextmanager
def daemon(home, port=None, *, until_up=True):
    """A real daemon on ``home``, as a service manager begins one: without a terminal."""
    port = port or free_port()
    (home / "squidbot.yaml").write_text(f"{CONFIG}gateway: {{http: {{listen: '127.0.0.1:{port}'}}}}\n")
    with (
        open(home / "out.txt", "w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "gateway", "run", "--home", str(home)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            control = Home(home).control_socket
            give_up_at = time.monotonic() + 120
            while until_up and not control.exists():
                assert process.poll() is None, (home / "out.txt").read_text()
                assert time.monotonic() < give_up_at
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
            process.wait()


async def fill(root):
    """A dead message, a waiting one, a history, two versions of a memory."""
    home = open_home(root)
    store = await SqliteQueue.open(home.database, clock=SystemClock())

    def pending(number, text):
        return Pending(
            InboundMessage(
                channel="terminal", account="local", native_id=str(number), session=ROOM,
                sender=Sender(address="local", verified=True), text=text, received_at=EPOCH,
            )
        )  # fmt: skip

    await store.inbox.accept("terminal", "local", [pending(1, "first \x1b[31mred")], {})
    await store.turns.dead_letter(
        await store.turns.claim(ROOM), "the model refused", [NewOutbound("terminal", "local", ROOM, "sorry")]
    )
    memory = JsonlMemory(root, clock=SystemClock())
    await memory.append_message(
        str(ROOM),
        *[Message(role="user", content=f"text {n} \ud800", id=f"m{n}", timestamp=EPOCH) for n in range(450)],
    )
    await memory.sync_history(str(ROOM))
    for text in ("likes tea\nlives here", "likes coffee\nlives here"):
        await memory.save_global_memory(MemoryScope(ScopeKind.OWNER), text, session_id=str(ROOM))
    await store.aclose()
