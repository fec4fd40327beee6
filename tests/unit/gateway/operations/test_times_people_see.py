"""Times that people see are those of the configured zone, in the chat and at the command line of a running daemon."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import anyio.to_thread
import pytest

from agent_core.models import Message
from agent_core.provenance import describe, untrusted_origin
from gateway.operations.control.control_client import ControlClient
from gateway.operations.control.control_server import serve_control
from gateway.system.home import open_home
from gateway.turns.commands.conversation_commands import _when

NOON = datetime(2026, 1, 3, 12, 0, tzinfo=UTC)


@pytest.fixture(params=[("Europe/Berlin", "13:00 CET"), ("UTC", "12:00 UTC")], ids=["Berlin", "UTC"])
def zone(request, monkeypatch):
    """A zone as the settings name it, and noon in London there."""
    name, noon = request.param
    monkeypatch.setenv("TZ", name)
    time.tzset()
    yield name, noon
    monkeypatch.undo()
    time.tzset()


def test_in_an_approval_and_a_search(zone):
    """With the name of the zone."""
    _, noon = zone
    assert noon in describe([untrusted_origin("web", "https://example.org", NOON)])
    assert noon in _when(Message(role="user", content="x", timestamp=NOON))


async def test_the_daemon_says_its_zone(zone, tmp_path):
    """A command of another process shows times as the daemon does, whatever zone its shell has."""

    class Operations:
        async def call(self, name, arguments):
            return {}

    home = open_home(tmp_path / "h")
    async with serve_control(home, Operations()):
        client = ControlClient(home)
        await anyio.to_thread.run_sync(client.call, "status")
    assert client.timezone == zone[0] == os.environ["TZ"]
