"""
Matrix was switched off in the settings while a message from there waited. Each start of the daemon claimed it,
found no channel to answer on and left it claimed; when Matrix was switched on again, the message had been
started too often and ended in an apology instead of an answer.
"""

from __future__ import annotations

from pathlib import Path

from agent_core.messages import InboundMessage, Sender, SessionKey
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Pending
from gateway.system.clock import SystemClock
from tests.clock import EPOCH
from tests.doubles.loopback import LoopbackServer
from tests.integration.gateway_world import world

STARTS = 4


async def test_what_came_by_a_channel_that_is_off_waits_untouched(tmp_path: Path) -> None:
    """However often the daemon starts without the channel, the message keeps its tries; others are answered."""
    waiting = InboundMessage(
        channel="matrix", account="@bot:hs.test", native_id="$1", session=SessionKey("matrix", "!r:hs.test"),
        sender=Sender(address="@ann:hs.test", verified=True), text="hello?", received_at=EPOCH,
    )  # fmt: skip
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as store:
        await store.inbox.accept("matrix", "@bot:hs.test", [Pending(waiting)], {})

    server = LoopbackServer()
    for _ in range(STARTS):
        async with world(tmp_path, server=server) as there:
            assert (await there.asked("hello")).text
            assert await there.built.store.turns.claim(SessionKey("loopback", "dm-ann")) is None

    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as store:
        turn = await store.turns.claim(waiting.session)
        assert turn is not None
        assert turn.attempts == 1
