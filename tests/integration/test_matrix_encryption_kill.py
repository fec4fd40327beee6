"""
The real daemon, killed while encrypted messages come and go.

The oracle is the person's own client: every message has exactly one answer, in order, and every answer can be read.
"""

from __future__ import annotations

import random
import time

import pytest

from tests.daemon import Daemon, matrix_settings
from tests.integration.secret_peer import SecretPeer

KILLS = 3
ROUND = 6
pytestmark = pytest.mark.timeout(150, func_only=True)


def test_sigkill_in_an_encrypted_conversation(synapse, fresh_credentials, tmp_path):
    """Killed at seeded random moments: nothing lost, nothing doubled, nothing unreadable, nothing in clear (M9c)."""
    chance = random.Random(7)
    nia = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    bot = fresh_credentials("bot")
    settings = {
        "owner": {"aliases": [nia.user_id]},
        "llm": {
            "models": {"echo": {"model": "demo/echo"}},
            "pools": {"main": ["echo"]},
            "default_pool": "main",
        },
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password, nia.user_id, queue="each"),
        },
    }
    said = []
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        room = nia.create_room(bot.user_id)
        daemon.wait_until(lambda: bot.user_id in nia.peer.members(room))
        for _ in range(KILLS):
            for _ in range(ROUND):
                said.append(f"#{len(said)}")
                nia.send(room, said[-1], to=bot.user_id)
            time.sleep(chance.uniform(0.0, 0.6))
            daemon.kill()
            said.append(f"#{len(said)}")
            nia.send(room, said[-1], to=bot.user_id)
            daemon.up()
        daemon.wait_until(lambda: len(nia.read(room)) >= len(said), within_s=60)
        time.sleep(1.0)
        found = nia.read(room)
    nia.close()

    assert {wire for wire, _ in found} == {"m.room.encrypted"}
    assert [content["body"] for _, content in found] == [f"echo: {text}" for text in said]
