"""
Keys over deaths at every step of giving and taking them: whatever has gone into a room can be read, on both sides.

The machine and its store are real, and the server passes on what it was given. The process dies after one call of
the machine or one request that the server has accepted: nothing happens after that, and the next start has the
files as they were at that moment. Each message has a start of its own, so each has a room key of its own.
"""

from __future__ import annotations

import itertools
import shutil
from collections import defaultdict
from types import SimpleNamespace

import pytest

from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.crypto.key_types import NoKey
from channels.matrix.crypto.olm_machine import OlmMachine
from tests.clock import ManualClock
from tests.doubles.homeserver import ScriptedHomeserver

BOT, ALICE, ROOM = "@bot:hs.test", "@alice:hs.test", "!room:hs.test"
STEPS = ("receive", "learn_devices", "start_sessions", "room_key_for", "note_key_delivery", "encrypt")
OTHERS = ("receive", "learn_devices", "start_sessions", "note_key_delivery", "encrypt", "query", "room")
"""Moments of dying that the fast selection leaves out."""
REQUESTS = ("query", "claim", "to_device")
SAID = ("hello", "again")


class Death(BaseException):
    """Nothing of the process happens after this."""


class Scenario:
    """A server, somebody's devices, and a bot that dies at one moment."""

    def __init__(self, folder, moment="", nth=1, durable=True):
        self.folder = folder
        self.moment = moment
        self.left = nth
        self.durable = durable
        self.dead = False
        self.deaths = 0
        self.devices, self.uploads = {}, {}
        self.sent = defaultdict(list)
        """To-device events, by the device that they are for."""
        self.taken = 0
        """How many of those for the bot are passed by its committed position."""
        self.room = []
        """What has gone into the room, with the devices that were there."""
        self.her_keys = []
        """Her room keys that went to the bot, by room and session."""
        self.add_device("FIRST")
        first = self.start()
        self.bot_keys = first.new_keys(None)
        first.note_upload()
        first.close()

    # ── the person ──
    def add_device(self, name):
        machine = OlmMachine(self.folder, ALICE, name, "key")
        self.uploads[name] = machine.new_keys(None)
        machine.note_upload()
        self.devices[name] = machine

    def alice_says_something(self):
        """A room key of hers goes to the bot, which turns the ratchet of their session."""
        her = self.devices["FIRST"]
        her.learn_devices(BOT, {"DEV": self.bot_keys["device_keys"]})
        [bot] = her.devices_of([BOT])
        her.receive(self.taken_by("FIRST"))
        if her.strangers([bot]):
            key_id, key = self.bot_keys["one_time_keys"].popitem()
            her.start_sessions({BOT: {"DEV": {key_id: key}}})
        room = f"!other{len(self.sent['DEV'])}:hs.test"
        [body] = her.room_key_for(room, {bot}).values()
        self.sent["DEV"].append({"type": "m.room.encrypted", "sender": ALICE, "content": body})
        self.her_keys.append((room, her.current_key(room)["session_id"]))

    def taken_by(self, name):
        events, self.sent[name] = self.sent[name], []
        return events

    def unreadable(self):
        """What cannot be read on a device that was there when it was said."""
        found = []
        for name, machine in self.devices.items():
            machine.receive(self.taken_by(name))
            for event, there in self.room:
                try:
                    if name in there:
                        machine.decrypt(ROOM, event)
                except NoKey:
                    found.append((name, event["event_id"]))
        return found

    def not_taken(self):
        """Her keys that the bot does not have, once it has taken what is left of them."""
        machine = self.start()
        machine.receive(self.sent["DEV"][self.taken :])
        missing = [key for key in self.her_keys if not machine.has_key(*key)]
        machine.close()
        return missing

    # ── the bot ──
    def start(self):
        return OlmMachine(self.folder / f"life{self.deaths}", BOT, "DEV", "key")

    def pass_by(self, name):
        files = self.folder / f"life{self.deaths}"
        if name == "position":
            shutil.copytree(files, self.folder / "before", dirs_exist_ok=True)
        self.left -= name == self.moment
        if name == self.moment and self.left == 0:
            self.deaths += 1
            shutil.copytree(
                files if self.durable else self.folder / "before", self.folder / f"life{self.deaths}"
            )
            self.dead = True
            raise Death

    def watched(self, name, call):
        def made(*args, **more):
            if self.dead:
                raise Death
            result = call(*args, **more)
            self.pass_by(name)
            return result

        return made

    def server(self):
        server = ScriptedHomeserver()

        def query(call):
            keys = {name: upload["device_keys"] for name, upload in self.uploads.items()}
            return HttpAnswer(
                200, {"device_keys": {one: keys if one == ALICE else {} for one in call.body["device_keys"]}}
            )

        def claim(call):
            keys = {
                name: self.uploads[name]["one_time_keys"].popitem()
                for name in call.body["one_time_keys"][ALICE]
            }
            return HttpAnswer(
                200, {"one_time_keys": {ALICE: {name: dict([key]) for name, key in keys.items()}}}
            )

        def to_device(call):
            for name, content in call.body["messages"][ALICE].items():
                self.sent[name].append({"type": "m.room.encrypted", "sender": BOT, "content": content})
            return HttpAnswer(200, {})

        server.on("POST", "/keys/query", self.watched("query", query))
        server.on("POST", "/keys/claim", self.watched("claim", claim))
        server.on("PUT", "/sendToDevice/", self.watched("to_device", to_device))
        return server

    async def live(self, text):
        """One life of the bot: what has come, and one answer."""
        machine = self.start()
        for step in STEPS:
            setattr(machine, step, self.watched(step, getattr(machine, step)))
        crypto = EncryptionEngine(
            self.server(), SimpleNamespace(renew=None), self.folder, lambda _device: machine, ManualClock()
        )
        crypto._machine = machine
        try:
            crypto.receive({"to_device": {"events": self.sent["DEV"][self.taken :]}})
            self.taken = len(self.sent["DEV"])
            self.pass_by("position")
            content = await crypto.encrypt(ROOM, "m.room.message", {"body": text}, [ALICE, BOT])
            event = {
                "event_id": f"${len(self.room)}",
                "sender": BOT,
                "content": content,
                "origin_server_ts": 1,
            }
            self.room.append((event, set(self.devices)))
            self.pass_by("room")
        except BaseException:
            if not self.dead:
                raise
        machine.close()

    async def lives(self):
        """Lives until everything was said; she has another device after a death, and its message comes again."""
        for text in SAID:
            await self.live(text)
            if self.dead:
                self.dead = False
                self.add_device("SECOND")
                await self.live(text)
            self.alice_says_something()
        return self.unreadable()

    def close(self):
        for machine in self.devices.values():
            machine.close()


@pytest.fixture
def world(tmp_path):
    made = []

    def make(*moment, **more):
        folder = tmp_path / f"world{len(made)}"
        (folder / "life0").mkdir(parents=True)
        made.append(Scenario(folder, *moment, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    "moment",
    [
        *("room_key_for", "claim", "to_device", "position"),
        *(pytest.param(moment, marks=pytest.mark.slow) for moment in OTHERS),
    ],
)
async def test_what_has_gone_into_the_room_can_be_read(world, moment):
    """Each time that the moment is passed: at the first start, and at one with a session that is there."""
    for nth in itertools.count(1):
        one = world(moment, nth)
        assert await one.lives() == []
        assert one.not_taken() == []
        assert len(one.room) >= len(SAID) == len(one.her_keys)
        if not one.deaths:
            break
    assert nth > (1 if moment in ("claim", "start_sessions") else 2)


async def test_with_a_store_that_forgets_it_could_not(world):
    """Negative control: the key was sent, and the store is that of before."""
    one = world("to_device", 2, durable=False)
    assert await one.lives() == [("FIRST", "$1")]
