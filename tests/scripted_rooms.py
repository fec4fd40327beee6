"""A conversation in one room on a scripted homeserver, and the events that people make in it."""

from __future__ import annotations

import json

from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.config import MatrixConfig
from channels.matrix.events.inbound_events import BotIdentity
from channels.matrix.events.room_policy import RoomRules
from channels.matrix.receive.event_handler import EventHandler
from channels.matrix.receive.reply_context import read_plain_event
from tests.clock import ManualClock
from tests.doubles.homeserver import ScriptedHomeserver, member, text
from tests.doubles.inbox import MemoryInbox
from tests.unit.channels.matrix.test_inbound import ALICE, BOT, DIRECT, ROOM

CAROL, MALLORY = "@carol:hs.test", "@mallory:hs.test"

MENTION = {"m.mentions": {"user_ids": [BOT]}}


def edit(target, body, sender=ALICE, event_id="$edit"):
    return text(
        event_id,
        f"* {body}",
        sender,
        **{
            "m.new_content": {"msgtype": "m.text", "body": body},
            "m.relates_to": {"rel_type": "m.replace", "event_id": target},
        },
    )


def redaction(target, sender=ALICE, *, where="content"):
    event = {"type": "m.room.redaction", "event_id": "$redaction", "sender": sender, "content": {}}
    (event["content"] if where == "content" else event)["redacts"] = target
    return event


def answering(event_id):
    return {"m.relates_to": {"m.in_reply_to": {"event_id": event_id}}}


class Desk:
    """A conversation in one room."""

    def __init__(self, registry=DIRECT, *, decrypt=read_plain_event, **settings):
        self.server = ScriptedHomeserver()
        self.inbox = MemoryInbox()
        config = MatrixConfig(
            **{
                "homeserver": "http://hs",
                "user_id": BOT,
                "password": "pw",
                "allow_from": [ALICE, CAROL],
                "threads": "off",
                **settings,
            }
        )
        me = BotIdentity(
            channel="matrix",
            user_id=BOT,
            group_policy=config.group_policy,
            threads=config.threads,
        )
        self.conversation = EventHandler(
            self.server,
            self.inbox,
            me=me,
            rooms=registry,
            clock=ManualClock(),
            rules=RoomRules(config, registry.conversation_of),
            decrypt=decrypt,
        )

    async def read(self, event):
        return await self.conversation.read(ROOM, event)

    def has(self, event, *, absent=()):
        """The homeserver can be asked for this event, at which everybody was there but the ``absent``."""
        path = f"/context/%24{event['event_id'][1:]}$"
        self.server.on("GET", path, lambda call: _at_event({**event, "room_id": ROOM}, call, absent))


def _at_event(event, call, absent=()):
    asked = json.loads(call.query["filter"])["senders"]
    return HttpAnswer(200, {"event": event, "state": [member(one) for one in asked if one not in absent]})
