"""
Without a daemon a command reads the files itself. A torn line in a history was reported where everything is
printed: in the middle of `squidbot sessions show --json`, which no program could read any more.
"""

from __future__ import annotations

import json
from pathlib import Path

import anyio

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage import JsonlMemory
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.home import open_home
from tests.clock import ManualClock
from tests.command_line import squidbot

KEY = SessionKey("terminal", "main")


async def _filled(root: Path) -> None:
    home = open_home(root)
    async with await SqliteQueue.open(home.database, clock=ManualClock()):
        pass
    memory = JsonlMemory(root, clock=ManualClock())
    await memory.append_message(str(KEY), Message(role="user", content="before", id="1"))
    with memory.layout.history(KEY).open("ab") as file:
        file.write(b'{"role":"user","cont')
    await memory.append_message(str(KEY), Message(role="user", content="after", id="2"))


def test_an_answer_for_programs_is_nothing_but_the_answer(tmp_path: Path) -> None:
    """The warning is there, on the other stream."""
    anyio.run(_filled, tmp_path)
    done = squidbot(tmp_path, "sessions", "show", str(KEY), "--json", environ={"SQUIDBOT_LOG": "warning"})
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert [message["content"] for message in answer["newest"]] == ["before", "after"]
    assert "history.line_skipped" in done.stderr
