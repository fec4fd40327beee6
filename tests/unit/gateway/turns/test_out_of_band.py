"""Commands beside a running turn that meet an error which passes: they are tried again in time, and only then."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest

from agent_core.messages import Audience, InboundMessage, SessionKey
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, Pending
from gateway.store.wakeups import Wakeups
from gateway.turns.dispatcher import SessionDispatcher
from gateway.turns.out_of_band import OutOfBandTurns
from tests.clock import LoopClock
from tests.inbound import inbound

pytestmark = pytest.mark.virtual_time
PLACE = SessionKey("matrix", "!room:hs.test")


def said(text: str) -> InboundMessage:
    return inbound(PLACE, "@ann:hs.test", text, text, audience=Audience.DIRECT)


async def test_a_command_that_was_put_back_beside_a_running_turn_is_due_in_its_time(tmp_path):
    """The question before it runs all the time, a message waits behind; nothing else wakes the session."""
    wakeups, ran, claims = Wakeups(), [], 0
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=LoopClock(), wakeups=wakeups) as store:
        await store.inbox.accept("matrix", "bot", [Pending(said("a long question"))], {})
        assert await store.turns.claim(PLACE) is not None

        async def run_claimed_turn(turn) -> None:
            ran.append(anyio.current_time())
            if len(ran) == 1:
                await store.turns.retry(turn, "the disk is away", delay_s=30, deferral=True)
            else:
                await store.turns.complete(turn, Completion())

        async def flush(_session) -> None:
            nonlocal claims
            claims += 1

        turns = OutOfBandTurns(
            SessionDispatcher(),
            store=store,
            history=SimpleNamespace(flush=flush),
            commands=SimpleNamespace(is_quick=lambda _: True),
            channels=["matrix"],
            run_claimed_turn=run_claimed_turn,
            dispatcher=SessionDispatcher(),
        )
        wakeups.session.connect(turns.handle_work)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.run)
            await store.inbox.accept("matrix", "bot", [Pending(said("!status"), alone=True)], {})
            await store.inbox.accept("matrix", "bot", [Pending(said("and a message"))], {})
            for _ in range(3600):  # second by second, because the store works in a thread of its own
                await anyio.sleep(1)
                if len(ran) == 2:
                    break
            await anyio.sleep(600)
            turns.stop()
            tasks.cancel_scope.cancel()
    assert len(ran) == 2
    assert ran[1] - ran[0] >= 29
    assert claims < 10, "a message that waits behind the running turn makes nobody look again and again"
