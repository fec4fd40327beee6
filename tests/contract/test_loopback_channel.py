"""The loopback channel keeps the contract, with each rule of redelivery, in memory and in a folder."""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from agent_core.messages import SessionKey
from channels.base import DeliveryFailed, Redelivery
from tests.contract import channel as contract
from tests.doubles.loopback import FileLoopbackServer, LoopbackChannel, LoopbackServer


class LoopbackFarSide(contract.FarSide):
    session = SessionKey("loopback", "dm-alice")
    other_session = SessionKey("loopback", "dm-bob")

    def __init__(self, server: LoopbackServer, make=LoopbackChannel) -> None:
        super().__init__()
        self.server = server
        self.make = make

    def channel(self):
        self.server.drop_link()
        self.server.answer_delay_s = 0.0
        return self.make(self.server)

    async def say(self, text, *, session=None):
        person = (session or self.session).conversation.removeprefix("dm-")
        self.server.say(person, text)

    async def seen(self, session=None):
        return [delivered.text for delivered in self.server.seen((session or self.session).conversation)]

    async def go_down(self):
        self.server.go_down()

    async def come_back(self):
        self.server.come_back()

    async def refuse_login(self):
        self.server.refuse_login = True

    async def refuse_message(self):
        self.server.fail_deliveries(DeliveryFailed("no such person"))

    async def lose_answer(self):
        self.server.lose_answers()

    async def stall_answer(self):
        self.server.answer_delay_s = 3600.0

    async def until_seen(self, count):
        seen = await super().until_seen(count)
        # A stalled answer stalls one delivery.
        self.server.answer_delay_s = 0.0
        return seen


class LoopbackContract(
    contract.ReceivingContract,
    contract.LinkContract,
    contract.LoginContract,
    contract.DeliveryContract,
    contract.RefusalContract,
    contract.LostAnswerContract,
    contract.PrivacyContract,
    contract.CloseContract,
):
    redelivery: Redelivery

    @asynccontextmanager
    async def far_side(self):
        yield LoopbackFarSide(LoopbackServer(redelivery=self.redelivery))


class TestSameKey(LoopbackContract):
    redelivery = Redelivery.SAME_KEY


class TestProbe(LoopbackContract, contract.ProbeContract):
    redelivery = Redelivery.PROBE


class TestPark(LoopbackContract):
    redelivery = Redelivery.REVIEW


class TestSameKeyInAFolder(LoopbackContract):
    redelivery = Redelivery.SAME_KEY

    @asynccontextmanager
    async def far_side(self):
        with tempfile.TemporaryDirectory() as folder:
            yield LoopbackFarSide(FileLoopbackServer(Path(folder), redelivery=self.redelivery))


class TestProbeInAFolder(TestSameKeyInAFolder, contract.ProbeContract):
    redelivery = Redelivery.PROBE
