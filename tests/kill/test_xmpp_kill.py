"""
The XMPP channel of `examples/`, as a wheel in a real daemon on a real prosody, killed at random moments.

Two people write to the bot alone and in a room. Each message says its number, and the answer repeats it, so what
they see tells what was lost and what came twice.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

pytest.importorskip("slixmpp")

from tests import xmpp_server
from tests.daemon import Daemon
from tests.example_wheels import NO_UV, UV, environment_with
from tests.kill.tally import TALLY, THOROUGH, chance
from tests.xmpp_server import ROOM, CuttingRelay, XmppPerson, XmppServer

KILLS = 40 if THOROUGH else 10
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300 + 30 * KILLS, func_only=True),
    pytest.mark.skipif(xmpp_server.PROGRAM is None, reason=xmpp_server.MISSING),
    pytest.mark.skipif(not Path(UV).exists(), reason=NO_UV),
]
NUMBER = re.compile(r"#([0-9]+)")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the channel's wheel."""
    return environment_with(tmp_path_factory.mktemp("wheels"), "squidbot-xmpp")


def settings_for(account):
    return {
        "owner": {"aliases": [{"channel": "xmpp", "address": "alice@localhost"}]},
        "llm": {
            "models": {"echo": {"model": "demo/echo"}},
            "pools": {"main": ["echo"]},
            "default_pool": "main",
        },
        "agents": {"heartbeat": {"enabled": False}},
        "plugins": {"enabled": ["xmpp"]},
        "channels": {"xmpp": {**account, "allow_from": ["bob@localhost"], "batching": "each"}},
    }


class People:
    """Alice and Bob, alone with the bot and in a room. ``said`` has the place of each number."""

    def __init__(self, alice: XmppPerson, bob: XmppPerson) -> None:
        self.alice, self.bob = alice, bob
        self.said: list[str] = []

    async def say(self, moments: random.Random) -> None:
        person = moments.choice([self.alice, self.bob])
        in_room = moments.random() < 0.4
        text = f"#{len(self.said)}#"
        self.said.append(ROOM if in_room else person.jid)
        await person.say(
            ROOM if in_room else "squid@localhost", f"squid: {text}" if in_room else text, room=in_room
        )

    def answers(self) -> Counter[tuple[str, int]]:
        """How often each number was answered, and where."""
        found: Counter[tuple[str, int]] = Counter()
        for person in (self.alice, self.bob):
            for sender, text in person.seen:
                place = ROOM if sender == f"{ROOM}/squid" else person.jid
                if "squid" not in sender or (place == ROOM and person is self.bob):
                    continue
                number = NUMBER.search(text)
                found[place, int(number[1]) if number else -1] += 1
        return found

    def wanted(self) -> Counter[tuple[str, int]]:
        return Counter((place, number) for number, place in enumerate(self.said))


async def test_sigkill_at_random_moments(python, tmp_path):
    """Whatever the moment, each message has one answer, in its place."""
    moments, server = chance("xmpp"), XmppServer(tmp_path)
    await server.start()
    try:
        async with XmppPerson(server, "alice") as alice, XmppPerson(server, "bob") as bob:
            await alice.join(ROOM, shows_addresses=True)
            await bob.join(ROOM)
            people = People(alice, bob)
            with Daemon(tmp_path / "home", settings_for(server.account(rooms=[ROOM]))) as daemon:
                daemon.python = python
                await run_sync(daemon.up)
                for _ in range(KILLS):
                    for _ in range(moments.randint(1, 3)):
                        await people.say(moments)
                    await anyio.sleep(moments.choice([moments.uniform(0, 0.4), moments.uniform(0.8, 3)]))
                    await run_sync(daemon.kill)
                    TALLY["of the daemon on real XMPP"] += 1
                    await people.say(moments)
                    await run_sync(daemon.start)
                await run_sync(daemon.wait_until, lambda: daemon.work("inbox", "settled") == len(people.said))
                await alice.catch_up()
                await bob.catch_up()
                assert people.answers() == people.wanted(), daemon.log()[-4000:]
                assert daemon.work("outbox", "unknown", "dead") == 0
                daemon.terminate()
                assert await run_sync(daemon.ended) == 0
                assert xmpp_server.PASSWORD not in daemon.log()
    finally:
        server.close()


@pytest.mark.parametrize(("module", "times"), [("gateway", 1), ("tests.kill.probeless_xmpp_daemon", 2)])
async def test_an_answer_whose_receipt_is_lost_comes_once(python, tmp_path, module, times):
    """The connection ends behind the answer. The control sends again without a look, and is noticed."""
    server = XmppServer(tmp_path)
    await server.start()
    try:
        async with CuttingRelay(server.port) as relay, XmppPerson(server, "alice") as alice:
            with Daemon(tmp_path / "home", settings_for(server.account(port=relay.port))) as daemon:
                daemon.python, daemon.module = python, module
                await run_sync(daemon.up)
                relay.cuts = True
                await alice.say("squid@localhost", "#0#")
                await run_sync(daemon.wait_until, lambda: daemon.work("inbox", "settled") == 1)
                await alice.until(lambda: len(alice.seen) >= times)
                assert not relay.cuts
                assert [text for _, text in alice.seen] == ["echo: #0#"] * times
    finally:
        server.close()
