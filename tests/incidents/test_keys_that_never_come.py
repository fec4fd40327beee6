"""
One guest's unreadable messages took all the places of messages that wait for their keys, and the owner's question
was dropped without a word. Their flood also silenced the notice that the owner's question cannot be read, and each
reason that they made up was worth a notice of its own. And fifty messages with a key of a later point stood for ever before the owner's, whose key had come.
"""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import unquote

import anyio
import pytest

from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.crypto.key_types import NoKey
from channels.matrix.crypto.undecryptable import MAX_WAITING, PATIENCE_S, UndecryptableEvents
from channels.matrix.receive.decryption import Decryption
from tests.clock import ManualClock
from tests.doubles.homeserver import ANYBODY, ScriptedHomeserver
from tests.unit.channels.matrix.test_undecryptable import MALLORY, NIA, ROOM, withheld


def flooded(*, owner=NIA, by=(MALLORY,)):
    waiting = UndecryptableEvents(is_owner=lambda person: person == owner)
    waiting.add(ROOM, "$owner", "s", sender=NIA, now=0.0)
    for number in range(MAX_WAITING * 2):
        waiting.add(ROOM, f"${number}", f"m{number}", sender=by[number % len(by)], now=0.0)
    return waiting


def test_a_flood_costs_only_its_author():
    """The places are bounded, and whoever has most of them gives one up, known as the owner or not."""
    for owner in (NIA, "@else:hs.test"):
        waiting = flooded(owner=owner)

        assert len(waiting) == MAX_WAITING
        assert "$owner" in waiting._references
        assert f"${MAX_WAITING * 2 - 1}" in waiting._references


def test_a_thousand_people_do_not_displace_the_owner():
    """Also where everybody else has one message; another person's would be gone."""
    crowd = [f"@{number}:evil.test" for number in range(1000)]

    assert "$owner" in flooded(by=crowd)._references
    assert "$owner" not in flooded(by=crowd, owner="@else:hs.test")._references


def test_the_owner_is_told_though_the_room_was_told_before():
    """A notice about guests' messages does not stand for one about the owner's."""
    waiting = UndecryptableEvents(is_owner=lambda person: person == NIA)
    waiting.add(ROOM, "$guest", "m", sender=MALLORY, now=0.0)
    [(_, _, references)] = waiting.due_notices(PATIENCE_S)
    waiting.finish_notice(references, now=PATIENCE_S)
    waiting.add(ROOM, "$guest2", "m", sender=MALLORY, now=10.0)
    waiting.add(ROOM, "$owner", "s", sender=NIA, now=10.0)

    [(_, _, references)] = waiting.due_notices(20.0)
    assert [one.event_id for one in references] == ["$owner"]


def test_made_up_reasons_are_one_reason():
    """Fifty codes that no specification knows are one notice, without their words."""
    waiting = UndecryptableEvents()
    for number in range(50):
        waiting.add(ROOM, f"${number}", f"m{number}", sender=MALLORY, now=0.0)
        waiting.withheld(withheld(f"m{number}", f"org.evil.buy_now_{number}", sender=MALLORY))

    [(_, text, references)] = waiting.due_notices(0.0)
    assert len(references) == 50
    assert "evil" not in text


class Keys:
    """Has a key for everything, which reads the owner's words and is of a later point for all others."""

    signed_only = False

    def receive(self, _body):
        return 1

    def has_key(self, _sender, _room_id, _session_id):
        return True

    def decrypt(self, _room_id, event):
        if event["sender"] != NIA:
            raise NoKey("later")
        return event


@pytest.mark.parametrize("keys_go_on_coming", [False, True])
async def test_what_cannot_be_read_yet_stands_in_nobody_s_way(keys_go_on_coming):
    """The owner's is read after a bounded number of looks; then nothing is asked for until a key comes."""
    server = ScriptedHomeserver()
    others = SimpleNamespace(learn=lambda *_: None)
    reading = Decryption(server, None, Keys(), others, ManualClock(), user_id="@bot:hs.test", rules=ANYBODY)
    for number in range(120):
        sender = NIA if number == 119 else MALLORY
        reading._waiting.add(ROOM, f"${number}", "s", sender=sender, now=0.0)
        event = {"event_id": f"${number}", "sender": sender, "type": "m.room.encrypted"}
        server.on("GET", f"/event/%24{number}$", HttpAnswer(200, event))
    reading.receive({})
    found = []
    for _ in range(3):
        if keys_go_on_coming:
            reading.receive({})
        found += [event["event_id"] for _, event, _ in await reading.late_messages()]

    assert found == ["$119"]
    asked = len(server.calls)
    assert await reading.late_messages() == []
    assert keys_go_on_coming or len(server.calls) == asked


@pytest.mark.parametrize("owner", [NIA, "@else:hs.test"])
async def test_others_late_messages_hold_nobody_up(owner):
    """Each costs a request: after half a second the next answer of /sync comes before the rest, the owner's first."""
    server, asked = ScriptedHomeserver(), 0

    async def slow(method, path, *_args, **_options):
        nonlocal asked
        asked += 1
        await anyio.sleep(0.2)
        event_id = unquote(path.rpartition("/")[2])
        sender = NIA if event_id == "$119" else MALLORY
        return HttpAnswer(200, {"event_id": event_id, "sender": sender, "type": "m.room.encrypted"})

    server.request = slow
    others, keys = SimpleNamespace(learn=lambda *_: None), Keys()
    keys.decrypt = lambda _room, event: event
    reading = Decryption(
        server,
        None,
        keys,
        others,
        ManualClock(),
        user_id="@bot:hs.test",
        rules=ANYBODY,
        is_owner=lambda user: user == owner,
    )
    for number in range(120):
        reading._waiting.add(ROOM, f"${number}", "s", sender=NIA if number == 119 else MALLORY, now=0.0)
    reading.receive({})
    first = [event["event_id"] for _, event, _ in await reading.late_messages()]
    assert 1 <= len(first) < 10
    assert reading.has_more
    assert ("$119" in first) == (owner == NIA)
    assert len(await reading.late_messages()) >= 1
    assert asked < 20


async def test_what_the_server_does_not_give_is_not_asked_for_at_once():
    """It answers badly: the next long poll is waited for."""
    server = ScriptedHomeserver()
    server.on("GET", "/event/", HttpAnswer(502, {}))
    others = SimpleNamespace(learn=lambda *_: None)
    reading = Decryption(server, None, Keys(), others, ManualClock(), user_id="@bot:hs.test", rules=ANYBODY)
    reading._waiting.add(ROOM, "$1", "s", sender=NIA, now=0.0)
    reading.receive({})
    assert await reading.late_messages() == []
    assert not reading.has_more
    server.on(
        "GET", "/event/", HttpAnswer(200, {"event_id": "$1", "sender": NIA, "type": "m.room.encrypted"})
    )
    assert len(await reading.late_messages()) == 1
