"""
An answer that was meant for Alice alone was posted before the eyes of somebody who had come into the room
while it was thought about; so was every check-in, for ever, once her direct room had a third member.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send.event_sender import NOT_ALONE, EventSender
from tests.clock import EPOCH, ManualClock
from tests.doubles.homeserver import ScriptedHomeserver, member

BOT, ALICE, CAROL, ROOM = "@bot:hs.test", "@alice:hs.test", "@carol:hs.test", "!room:hs.test"
SECRET = "your PIN is 4711"
REPLY = {
    "kind": OutboundKind.REPLY,
    "context": {"route": {"direct": True, "sender": ALICE, "event_id": "$q"}},
}
IN_GROUP = {
    "kind": OutboundKind.REPLY,
    "context": {"route": {"direct": False, "sender": ALICE, "event_id": "$q"}},
}
ALERT = {"kind": OutboundKind.ALERT}


async def sent(
    folder: Path, people: list[dict[str, Any]], fields: dict[str, Any], *, known: bool, current: bool = True
) -> dict[str, Any]:
    """Deliver the secret into Alice's room with these members; gives what left."""
    server = ScriptedHomeserver()
    server.on("PUT", r"/send/m\.room\.message/", HttpAnswer(200, {"event_id": "$e"}))
    server.on("GET", r"/members", HttpAnswer(200, {"chunk": people}))
    server.on("GET", r"/state/m\.room\.encryption", HttpAnswer(404, {"errcode": "M_NOT_FOUND"}))
    rooms = Rooms(BOT)
    rooms.mark_direct(ROOM, ALICE)
    room: dict[str, Any] = {"state": {"events": [member(BOT), member(ALICE)]}}
    if known:
        room = {
            "state": {"events": people},
            "summary": {"m.joined_member_count": len(people), "m.invited_member_count": 0},
        }
    rooms.update({"rooms": {"join": {ROOM: room}}})
    config = MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw")
    login = MatrixLogin(config, server, folder, ManualClock())
    sending = EventSender(config, server, login, rooms, is_current=lambda: current, now=lambda: EPOCH)
    message = OutboundMessage(
        id="row-1", channel="matrix", account=BOT, session=SessionKey("matrix", ROOM), text=SECRET,
        created_at=EPOCH, **fields,
    )  # fmt: skip

    async def uncertain() -> None: ...

    await sending.deliver(message, uncertain=uncertain)
    [call] = server.asked("PUT", "/send/")
    return dict(call.body or {})


@pytest.mark.parametrize("fields", [REPLY, ALERT], ids=["reply", "alert"])
@pytest.mark.parametrize("third", [member(CAROL), member(CAROL, "invite")], ids=["joined", "invited"])
@pytest.mark.parametrize("known", [True, False], ids=["seen", "after a restart"])
async def test_a_third_person_reads_nothing_that_was_meant_for_one(
    tmp_path: Path, fields: dict[str, Any], third: dict[str, Any], *, known: bool
) -> None:
    """One sentence that says why takes the place of the answer, and nothing of the answer is in it."""
    body = await sent(tmp_path, [member(BOT), member(ALICE), third], fields, known=known)

    assert body["body"] == NOT_ALONE
    assert "4711" not in str(body)


@pytest.mark.parametrize("fields", [REPLY, ALERT], ids=["reply", "alert"])
async def test_who_took_alices_place_reads_nothing_either(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Two members, but the one beside the bot is another."""
    body = await sent(tmp_path, [member(BOT), member(CAROL)], fields, known=True)

    assert "4711" not in str(body)


async def test_a_link_that_was_away_is_not_relied_upon(tmp_path: Path) -> None:
    """What the sync loop knew before it lost its server is looked up again."""
    people = [member(BOT), member(ALICE), member(CAROL)]

    assert "4711" not in str(await sent(tmp_path, people, REPLY, known=False, current=False))


@pytest.mark.parametrize(
    ("people", "fields"),
    [
        ([member(BOT), member(ALICE)], REPLY),
        ([member(BOT), member(ALICE)], ALERT),
        ([member(BOT), member(ALICE), member(CAROL)], IN_GROUP),
    ],
    ids=["reply", "alert", "group"],
)
@pytest.mark.parametrize("known", [True, False], ids=["seen", "after a restart"])
async def test_otherwise_the_answer_arrives(
    tmp_path: Path, people: list[dict[str, Any]], fields: dict[str, Any], *, known: bool
) -> None:
    """Alone together, and in a group that was a group when it asked, the answer is the answer."""
    assert (await sent(tmp_path, people, fields, known=known))["body"] == SECRET
