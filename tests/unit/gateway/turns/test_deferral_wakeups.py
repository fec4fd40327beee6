"""What waits for a link is due as soon as that link can carry it. The whole way is in tests/incidents."""

from __future__ import annotations

from datetime import UTC
from types import SimpleNamespace

import anyio
import pytest

from agent_core.errors import CreditSpent, ModelUnavailable
from channels.base import LinkState
from channels.status import ChannelStatus
from gateway.store.states import BUDGET, MODEL, link_wait
from gateway.store.wakeups import Wakeups
from gateway.turns.failure_and_deferral import DeferralWakeups
from tests.clock import EPOCH, LoopClock

pytestmark = pytest.mark.virtual_time


async def ended_by(*states: LinkState) -> list[str]:
    """What is due after these states of a channel, each a second after the other."""
    due: list[str] = []

    async def due_now(waits_for: str) -> None:
        due.append(waits_for)

    wakeups = Wakeups()
    store = SimpleNamespace(maintenance=SimpleNamespace(due_now=due_now))
    deferrals = DeferralWakeups(store, clock=LoopClock(), zone=UTC, wakeups=wakeups)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deferrals.run)
        for state in states:
            await anyio.sleep(1)
            wakeups.channel.fire(ChannelStatus("matrix", "bot", state, EPOCH))
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    return due


@pytest.mark.parametrize(("error", "ended"), [(CreditSpent("402"), BUDGET), (ModelUnavailable("503"), MODEL)])
async def test_what_waits_for_a_model_or_its_credit_is_due_when_it_answers(error, ended) -> None:
    wakeups, due = Wakeups(), []

    async def due_now(waits_for: str) -> None:
        due.append(waits_for)

    store = SimpleNamespace(maintenance=SimpleNamespace(due_now=due_now))
    deferrals = DeferralWakeups(store, clock=LoopClock(), zone=UTC, wakeups=wakeups)  # type: ignore[arg-type]
    await deferrals.wake_due()
    wakeups.recovery.fire(error)
    await deferrals.wake_due()
    await deferrals.wake_due()
    assert due == [ended]


@pytest.mark.parametrize(
    ("states", "times"),
    [
        ([LinkState.CONNECTING, LinkState.DOWN], 0),
        ([LinkState.CATCHING_UP], 1),
        ([LinkState.UP, LinkState.UP], 1),
        ([LinkState.CATCHING_UP, LinkState.UP], 2),  # it may not have been able to send before
        ([LinkState.CATCHING_UP, LinkState.UP, LinkState.DOWN, LinkState.CATCHING_UP, LinkState.UP], 4),
    ],
)
async def test_waits_end_when_the_link_comes_up_and_when_it_has_caught_up(
    states: list[LinkState], times: int
) -> None:
    assert await ended_by(*states) == [link_wait("matrix")] * times
