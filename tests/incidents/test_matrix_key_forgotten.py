"""
Synapse forgets transaction ids after a day. An answer whose confirmation was lost, and which was repeated
after the daemon had been off for the week-end, appeared twice.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from agent_core.messages import OutboundMessage, SessionKey
from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.events.inbound_events import MARK
from channels.matrix.events.outbound_events import transaction_id
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send.event_sender import EventSender
from tests.clock import EPOCH, ManualClock
from tests.doubles.homeserver import ScriptedHomeserver, member, text

BOT, ROOM = "@bot:hs.test", "!room:hs.test"


@pytest.mark.parametrize(
    ("age", "puts"),
    [
        (timedelta(minutes=10), 1),  # the server recognises the key itself
        (timedelta(hours=49), 0),
        (timedelta(days=-400), 0),  # the clock was wrong when the answer was made
    ],
    ids=["at once", "after the week-end", "from the future"],
)
async def test_an_old_answer_is_looked_for_before_it_is_repeated(
    tmp_path: Path, age: timedelta, puts: int
) -> None:
    """What stands in the room already is found by its mark; only a young message relies on its key alone."""
    message = OutboundMessage(
        id="row-1", channel="matrix", account=BOT, session=SessionKey("matrix", ROOM), text="hi",
        created_at=EPOCH,
    )  # fmt: skip
    server = ScriptedHomeserver()
    server.on("PUT", r"/send/m\.room\.message/", HttpAnswer(200, {"event_id": "$again"}))
    there = text("$first", "hi", BOT, **{MARK: transaction_id(message.id)})
    server.on("GET", r"/messages", HttpAnswer(200, {"chunk": [there]}))
    rooms = Rooms(BOT)
    rooms.update({"rooms": {"join": {ROOM: {"state": {"events": [member(BOT)]}}}}})
    config = MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw")
    login = MatrixLogin(config, server, tmp_path, ManualClock())
    sending = EventSender(config, server, login, rooms, is_current=lambda: True, now=lambda: EPOCH + age)

    async def uncertain() -> None: ...

    receipt = await sending.deliver(message, uncertain=uncertain)

    assert receipt.provider_id == ("$again" if puts else "$first")
    assert len(server.asked("PUT", "/send/")) == puts
