"""
A wait ends with its reason. After 45 s without a homeserver a reminder and the owner's question had waited out
back-offs of up to 27 s more; after the budget was raised and the daemon restarted, questions waited for up to
half an hour, and so did those behind them. After a mail password was corrected and the daemon restarted, an answer
waited for up to two hours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.backoff import BackoffPolicy
from agent_core.messages import SessionKey
from channels.base import ChannelAuthFailed, ChannelUnavailable
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.store.model import JobKind
from gateway.store.states import BUDGET, InboxState, OutboxState
from gateway.store.stores import StoreUnavailable
from gateway.system.clock import SystemClock
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.doubles.queue import wrapping
from tests.integration.gateway_world import Scenario, world

pytestmark = pytest.mark.slow

ANN, BOB = "@ann:hs.test", "@bob:hs.test"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """All back-offs are minutes, so that what comes within this test has not waited for one."""
    monkeypatch.setattr("gateway.routing.delivery._SEND_RETRY", BackoffPolicy(first_s=300.0, cap_s=300.0))
    monkeypatch.setattr(
        "gateway.turns.failure_and_deferral._MODEL_RETRY", BackoffPolicy(first_s=300.0, cap_s=300.0)
    )
    monkeypatch.setattr("gateway.proactive.jobs.scheduler._CHECK_EVERY_S", 300.0)


class Forgetful(LoopbackChannel):
    """Does not know who is in its conversations as long as its link has not been up."""

    def __init__(self, server: LoopbackServer, **more: Any) -> None:
        super().__init__(server, **more)
        self.knows = True
        self.asked = 0

    def _know(self) -> None:
        self.asked += 1
        if not self.knows:
            raise ChannelUnavailable("nothing is known of the rooms yet")

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        self._know()
        return await super().alone_with(session, person)


class Ruled(Forgetful):
    """Has a rule for each conversation, too."""

    def allowed_here(self, session: SessionKey, person: str) -> bool | None:
        self._know()
        return None


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(60):
        while not await condition():
            await anyio.sleep(0.05)


def house(tmp_path: Path, channel: type[Forgetful] = Forgetful, **more: Any) -> tuple[Forgetful, Any]:
    server = LoopbackServer()
    made = channel(server, name="matrix")
    given: dict[str, Any] = {
        "server": server,
        "name": "matrix",
        "settings": {"owner": {"aliases": [{"channel": "matrix", "address": ANN}]}},
        "channels": {"matrix": (made, "each")},
    }
    return made, world(tmp_path, **{**given, **more})


async def reconnected(one: Scenario, channel: Forgetful) -> None:
    """The link breaks and comes up again."""
    one.server.drop_link()
    await one.built.supervisor.wait(lambda: not one.built.supervisor.all_up)
    channel.knows = True
    await one.built.supervisor.wait(lambda: one.built.supervisor.all_up)


async def tried(one: Scenario, times: int) -> None:
    """An answer has been tried so often, and waits."""

    async def so_often() -> bool:
        rows = await one.built.store.outbox.rows(states=[OutboxState.PENDING, OutboxState.UNCERTAIN])
        return bool(rows) and rows[0].attempts == times and rows[0].error is not None

    await until(so_often)


async def test_an_answer_goes_out_when_the_link_comes_up(tmp_path: Path) -> None:
    """A try has failed; the next one would be minutes later."""
    channel, there = house(tmp_path)
    async with there as one:
        await one.asked("hello", person=ANN)
        one.server.fail_deliveries(ChannelUnavailable("502"))
        one.server.say(ANN, "and now?")
        await tried(one, 1)
        await reconnected(one, channel)
        await one.server.answers(2, conversation=f"dm-{ANN}")


async def test_an_answer_goes_out_when_a_corrected_login_comes_up(tmp_path: Path) -> None:
    """The pause after a refused login is ours: a daemon with the new password does not wait for the end of it."""
    channel, there = house(tmp_path)
    async with there as one:
        await one.asked("hello", person=ANN)
        one.server.fail_deliveries(ChannelAuthFailed("535", retry_after_s=7200.0))
        one.server.say(ANN, "and now?")
        await tried(one, 1)
        await reconnected(one, channel)
        await one.server.answers(2, conversation=f"dm-{ANN}")


async def test_a_server_that_names_a_time_is_not_asked_sooner(tmp_path: Path) -> None:
    """The control: what waits because of its own request waits on."""
    channel, there = house(tmp_path)
    async with there as one:
        one.server.fail_deliveries(ChannelUnavailable("slow down", retry_after_s=60.0))
        one.server.say(ANN, "hello")

        await tried(one, 1)
        await reconnected(one, channel)
        one.server.say(BOB, "hello")
        await one.server.answers(1, conversation=f"dm-{BOB}")
        assert one.server.seen(f"dm-{ANN}") == []


async def reminder(one: Scenario, seconds: float) -> None:
    at = one.built.clock.now() + timedelta(seconds=seconds)
    place = JobPlace(SessionKey("matrix", f"dm-{ANN}"), one.built.channels["matrix"].account, ANN)
    await one.built.proactive.jobs.add(
        place, TriggerRequest(at=at.isoformat()), text="tea", kind=JobKind.REMIND
    )


@pytest.mark.parametrize("kind", [Forgetful, Ruled])
async def test_a_reminder_comes_when_the_link_comes_up(kind: type[Forgetful], tmp_path: Path) -> None:
    """Whether the schedule waits (who may speak is not known) or its turn does (who reads along is not)."""
    channel, there = house(tmp_path, kind)
    async with there as one:
        await one.asked("hello", person=ANN)
        await reminder(one, 1.0)
        channel.knows, channel.asked = False, 0

        async def was_due() -> bool:
            return channel.asked > 0 and "running" not in await one.inbox()

        await until(was_due)
        await anyio.sleep(0.2)
        before = len(one.server.seen(f"dm-{ANN}"))
        await reconnected(one, channel)
        told = await one.server.answers(before + 1, conversation=f"dm-{ANN}")
        assert told[-1].text.startswith("tea")


def spent(tokens: int) -> dict[str, Any]:
    return {
        "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
        "llm": {"budget": {"tokens_per_day": tokens, "timezone": "UTC"}},
    }


async def _waiting(one: Scenario) -> bool:
    rows = await one.built.store.inbox.rows(states=[InboxState.READY])
    return bool(rows) and rows[-1].next_at is not None


async def wait_for_the_budget(one: Scenario) -> None:
    """A question waits, and its person was told."""
    await one.asked("hello", person=ANN)
    one.server.say(ANN, "more")
    await until(lambda: _waiting(one))
    one.server.say(ANN, "behind it")


async def test_a_raised_budget_is_seen_at_the_start(tmp_path: Path) -> None:
    """What waits, and what waits behind it, is answered at once; with the old limit nothing happens."""
    _, there = house(tmp_path, settings=spent(1))
    async with there as one:
        await wait_for_the_budget(one)
        server = one.server
    texts = [each.text for each in server.seen(f"dm-{ANN}")]
    _, there = house(tmp_path, settings=spent(1), server=server, channels=_on(server))
    async with there as one:
        await until(lambda: _waiting(one))  # it was looked at, and put off again
        assert [each.text for each in server.seen(f"dm-{ANN}")] == texts
    _, there = house(tmp_path, settings=spent(1_000_000), server=server, channels=_on(server))
    async with there:
        told = await server.answers(len(texts) + 2, conversation=f"dm-{ANN}")
        assert len(told) == len(texts) + 2


def _on(server: LoopbackServer) -> dict[str, Any]:
    return {"matrix": (Forgetful(server, name="matrix"), "each")}


class Jumping(SystemClock):
    """A wall clock that somebody sets; waiting goes on as it did."""

    set_by = timedelta(0)

    def now(self) -> Any:
        return super().now() + self.set_by


@pytest.mark.parametrize("jump", [timedelta(days=1), timedelta(days=-1), timedelta(minutes=-2)])
async def test_the_clock_is_set_while_questions_wait_for_the_budget(
    jump: timedelta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another day they are answered within one look at the clock; on the same day they are looked at again."""
    monkeypatch.setattr("gateway.turns.failure_and_deferral.CHECK_EVERY_S", 0.2)
    clock = Jumping()
    _, there = house(tmp_path, settings=spent(1), clock=clock)
    async with there as one:
        await wait_for_the_budget(one)
        before = len(one.server.seen(f"dm-{ANN}"))
        clock.set_by = jump
        if abs(jump) >= timedelta(days=1):
            await one.server.answers(before + 1, conversation=f"dm-{ANN}", within_s=60)
            return

        async def looked_at() -> bool:
            rows = await one.built.store.inbox.rows(states=[InboxState.READY])
            due_at = rows[-1].next_at if rows else None
            return due_at is not None and due_at - clock.now() <= timedelta(minutes=30)

        await until(looked_at)  # otherwise it waits for a time that was


async def test_what_the_disk_did_not_take_is_ended_later(tmp_path: Path) -> None:
    """A wait that cannot be ended now is ended when the store takes it."""
    refusals = 3

    def wrap(store: Any) -> Any:
        class Refusing:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def due_now(self, waits_for: str) -> None:
                nonlocal refusals
                if waits_for != BUDGET and refusals:
                    refusals -= 1
                    raise StoreUnavailable("full", path="x", operation="due_now")
                await store.due_now(waits_for)

        return Refusing()

    channel, there = house(tmp_path, wrap_queue=wrapping(maintenance=wrap))
    async with there as one:
        one.server.fail_deliveries(ChannelUnavailable("502"))
        one.server.say(ANN, "hello")
        await tried(one, 1)
        refusals = 3
        await reconnected(one, channel)
        await one.server.answers(1, conversation=f"dm-{ANN}")
        assert refusals == 0
