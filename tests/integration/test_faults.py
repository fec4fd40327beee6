"""
The whole gateway when something is wrong with the disk or with the files on it.

What cannot be kept is not acknowledged, and what was accepted is answered once, as soon as it can be.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from agent_core.llm.demo.demo_model import EchoModel
from agent_core.messages import SessionKey
from agent_core.models import Message, ModelChunk, ToolDefinition
from agent_core.storage import JsonlMemory
from channels.base import LinkState
from gateway.app import Overrides, build
from gateway.errors import StateUnusable
from gateway.operations import render
from gateway.settings import Settings
from gateway.store.stores import StoreCorrupt
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.home_damage import fill
from tests.integration.gateway_world import Scenario, world
from tests.kill.oracle import problems
from tests.kill.scenario import Nursery
from tests.kill.scenario import Scenario as DyingWorld

ANN = SessionKey("loopback", "dm-ann")


# ── the disk ──


async def shown(there: Scenario) -> str:
    """What ``squidbot status`` prints."""
    return render.status({"running": True, **await there.built.status.read()})


async def stays_alive_without_acknowledging(there: Scenario, *, said: int) -> None:
    """For a while: nothing new is acknowledged, the gateway runs, its link is up."""
    for _ in range(20):
        await anyio.sleep(0.1)
        assert there.server.acknowledged == said
        assert not there.ended.is_set()
    assert there.built.supervisor.status("loopback").state is LinkState.UP


async def test_a_full_disk_means_not_accepted(small_disk: Path) -> None:
    """Nothing is acknowledged while there is no room; when there is, everybody is answered once, in order."""
    async with world(small_disk / "home") as there:
        await there.asked("hello")
        assert "NOTHING CAN BE WRITTEN" not in await shown(there)
        ballast = fill(small_disk)
        for number in range(3):
            there.server.say("ann", f"full {number}")
            there.server.say("bob", f"full {number}")
        await stays_alive_without_acknowledging(there, said=1)
        assert len(there.server.seen()) == 1
        assert "NOTHING CAN BE WRITTEN: is the disk full?" in await shown(there)

        ballast.unlink()
        await there.server.answers(7, within_s=60)
        assert "NOTHING CAN BE WRITTEN" not in await shown(there)

        for person in ("ann", "bob"):
            texts = [each.text for each in there.server.seen(f"dm-{person}")][-3:]
            assert [f"full {number}" in text for number, text in enumerate(texts)] == [True] * 3


def test_a_disk_that_reports_errors_means_not_accepted(tmp_path: Path) -> None:
    """The same where the system refuses to let any file grow: SQLite calls that an I/O error, not a full disk."""
    with Nursery() as nursery:
        there = DyingWorld(tmp_path, nursery, no_file_beyond=16 * 1024, max_attempts=1)
        for _ in range(2):
            there.say("ann", "effect fact")
            there.say("bob", "fact")
        there.live_until_quiet()

        assert problems(there.evidence()) == []
    assert (tmp_path / "acknowledged-when-full").read_text() == "0"


def test_a_read_only_home_is_refused_at_the_start(small_disk: Path) -> None:
    """The sentence names the folder and what to do."""
    (small_disk / "home").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    with pytest.raises(StateUnusable, match="read-only file system") as refused:
        open_home(small_disk / "home")
    assert str(small_disk / "home") in str(refused.value)


async def test_a_disk_that_fills_during_a_turn_costs_nothing(small_disk: Path) -> None:
    """The model has answered, and the answer cannot be committed: it is kept in hand until it can."""

    class Filling(EchoModel):
        async def chat(
            self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
        ) -> AsyncIterator[ModelChunk]:
            fill(small_disk)
            return await super().chat(messages, tools, stream=stream)

    async with world(small_disk / "home", models={"demo": Filling()}) as there:
        there.server.say("ann", "one")
        await anyio.sleep(2)
        assert there.server.seen() == []
        assert await there.inbox() == {"running": 1}

        (small_disk / "ballast").unlink()
        await there.server.answers(1, within_s=60)


# ── its own files ──


async def test_a_damaged_database_is_told_and_left_alone(tmp_path: Path) -> None:
    """Nothing starts, the error names the file, and the file is as it was."""
    home = open_home(tmp_path)
    home.database.write_bytes(b"this is no database at all, " * 200)
    before = home.database.read_bytes()

    with pytest.raises(StoreCorrupt, match=r"gateway\.db"):
        await build(Settings(), home, Overrides(channels={}))

    assert home.database.read_bytes() == before


async def test_damaged_files_of_a_conversation_do_not_stop_it(tmp_path: Path) -> None:
    """A torn line and a meta file full of rubbish: it goes on, the torn line stays, the rubbish is kept aside."""
    async with world(tmp_path) as there:
        await there.asked("first")
        server = there.server
    layout = JsonlMemory(tmp_path, clock=SystemClock()).layout
    history, record = layout.history(ANN), layout.record(ANN)
    with history.open("ab") as file:
        file.write(b'{"id":"torn","role":"us')
    record.write_bytes(b"\0\xffrubbish")

    async with world(tmp_path, server=server) as there:
        assert "second" in (await there.asked("second")).text

    lines = history.read_bytes().splitlines()
    texts = [json.loads(line)["content"] for line in lines if line.endswith(b"}")]
    assert [text for text in texts if text in ("first", "second")] == ["first", "second"]
    assert lines[2] == b'{"id":"torn","role":"us'
    assert list(record.parent.glob("*.bad-*"))


async def test_a_history_that_cannot_be_written_stops_only_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails under one file: ann waits and is answered when it is whole again; bob never notices."""
    home = open_home(tmp_path)
    broken = JsonlMemory(home.root, clock=SystemClock()).layout.history(ANN)
    opened = os.open

    def failing(path, *more, **named) -> int:
        if path == broken:
            raise OSError(errno.EIO, "the disk fails", str(path))
        return opened(path, *more, **named)

    monkeypatch.setattr(os, "open", failing)
    async with world(tmp_path) as there:
        there.server.say("ann", "one")
        there.server.say("ann", "two")
        await there.asked("how are you", person="bob")
        assert there.server.seen("dm-ann") == []

        monkeypatch.setattr(os, "open", opened)
        await there.server.answers(2, conversation="dm-ann", within_s=60)
