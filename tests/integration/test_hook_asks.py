"""A webhook that asks the assistant, whose turn wants a tool: the owner is asked, and the turn goes on after the yes."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
import yaml

from devservers import MatrixPeer
from tests.daemon import Daemon, matrix_settings
from tests.integration.init_world import squidbot

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600, func_only=True)]
SECRET = "0123456789abcdef-secret"


def report(daemon: Daemon, what: str) -> None:
    """Call the webhook as a program does."""
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{daemon.url}/hooks/house", json.dumps({"what": what}).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 202


@pytest.mark.parametrize("word", ["yes", "no"])
def test_the_owner_is_asked_and_the_turn_goes_on(synapse, fresh_credentials, tmp_path, word):
    """The question is over a restart in the owner's conversation; after a no nothing is done, and that is said."""
    owner, bot = MatrixPeer.of(synapse.url, fresh_credentials("owner")), fresh_credentials("bot")
    settings = {
        "owner": {"aliases": [owner.user_id]},
        "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password)},
        "tools": {"require_approval": ["memory_write"]},
    }
    with Daemon(tmp_path / "home", settings) as daemon:
        config = daemon.home / "squidbot.yaml"
        whole = yaml.safe_load(config.read_text())
        whole["gateway"]["http"]["hooks"] = {"house": {"secret": SECRET, "text": "{what}"}}
        config.write_text(yaml.safe_dump(whole))
        daemon.up()
        room = owner.create_room(invite=[bot.user_id], is_direct=True)
        owner.send(room, "hello")
        owner.wait_for_message(lambda event: event.sender == bot.user_id)

        def said() -> str:
            found = owner.history(room, limit=200)
            return "\n".join(one.body for one in found if one.sender == bot.user_id)

        def kept() -> str:
            return "\n".join(path.read_text() for path in daemon.home.rglob("MEMORY.md"))

        text = "Please remember that the boiler code is blue7x."
        done = squidbot("cron", "add", "--ask", "--hook", "house", text, "--home", str(daemon.home))
        assert done.returncode == 0, done.stderr
        report(daemon, "the boiler is off")
        daemon.wait_until(lambda: "I need your approval" in said())
        assert "blue7x" not in kept()
        daemon.kill()
        daemon.up()
        owner.send(room, word)
        daemon.wait_until(lambda: re.search("is approved|is rejected|declined|I will not", said()))
        if word == "yes":
            daemon.wait_until(lambda: "I will remember" in said())
            assert kept().count("blue7x") == 1
        assert said().count("I need your approval") == 1
        assert word == "yes" or "blue7x" not in kept()
