"""The devices of whoever will be answered are asked for while the answer is being made."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest

from agent_core.messages import Audience, SessionKey
from channels.base import ChannelUnavailable
from channels.matrix.receive.decryption import Decryption
from channels.matrix.receive.sync_loop import SyncReceiver
from tests.clock import ManualClock
from tests.doubles.homeserver import ANYBODY
from tests.inbound import inbound

BOT, ANN, FAR = "@bot:hs.test", "@ann:hs.test", "@far:other.test"


class Keys:
    """Notes who is asked for; the first ``failing`` times it cannot be done."""

    signed_only = False

    def __init__(self):
        self.asked = []
        self.failing = 0
        self.to_repair = anyio.Event()
        self.held = anyio.Event()
        self.held.set()

    async def learn_devices(self, users):
        self.asked.append(sorted(users))
        await self.held.wait()
        if self.failing:
            self.failing -= 1
            raise ChannelUnavailable("not now")


@pytest.fixture
def keys():
    return Keys()


@pytest.fixture
def reading(keys):
    others = SimpleNamespace(learn=lambda *_: None, run=anyio.sleep_forever)
    return Decryption(None, None, keys, others, ManualClock(), user_id=BOT, rules=ANYBODY)


async def tell(*_):
    """Nobody is told anything here."""


async def test_they_are_asked_for_beside_everything_else(reading, keys):
    """Whoever asks waits for nothing; what comes meanwhile goes together; a failure ends nothing."""
    keys.held = anyio.Event()
    keys.failing = 1
    async with anyio.create_task_group() as group:
        group.start_soon(reading.run, tell, tell)
        await anyio.wait_all_tasks_blocked()
        reading.prefetch_devices(ANN)
        await anyio.wait_all_tasks_blocked()
        reading.prefetch_devices("@bob:hs.test")
        reading.prefetch_devices("@cid:hs.test")
        await anyio.wait_all_tasks_blocked()
        assert keys.asked == [[ANN, BOT]]
        keys.held.set()
        await anyio.wait_all_tasks_blocked()
        assert keys.asked == [[ANN, BOT], ["@bob:hs.test", BOT, "@cid:hs.test"]]
        group.cancel_scope.cancel()


async def test_people_of_other_servers_are_left_to_the_sending(reading, keys):
    """It has a limit of time for each of them, and owes them the key beyond that."""
    async with anyio.create_task_group() as group:
        group.start_soon(reading.run, tell, tell)
        reading.prefetch_devices(FAR)
        await anyio.wait_all_tasks_blocked()
        assert keys.asked == []
        group.cancel_scope.cancel()


def said(text, room="!secret", **more):
    return inbound(
        SessionKey("matrix", room),
        ANN,
        text,
        text,
        account=BOT,
        received_at=ManualClock().now(),
        verified=False,
        audience=Audience.DIRECT,
        **more,
    )


def test_only_what_is_answered_in_an_encrypted_room_counts():
    """Not what is only overheard, and not what is said in clear."""
    heard = []
    receiver = SyncReceiver.__new__(SyncReceiver)
    receiver._rooms = SimpleNamespace(secret={"!secret"})
    receiver._decryption = SimpleNamespace(prefetch_devices=heard.append)
    receiver._expect_answers([said("overheard", addressed=False), said("in clear", room="!plain")])
    assert heard == []
    receiver._expect_answers(
        [said("a question"), said("in a thread", room="!secret:t", context={"route": {"room": "!secret"}})]
    )
    assert heard == [ANN, ANN]
