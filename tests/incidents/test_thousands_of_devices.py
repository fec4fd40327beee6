"""
A homeserver can name any number of devices of its people. Each costs milliseconds, and all of them were gone
through at once before the bot said something in a room with such a person: with a few thousand, nothing else ran
for so long that the daemon was ended by its watchdog, at each start anew.
"""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace

import anyio
import pytest
import vodozemac

from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.crypto.cross_signing import canonical_json
from channels.matrix.crypto.devices import AT_ONCE
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from tests.clock import ManualClock
from tests.doubles.homeserver import ScriptedHomeserver

BOT, CROWD, OWNER, ROOM = "@bot:hs.test", "@crowd:evil.test", "@owner:hs.test", "!r:hs.test"
private_olm = import_module("channels.matrix.crypto.olm_machine")


def signed(account, user_id, name, value):
    signature = account.sign(canonical_json(value)).to_base64()
    return {**value, "signatures": {user_id: {f"ed25519:{name}": signature}}}


class Person:
    """Somebody with devices."""

    def __init__(self, user_id, count, letter="D"):
        self.user_id = user_id
        self.accounts = {f"{letter}{number}": vodozemac.Account() for number in range(count)}

    def devices(self):
        return {name: self._device(name, account) for name, account in self.accounts.items()}

    def claimed(self, names):
        return {name: self._one_time_key(name) for name in names}

    def _device(self, name, account):
        keys = {
            f"ed25519:{name}": account.ed25519_key.to_base64(),
            f"curve25519:{name}": account.curve25519_key.to_base64(),
        }
        algorithms = ["m.olm.v1.curve25519-aes-sha2", "m.megolm.v1.aes-sha2"]
        value = {"user_id": self.user_id, "device_id": name, "algorithms": algorithms, "keys": keys}
        return signed(account, self.user_id, name, value)

    def _one_time_key(self, name):
        account = self.accounts[name]
        account.generate_one_time_keys(1)
        [(key_id, key)] = account.one_time_keys.items()
        value = signed(account, self.user_id, name, {"key": key.to_base64()})
        return {f"signed_curve25519:{key_id}": value}


@pytest.fixture
def machine(tmp_path):
    machine = private_olm.OlmMachine(tmp_path, BOT, "DEV", "key")
    yield machine
    machine.close()


def test_some_devices_of_a_person_count(machine, monkeypatch):
    """Those that are known stay known, whatever the server puts in front of them; a few are all of them."""
    monkeypatch.setattr(private_olm, "MAX_DEVICES", 5)
    first, crowd = Person(CROWD, 4), Person(CROWD, 12, "A")
    machine.learn_devices(CROWD, first.devices())
    assert {one.device_id for one in machine.devices_of([CROWD])} == {"D0", "D1", "D2", "D3"}
    machine.learn_devices(CROWD, {**crowd.devices(), **first.devices()})

    assert {"D0", "D1", "D2", "D3"} < {one.device_id for one in machine.devices_of([CROWD])}
    assert len(machine.devices_of([CROWD])) == 5


async def test_a_room_key_is_made_for_a_few_at_a_time(machine, tmp_path):
    """Between two portions others run; all devices get the key, in requests of a bounded size."""
    people = {one.user_id: one for one in (Person(CROWD, 120), Person(OWNER, 1))}
    server = ScriptedHomeserver()

    def query(call):
        found = {name: people[name].devices() for name in call.body["device_keys"]}
        return HttpAnswer(200, {"device_keys": found})

    def claim(call):
        wanted = call.body["one_time_keys"].items()
        return HttpAnswer(200, {"one_time_keys": {name: people[name].claimed(keys) for name, keys in wanted}})

    server.on("POST", "/keys/query", query)
    server.on("POST", "/keys/claim", claim)
    server.on("PUT", "/sendToDevice/", HttpAnswer(200, {}))
    login = SimpleNamespace(renew=None)
    crypto = EncryptionEngine(server, login, tmp_path, lambda _device: machine, ManualClock())
    crypto._machine = machine
    portions = []
    for name in ("start_sessions", "room_key_for"):
        monkey(machine, name, portions)
    turns = 0

    async def others():
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1
            portions.append("others")

    async with anyio.create_task_group() as group:
        group.start_soon(others)
        await crypto.encrypt(ROOM, "m.room.message", {"body": "hi"}, [CROWD, OWNER])
        group.cancel_scope.cancel()

    given = [call.body["messages"] for call in server.asked("PUT", "/sendToDevice/")]
    sizes = [sum(map(len, one.values())) for one in given]
    assert sum(sizes) == 121
    assert max(sizes) <= AT_ONCE
    work = [one for one in portions if one != "others"]
    assert max(work) <= AT_ONCE
    assert sum(work) == 2 * 121
    assert all("others" in pair for pair in pairwise(portions))


async def test_a_crowd_of_devices_is_learned_a_few_at_a_time(machine, tmp_path):
    """Signatures of devices that are not kept are not looked at, and between two portions others run."""
    crowd, signer = Person(CROWD, 300), vodozemac.Account()
    own = signer.ed25519_key.to_base64()
    identity = {"user_id": CROWD, "keys": {f"ed25519:{own}": own}}
    devices = crowd.devices()
    for device in devices.values():
        theirs = signer.sign(canonical_json(device)).to_base64()
        device["signatures"][CROWD][f"ed25519:{own}"] = theirs
    answer = {
        "device_keys": {CROWD: devices},
        "master_keys": {CROWD: identity},
        "self_signing_keys": {CROWD: signed(signer, CROWD, own, identity)},
    }
    server = ScriptedHomeserver()
    server.on("POST", "/keys/query", HttpAnswer(200, answer))
    crypto = EncryptionEngine(
        server, SimpleNamespace(renew=None), tmp_path, lambda _device: machine, ManualClock()
    )
    crypto._machine = machine
    work = []
    learn, check = machine.learn_devices, machine.is_signature

    def learned(user_id, some):
        before = len(machine.devices_of([user_id]))
        learn(user_id, some)
        work.append(("learn", len(machine.devices_of([user_id])) - before))

    def checked(*args):
        work.append(("check", 1))
        return check(*args)

    machine.learn_devices, machine.is_signature = learned, checked

    async def others():
        while True:
            await anyio.lowlevel.checkpoint()
            work.append(("others", 0))

    async with anyio.create_task_group() as group:
        group.start_soon(others)
        await crypto.learn_devices([CROWD])
        group.cancel_scope.cancel()

    pieces = [0]
    for kind, count in work:
        pieces[-1] += count
        if kind == "others":
            pieces.append(0)
    assert max(pieces) <= 30
    assert sum(count for kind, count in work if kind == "learn") == private_olm.MAX_DEVICES
    assert sum(count for kind, count in work if kind == "check") == private_olm.MAX_DEVICES + 1
    kept = machine.devices_of([CROWD])
    assert all(crypto.identities.is_signed(CROWD, one.device_id) for one in kept)


def monkey(machine, name, portions):
    """Note how many devices each call is about."""
    real = getattr(machine, name)

    def noted(*args, **kwargs):
        found = real(*args, **kwargs)
        about = sum(map(len, args[0].values())) if found is None else len(found)
        if about:
            portions.append(about)
        return found

    setattr(machine, name, noted)
