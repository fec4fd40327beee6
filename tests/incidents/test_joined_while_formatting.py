"""A private answer that takes long to format is still for one person, also when a second comes in meanwhile."""

from __future__ import annotations

import pytest

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.events.outbound_events import build_content
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send import event_sender as sending
from tests.clock import EPOCH, ManualClock
from tests.doubles.homeserver import ScriptedHomeserver, member

BOT, ALICE, CAROL, ROOM = "@bot:hs.test", "@alice:hs.test", "@carol:hs.test", "!room:hs.test"
LONG = "your PIN is *4711* " * 200


@pytest.mark.parametrize("joined", [True, False], ids=["somebody", "nobody"])
@pytest.mark.parametrize("way", ["answer", "preview"])
async def test_who_comes_in_meanwhile_reads_nothing(monkeypatch, tmp_path, joined, way):
    """The look at who is there comes after the formatting; without a newcomer everything arrives."""
    server = ScriptedHomeserver()
    server.on("PUT", r"/send/m\.room\.message/", HttpAnswer(200, {"event_id": "$e"}))
    people = [member(BOT), member(ALICE)]
    server.on("GET", r"/members", lambda *_, **__: HttpAnswer(200, {"chunk": list(people)}))
    server.on("GET", r"/state/m\.room\.encryption", HttpAnswer(404, {"errcode": "M_NOT_FOUND"}))
    rooms = Rooms(BOT)
    rooms.mark_direct(ROOM, ALICE)
    rooms.update({"rooms": {"join": {ROOM: {"state": {"events": list(people)}}}}})

    def slow(message, *args, **rest):
        if joined and message.text == LONG and len(people) == 2:
            people.append(member(CAROL))
            rooms.update({"rooms": {"join": {ROOM: {"timeline": {"events": [people[-1]]}}}}})
        return build_content(message, *args, **rest)

    monkeypatch.setattr(sending, "build_content", slow)
    config = MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw")
    login = MatrixLogin(config, server, tmp_path, ManualClock())
    sender = sending.EventSender(config, server, login, rooms, is_current=lambda: True, now=lambda: EPOCH)
    message = OutboundMessage(
        id="row-1", channel="matrix", account=BOT, session=SessionKey("matrix", ROOM), text=LONG,
        created_at=EPOCH, kind=OutboundKind.REPLY,
        context={"route": {"direct": True, "sender": ALICE, "event_id": "$q"}},
    )  # fmt: skip

    async def nothing():
        return None

    if way == "answer":
        await sender.deliver(message, uncertain=nothing)
    else:
        await sender.show(message, "p1", None)
    bodies = [str(call.body) for call in server.asked("PUT", "/send/")]
    assert len(bodies) == (0 if joined and way == "preview" else 1)
    assert any("4711" in body for body in bodies) is not joined
