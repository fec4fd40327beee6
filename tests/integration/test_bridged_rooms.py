"""
docs/bridges.md on a real daemon and a real Synapse: an application service, registered as those of mautrix are, makes
the rooms and speaks as the people of another network. No such network is there.
"""

from __future__ import annotations

import json
import secrets
import urllib.request
from urllib.parse import quote, urlencode

import pytest
import yaml

from devservers import MatrixPeer, Synapse
from tests.daemon import Daemon, matrix_settings
from tests.servers import skipped_without_tools

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900, func_only=True)]
CLIENT, MESSAGE = "/_matrix/client/v3", "m.room.message"
BRIDGE, ANN, CID = "whatsappbot", "whatsapp_4915112345678", "whatsapp_4915100000000"


class Bridge:
    """An application service; each call is of one of its accounts."""

    def __init__(self, folder):
        self.token = secrets.token_hex(16)
        self.url = ""
        registration = {
            "id": "whatsapp",
            "url": None,
            "as_token": self.token,
            "hs_token": secrets.token_hex(16),
            "sender_localpart": BRIDGE,
            "rate_limited": False,
            "namespaces": {"users": [{"exclusive": True, "regex": "@whatsapp_.*"}]},
        }
        self.file = folder / "registration.yaml"
        self.file.write_text(yaml.safe_dump(registration))

    def ask(self, who, method, path, body=None, **query):
        query = urlencode({"user_id": self.id_of(who), **query} if who else query)
        request = urllib.request.Request(
            f"{self.url}{CLIENT}{path}?{query}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def id_of(self, localpart):
        return f"@{localpart}:{Synapse.server_name}"

    def register(self, localpart):
        self.ask("", "POST", "/register", {"type": "m.login.application_service", "username": localpart})

    def portal(self, maker, bot, *ghosts, name=""):
        """A room as a bridge makes it: of one person it is that person's, others are the bridge's own."""
        made = self.ask(
            maker,
            "POST",
            "/createRoom",
            {
                "preset": "private_chat",
                "is_direct": not name,
                **({"name": name} if name else {}),
                "invite": [bot, *map(self.id_of, ghosts)],
                "creation_content": {"m.federate": False},
            },
        )["room_id"]
        for ghost in ghosts:
            self.ask(ghost, "POST", f"/join/{quote(made)}", {})
        return made

    def say(self, who, room, text, kind="m.text"):
        path = f"/rooms/{quote(room)}/send/{MESSAGE}/{secrets.token_hex(8)}"
        self.ask(who, "PUT", path, {"msgtype": kind, "body": text})

    def heard(self, who, room, sender):
        """What somebody has said in a room."""
        found = self.ask(who, "GET", f"/rooms/{quote(room)}/messages", dir="b", limit=100)["chunk"]
        return [one["content"]["body"] for one in found if (one["sender"], one["type"]) == (sender, MESSAGE)]


@pytest.fixture(scope="module")
def bridge(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bridge")
    made = Bridge(folder)
    with skipped_without_tools():
        server = Synapse.start(folder / "synapse", overrides={"app_service_config_files": [str(made.file)]})
    with server:
        made.url, made.synapse = server.url, server
        for localpart in (ANN, CID):
            made.register(localpart)
        yield made


def test_people_behind_a_bridge(bridge, tmp_path):
    """
    Who is let in is answered in their portal; in a group only when named, or always where its settings say so. The
    bridge's own notices, and people who are not let in, are not answered.
    """
    bot = bridge.synapse.register("squid", "password")
    owner = MatrixPeer.of(bridge.url, bridge.synapse.register("owner", "password"))
    alone = bridge.portal(ANN, bot.user_id)
    group = bridge.portal(BRIDGE, bot.user_id, ANN, CID, name="Club")
    open_one = bridge.portal(BRIDGE, bot.user_id, ANN)
    allowed = [bridge.id_of(ANN), bridge.id_of(BRIDGE)]
    matrix = matrix_settings(
        bridge.synapse,
        bot.user_id,
        bot.password,
        *allowed,
        ignore_senders=[bridge.id_of(BRIDGE)],
        rooms={open_one: {"policy": "open"}},
    )
    settings = {"owner": {"aliases": [owner.user_id]}, "channels": {"matrix": matrix}}
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()

        def answers(room):
            return bridge.heard(ANN if room == alone else BRIDGE, room, bot.user_id)

        bridge.say(BRIDGE, open_one, "Your message was not bridged", "m.notice")
        bridge.say(BRIDGE, open_one, "squid: say who may talk to you")
        bridge.say(ANN, group, "unnamed in the group")
        bridge.say(CID, group, "squid: a stranger in the group")
        for room, text in ((alone, "one"), (open_one, "two"), (group, "squid: three"), (alone, "four")):
            before = len(answers(room))
            bridge.say(ANN, room, text)
            daemon.wait_until(lambda room=room, before=before: len(answers(room)) > before)
        assert [len(answers(room)) for room in (alone, open_one, group)] == [2, 1, 1]
        assert "two" in answers(open_one)[0] and "three" in answers(group)[0]
        owner_room = owner.create_room(invite=[bot.user_id], is_direct=True)
        owner.send(owner_room, "!allow")
        told = owner.wait_for_message(lambda event: event.sender == bot.user_id).body
        assert bridge.id_of(CID) in told
        assert bridge.id_of(BRIDGE) not in told
