"""
What waits for a person rings: at a real homeserver, whose default push rules pass over an ``m.notice``. Of an encrypted
room the server sees no content; there a client decides by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devservers import Credentials, MatrixPeer, Synapse
from tests.daemon import Daemon, matrix_settings
from tests.integration.secret_peer import SecretPeer


def settings(synapse: Synapse, bot: Credentials, owner: str) -> dict[str, Any]:
    return {
        "owner": {"aliases": [owner]},
        "llm": {"models": {"demo": {"model": "demo/rules"}}, "pools": {"main": ["demo"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "tools": {"require_approval": ["memory_write"]},
        "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password)},
    }  # fmt: skip


def rings(content: dict[str, Any], rules: dict[str, Any], me: str) -> bool:
    """Whether a client notifies of a message by the rules that depend on its content, or by default."""
    for rule in rules["global"]["override"]:
        if not rule["enabled"] or not rule.get("conditions"):
            continue
        met = [
            {
                "event_match": lambda one: content.get(one["key"].removeprefix("content.")) == one["pattern"],
                "event_property_contains": lambda one: (
                    one["key"] == r"content.m\.mentions.user_ids"
                    and me in content.get("m.mentions", {}).get("user_ids", [])
                ),
            }.get(one["kind"], lambda _: False)(one)
            for one in rule["conditions"]
        ]
        if all(met):
            return "notify" in rule["actions"]
    return True


def notified(person: MatrixPeer) -> dict[str, list[Any]]:
    """What the server notifies of: texts, with the actions."""
    found = person.call("GET", "/notifications?limit=50")["notifications"]
    return {one["event"]["content"].get("body", ""): one["actions"] for one in found}


@pytest.mark.parametrize("alone", [True, False], ids=["in private", "in a group"])
def test_a_question_is_among_the_notifications_of_who_may_decide(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
    alone: bool,
) -> None:
    """And highlights; "yes please" decides it. The control is a notice of the same account, which is not listed."""
    bot, alice, bob = fresh_credentials("bot"), fresh_user("alice"), fresh_user("bob")
    with Daemon(tmp_path / "home", settings(synapse, bot, alice.user_id)) as daemon:
        daemon.up()
        room = alice.create_room([bot.user_id] if alone else [bot.user_id, bob.user_id], is_direct=alone)
        if not alone:
            bob.join(room)
        daemon.wait_until(lambda: bot.user_id in alice.members(room))
        MatrixPeer.of(synapse.url, bot).send(room, "a notice", msgtype="m.notice")
        mention = {"m.mentions": {"user_ids": [bot.user_id]}}
        alice.send(room, "remember that the code is blue7x", **mention)
        daemon.wait_until(lambda: any("!approve" in text for text in notified(alice)), within_s=60)
        (actions,) = [how for text, how in notified(alice).items() if "!approve" in text]
        assert highlights(actions)
        assert "a notice" not in notified(alice)
        assert not any(map(highlights, notified(bob).values()))
        alice.send(room, "yes please", **mention)
        daemon.wait_until(
            lambda: any("is approved" in text for text in bodies(alice, room, bot)), within_s=60
        )
        daemon.terminate()
        assert daemon.ended() == 0


def highlights(actions: list[Any]) -> bool:
    found = [one for one in actions if isinstance(one, dict) and one["set_tweak"] == "highlight"]
    return any(one.get("value", True) for one in found)


def bodies(person: MatrixPeer, room: str, bot: Credentials) -> list[str]:
    return [one.body for one in person.history(room) if one.sender == bot.user_id and "body" in one.content]


def test_in_an_encrypted_room_a_client_rings(
    synapse: Synapse, fresh_credentials: Callable[[str], Credentials], tmp_path: Path
) -> None:
    """By the rules that the server gives it; the control is the same content as a notice for nobody."""
    bot, ann = fresh_credentials("bot"), fresh_credentials("ann")
    with Daemon(tmp_path / "home", settings(synapse, bot, ann.user_id)) as daemon:
        daemon.up()
        secret = SecretPeer(synapse.url, ann, tmp_path / "ann")
        room = secret.create_room(bot.user_id)
        daemon.wait_until(lambda: bot.user_id in secret.peer.members(room))
        secret.send(room, "remember that the code is blue7x", to=bot.user_id)

        def questions() -> list[dict[str, Any]]:
            return [
                one
                for kind, one in secret.read(room)
                if kind == "m.room.encrypted" and "!approve" in one["body"]
            ]

        daemon.wait_until(lambda: len(questions()) == 1, within_s=60)
        (content,) = questions()
        rules = secret.peer.call("GET", "/pushrules/")
        assert content["m.mentions"] == {"user_ids": [ann.user_id]}
        assert rings(content, rules, ann.user_id)
        assert not rings({**content, "msgtype": "m.notice", "m.mentions": {}}, rules, ann.user_id)
        secret.close()
        daemon.terminate()
        assert daemon.ended() == 0
