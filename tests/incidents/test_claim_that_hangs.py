"""
Somebody's server that does not answer when keys are asked for, or one-time keys are claimed, delayed the bot's answer
to everybody else in the room by half a minute, or kept it back altogether.
"""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest

from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.crypto.key_sharing import OTHERS_LIMIT_S
from tests.clock import LoopClock
from tests.doubles.homeserver import ScriptedHomeserver
from tests.incidents.test_thousands_of_devices import BOT, ROOM, Person, private_olm

pytestmark = pytest.mark.virtual_time
OWNER, EVE, ABROAD = "@owner:hs.test", "@eve:evil.test", "@abroad:good.test"
ENDPOINTS = ["/keys/query", "/keys/claim"]


class Slow(ScriptedHomeserver):
    """Requests to ``path`` that are about ``slow`` people take ``takes_s``; requests have a limit, as ours have."""

    def __init__(self, path, people):
        super().__init__()
        self.path = path
        self.people = {one.user_id: one for one in people}
        self.slow = {EVE}
        self.takes_s = 1000.0
        self.on("POST", "/keys/query", self.queried)
        self.on("POST", "/keys/claim", self.claimed)
        self.on("PUT", "/sendToDevice/", HttpAnswer(200, {}))

    async def request(self, method, path, body=None, *, timeout_s=30.0, **options):
        about = next(iter(value for value in (body or {}).values() if isinstance(value, dict)), {})
        if path.endswith(self.path) and about.keys() & self.slow:
            if self.takes_s > timeout_s:
                await anyio.sleep(timeout_s)
                raise LinkBroken("the server did not answer in time", maybe_taken=True)
            await anyio.sleep(self.takes_s)
        return await super().request(method, path, body, timeout_s=timeout_s, **options)

    def queried(self, call):
        return HttpAnswer(
            200, {"device_keys": {name: self.people[name].devices() for name in call.body["device_keys"]}}
        )

    def claimed(self, call):
        wanted = call.body["one_time_keys"].items()
        return HttpAnswer(
            200, {"one_time_keys": {name: self.people[name].claimed(keys) for name, keys in wanted}}
        )

    @property
    def given(self):
        """Who was given keys, one after the other."""
        return [
            name for call in self.asked("PUT", "/sendToDevice/") for name in sorted(call.body["messages"])
        ]


class Setup:
    def __init__(self, path, folder, *people):
        self.people = [Person(BOT, 1, "OTHER"), *(Person(name, 1) for name in people)]
        self.members = [one.user_id for one in self.people]
        self.server = Slow(path, self.people)
        self.machine = private_olm.OlmMachine(folder, BOT, "DEV", "key")
        self.crypto = EncryptionEngine(
            self.server, SimpleNamespace(renew=None), folder, lambda _: self.machine, LoopClock()
        )
        self.crypto._machine = self.machine

    async def says(self, *, without=()):
        """How long something takes to be sent."""
        began = anyio.current_time()
        members = [one for one in self.members if one not in without]
        await self.crypto.encrypt(ROOM, "m.room.message", {"body": "hi"}, members)
        return anyio.current_time() - began


@pytest.fixture(params=ENDPOINTS)
def it(request, tmp_path):
    one = Setup(request.param, tmp_path, OWNER, EVE, ABROAD)
    yield one
    one.machine.close()


async def test_the_others_get_their_answer(it):
    """Also those on other servers; for the next message nobody waits at all."""
    assert await it.says() < OTHERS_LIMIT_S + 1
    assert set(it.server.given) == {BOT, OWNER, ABROAD}
    assert await it.says() < 1


async def test_who_is_only_slow_reads_the_same_message_later(it):
    """What is given late is the key of the message that was sent, once."""
    it.server.takes_s = OTHERS_LIMIT_S * 2
    await it.says()
    before = it.machine.current_key(ROOM)
    assert it.crypto.to_repair.is_set()
    sent = it.machine.wrap_key
    given = []
    it.machine.wrap_key = lambda key, devices: (
        given.append((key, [one.user_id for one in devices])),
        sent(key, devices),
    )[1]
    await it.crypto.repair()
    await it.crypto.repair()
    await it.says()

    [(key, people)] = given
    assert people == [EVE]
    assert key["session_id"] == before["session_id"]
    assert key["session_key"] != before["session_key"]  # the message has moved it on
    assert it.server.given.count(EVE) == 1


async def test_who_has_gone_meanwhile_is_owed_nothing(it):
    """Neither at once nor with what is said afterwards."""
    it.server.takes_s = OTHERS_LIMIT_S * 2
    await it.says()
    await it.says(without=[EVE])
    await it.crypto.repair()

    assert EVE not in it.server.given


async def test_a_server_that_never_answers_ends_being_asked(it):
    """The try beside the sending has a limit, delays nobody, and is not made again by itself."""
    await it.says()
    asked = len(it.server.calls)
    async with anyio.create_task_group() as group:
        group.start_soon(it.crypto.repair)
        await anyio.sleep(1)
        assert await it.says() < 1
        it.members.remove(EVE)
    it.server.calls.clear()
    await it.crypto.repair()

    assert asked
    assert not it.server.calls


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_our_own_server_is_waited_for(path, tmp_path):
    """The control: where it is slow itself, nothing is sent that the person cannot read."""
    it = Setup(path, tmp_path, OWNER)
    it.server.slow, it.server.takes_s = {OWNER}, 20.0

    assert 20 <= await it.says() < 21
    assert OWNER in it.server.given
    it.machine.close()
