"""What a gateway in earnest tells machines: nobody by name, and when its turns stand still."""

from __future__ import annotations

import anyio

from gateway.observability import metrics
from gateway.operations.operation_context import OperationContext
from tests.clock import EPOCH, ManualClock
from tests.doubles.queue import wrapping
from tests.integration.gateway_world import world

CANARY = "c4n4ry"


async def test_nobody_is_named_to_machines(tmp_path):
    """People and texts with a mark in them, answered, failed and refused: no metric, no status, no page has it."""
    async with world(tmp_path / "home", allow_from={"loopback": (f"{CANARY}-ann",)}) as one:
        await one.asked(f"hello {CANARY}", person=f"{CANARY}-ann")
        await one.asked(f"!toolfail {CANARY}", person=f"{CANARY}-ann")
        one.server.groups = {"room"}
        one.server.say(f"{CANARY}-stranger", f"let me in {CANARY}", conversation="room")
        with anyio.fail_after(60):
            while (await one.built.store.maintenance.stats()).inbox["ignored"] == 0:
                await anyio.sleep(0.02)

        metrics.show_store(await one.built.store.maintenance.stats())
        status = await OperationContext(one.built.store, one.built.memory, status=one.built.status.read).call(
            "status", {}
        )
        told = metrics.exposition().decode()
        assert 'squidbot_inbound_ignored_total{channel="loopback",reason="sender_not_allowed"}' in told
        for text in (told, str(status), one.built.status.one_line()):
            assert "loopback" in text
            assert CANARY not in text
        # The mark is there where it belongs: the check looks at a gateway that has it.
        assert CANARY in str(await one.built.store.inbox.rows(limit=5))


class HangingStore:
    """A store whose ``claim`` does not come back while ``hang`` is set: a defect that no time limit covers."""

    def __init__(self, store):
        self._store = store
        self.hang = anyio.Event()
        self.hanging = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def claim(self, *arguments, **named):
        if self.hanging:
            await self.hang.wait()
        return await self._store.claim(*arguments, **named)


async def test_a_turn_that_hangs_is_told(tmp_path):
    """
    A session that never comes back is told once its time is up, also while others are answered; when it comes
    back, all is well again.
    """
    stores = []
    clock = ManualClock(EPOCH)

    def hanging(store):
        stores.append(HangingStore(store))
        return stores[0]

    async def pass_by(built, minutes):
        for _ in range(2 * minutes):
            clock.advance(30)
            await built.watchdog.check_once()

    limits = {"llm": {"limits": {"seconds": 60}}, "agents": {"heartbeat": {"limits": {"seconds": 60}}}}
    async with world(
        tmp_path / "home", settings=limits, clock=clock, wrap_queue=wrapping(turns=hanging)
    ) as one:
        await one.asked("hello")
        await pass_by(one.built, 60)
        assert one.built.watchdog.reason() is None
        stores[0].hanging = True
        one.server.say("ann", "are you there?")
        with anyio.fail_after(60):
            while not one.built.dispatcher.running():
                await anyio.sleep(0.02)
        stores[0].hanging = False
        await one.asked("and I?", person="bob")
        await pass_by(one.built, 6)
        assert one.built.watchdog.reason() is None
        await pass_by(one.built, 3)
        assert "a turn has been running" in (one.built.watchdog.reason() or "")
        stores[0].hang.set()
        await one.server.answers(2, conversation="dm-ann")
        with anyio.fail_after(60):
            while one.built.dispatcher.running():
                await anyio.sleep(0.02)
        await pass_by(one.built, 1)
        assert one.built.watchdog.reason() is None
