"""Somebody in a Matrix room of either kind, in clear or encrypted, and what they see of the bot."""

from __future__ import annotations

from urllib.parse import quote

import anyio

from tests.integration.matrix_bot import bot_joined, call

KINDS = [(version, encrypted) for version in ("11", "12") for encrypted in (False, True)]
"""Versions of rooms, and whether they are encrypted."""


async def room_of_kind(secret, bot_id, version, *, encrypted, direct=True):
    """A room of that kind, in which the bot is."""
    room = await call(secret.peer.create_room, [bot_id], is_direct=direct, room_version=version)
    if encrypted:
        body = {"algorithm": "m.megolm.v1.aes-sha2"}
        await call(secret.peer.call, "PUT", f"/rooms/{quote(room)}/state/m.room.encryption/", body)
    await call(bot_joined, secret.peer, room, bot_id)
    return room


async def room_of_each_kind(secret, bot_id, *, direct=True):
    """The same person in a room of each kind, in which the bot is."""
    found = []
    for version, encrypted in KINDS:
        room = await room_of_kind(secret, bot_id, version, encrypted=encrypted, direct=direct)
        found.append(Person(secret, room, bot_id, encrypted=encrypted))
    return found


class Person:
    """Somebody in one room, whose client encrypts if the room does."""

    def __init__(self, secret, room, bot_id, *, encrypted):
        self.secret, self.room, self.bot_id, self.encrypted = secret, room, bot_id, encrypted
        self.events: list[str] = []
        """The ids of what was heard."""

    @property
    def wire(self):
        """The type of what may be sent into the room."""
        return "m.room.encrypted" if self.encrypted else "m.room.message"

    async def say(self, text, **content):
        if self.encrypted:
            return await call(self.secret.send, self.room, text, to=self.bot_id, **content)
        body = {"msgtype": "m.text", "body": text, **content}
        return await call(self.secret.peer.send_event, self.room, "m.room.message", body)

    async def ephemeral(self, kind):
        """The newest content of that kind, as a client that syncs anew is told."""
        answer = await call(self.secret.peer.call, "GET", "/sync?timeout=0&full_state=false")
        room = answer["rooms"]["join"].get(self.room, {})
        found = [one["content"] for one in room.get("ephemeral", {}).get("events", []) if one["type"] == kind]
        return found[-1] if found else {}

    async def heard(self):
        """What the bot has said and was not taken back: (wire type, relation, text)."""
        answer = await call(self.secret.peer.call, "GET", "/sync?timeout=0")
        self.secret.machine.receive(answer.get("to_device", {}).get("events", []))
        path = f"/rooms/{quote(self.room)}/messages?dir=f&limit=300"
        chunk = (await call(self.secret.peer.call, "GET", path))["chunk"]
        found, self.events = [], []
        for one in chunk:
            if one["sender"] != self.bot_id or not one["content"]:
                continue
            if one["type"] == "m.room.encrypted":
                clear = self.secret.machine.decrypt(self.room, one)["content"]
            elif one["type"] == "m.room.message":
                clear = one["content"]
            else:
                continue
            found.append((one["type"], one["content"].get("m.relates_to", {}), clear["body"]))
            self.events.append(one["event_id"])
        return found

    async def until_heard(self, count):
        with anyio.fail_after(60):
            while len(found := await self.heard()) < count:
                await anyio.sleep(0.1)
        return found
