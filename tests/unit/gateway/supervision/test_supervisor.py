"""One channel's trouble stays its own, and every channel comes back. On virtual time."""

from __future__ import annotations

import anyio
import pytest
import structlog

from agent_core.backoff import BackoffPolicy
from channels.base import (
    Capabilities,
    ChannelAuthFailed,
    ChannelMisconfigured,
    ChannelUnavailable,
    LinkState,
    Redelivery,
)
from gateway.supervision import supervisor as supervision
from gateway.supervision.supervisor import Supervisor
from tests.clock import LoopClock, ManualClock

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def lines():
    """Log lines, kept instead of drawn: a traceback with all its variables takes a third of a second."""
    with structlog.testing.capture_logs() as caught:
        yield caught


class ScriptedChannel:
    """A channel whose runs go as the script says: seconds of being up, then an exception or an end."""

    account = "bot"
    capabilities = Capabilities(redelivery=Redelivery.REVIEW)

    def __init__(self, name, script=()):
        self.name = name
        self.script = list(script)
        self.started_at = []
        self.cancelled = False

    async def run(self, inbox):
        self.started_at.append(anyio.current_time())
        if not self.script:
            inbox.report(LinkState.UP)
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                self.cancelled = True
                raise
        up_s, error = self.script.pop(0)
        if up_s:
            inbox.report(LinkState.UP, "fine", rooms=3)
            await anyio.sleep(up_s)
        if error is not None:
            raise error


class ReportingInbox:
    def __init__(self, supervisor, name):
        self._supervisor, self._name = supervisor, name

    def report(self, state, detail="", **facts):
        self._supervisor.report(self._name, state, detail, facts)


@pytest.fixture(autouse=True)
def jitter(monkeypatch):
    monkeypatch.setattr(supervision, "random", lambda: 0.5)


def supervise(*channels, **options):
    supervisor = Supervisor(LoopClock(), **options)
    for channel in channels:
        supervisor.watch(channel, ReportingInbox(supervisor, channel.name))
    return supervisor


async def run_for(supervisor, seconds):
    with anyio.move_on_after(seconds):
        await supervisor.run()


def gaps(channel):
    return [
        later - earlier for earlier, later in zip(channel.started_at, channel.started_at[1:], strict=False)
    ]


@pytest.mark.parametrize(
    "error",
    [
        ChannelUnavailable("lost"),
        ChannelAuthFailed("wrong password"),
        ValueError("a defect"),
        None,
        ExceptionGroup("", [ValueError("x"), ChannelUnavailable("y")]),
        RecursionError(),
    ],
)
async def test_no_end_of_one_channel_reaches_another(error):
    """However a channel ends, the other one is never restarted."""
    bad, good = ScriptedChannel("bad", [(0, error)] * 50), ScriptedChannel("good")
    supervisor = supervise(bad, good)
    await run_for(supervisor, 3600)
    assert len(good.started_at) == 1
    assert good.cancelled
    assert len(bad.started_at) > 3


async def test_without_supervision_one_channel_ends_all():
    """The negative control: a plain task group lets one failure stop the others."""
    bad, good = ScriptedChannel("bad", [(1, ChannelUnavailable("lost"))]), ScriptedChannel("good")
    supervisor = supervise(bad, good)
    with pytest.raises(ExceptionGroup):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bad.run, ReportingInbox(supervisor, "bad"))
            tasks.start_soon(good.run, ReportingInbox(supervisor, "good"))
    assert good.cancelled


async def test_delays_grow_until_the_link_was_stable(monkeypatch):
    """Short-lived links wait longer each time; one that was up for a minute starts anew."""
    monkeypatch.setattr(supervision, "random", lambda: 0.999999)
    monkeypatch.setattr(supervision, "LINK_RETRY", BackoffPolicy(first_s=2, cap_s=300))
    lost = ChannelUnavailable("lost")
    channel = ScriptedChannel("c", [(1, lost), (1, lost), (1, lost), (90, lost), (1, lost)])
    supervisor = supervise(channel)
    await run_for(supervisor, 1000)
    assert gaps(channel) == pytest.approx([1 + 2, 1 + 4, 1 + 8, 90 + 2, 1 + 4], abs=0.2)


async def test_a_link_that_reports_up_again_does_not_prolong_its_age(monkeypatch):
    """Being down for a moment in the middle of a run starts the age of the link anew."""
    monkeypatch.setattr(supervision, "random", lambda: 0.999999)

    class Flapping(ScriptedChannel):
        async def run(self, inbox):
            self.started_at.append(anyio.current_time())
            for _ in range(20):
                inbox.report(LinkState.UP)
                await anyio.sleep(5)
                inbox.report(LinkState.DOWN)
            raise ChannelUnavailable("lost")

    channel = Flapping("c")
    await run_for(supervise(channel), 2000)
    assert gaps(channel)[:3] == pytest.approx([102, 104, 104], abs=0.5)


@pytest.mark.parametrize("error", [ChannelAuthFailed("401"), ChannelMisconfigured("no such server")])
async def test_refused_credentials_are_tried_slowly(error):
    """At most every four minutes, later every two hours, so that no account is locked."""
    channel = ScriptedChannel("c", [(0, error)] * 100)
    supervisor = supervise(channel)
    await run_for(supervisor, 24 * 3600)
    assert min(gaps(channel)) >= 240
    assert max(gaps(channel)) <= 7200.5
    assert 8 < len(channel.started_at) < 20
    assert supervisor.status("c").state is LinkState.FAILED
    assert supervisor.status("c").last_error == str(error)


async def test_the_operators_error_decides_in_a_group():
    """A refused login beside a lost link is a refused login."""
    group = ExceptionGroup("", [ChannelUnavailable("lost"), ExceptionGroup("", [ChannelAuthFailed("401")])])
    channel = ScriptedChannel("c", [(0, group)])
    supervisor = supervise(channel)
    await run_for(supervisor, 200)
    assert supervisor.status("c").state is LinkState.FAILED


async def test_retry_after_is_obeyed():
    """A server that asks for a pause gets it, within an hour."""
    channel = ScriptedChannel(
        "c",
        [
            (0, ChannelUnavailable("429", retry_after_s=700)),
            (0, ChannelUnavailable("429", retry_after_s=1e9)),
        ],
    )
    await run_for(supervise(channel), 10_000)
    assert gaps(channel) == pytest.approx([700, 3600], abs=0.5)


async def test_the_status_tells_what_happened():
    """State, detail, facts, errors and restarts are kept, the last error also while the link is up again."""
    changes = []
    channel = ScriptedChannel("c", [(10, ChannelUnavailable("the server hung up"))])
    supervisor = supervise(channel, on_change=lambda status: changes.append((status.state, status.detail)))
    assert supervisor.status("c").state is LinkState.CONNECTING
    await run_for(supervisor, 10.5)
    down = supervisor.status("c")
    assert (down.state, down.detail, down.restarts) == (LinkState.DOWN, "the server hung up", 1)
    assert down.retry_at > down.last_error_at
    assert down.facts == {"rooms": 3}
    assert not supervisor.all_up
    await run_for(supervise(channel), 1)
    assert [state for state, _ in changes] == [LinkState.CONNECTING, LinkState.UP, LinkState.DOWN]

    channel = ScriptedChannel("c", [(10, ChannelUnavailable("the server hung up"))])
    supervisor = supervise(channel)
    await run_for(supervisor, 60)
    up = supervisor.status("c")
    assert (up.state, up.last_error, up.retry_at) == (LinkState.UP, "the server hung up", None)
    assert supervisor.all_up
    assert up.as_dict()["state"] == "up"


async def test_the_status_tells_when_the_server_was_heard_of():
    """What the channel says, at the moment of the question; a channel that does not know says nothing."""
    clock = ManualClock()
    supervisor = Supervisor(clock)

    class TranscribedTurn:
        name, account, last_contact_at = "hearing", "a", None

        async def run(self, inbox):
            raise NotImplementedError

    supervisor.watch(TranscribedTurn(), None)
    assert supervisor.status("hearing").as_dict()["heard_at"] is None
    TranscribedTurn.last_contact_at = clock.now()
    assert supervisor.status("hearing").heard_at == clock.now()
    assert supervisor.statuses()[0].as_dict()["heard_at"] == clock.now().isoformat()


async def test_one_can_wait_for_a_state():
    """`wait` returns with the change, not later."""
    channel = ScriptedChannel("c", [(0, ChannelUnavailable("x"))])
    supervisor = supervise(channel)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(10):
            await supervisor.wait(lambda: supervisor.all_up)
        supervisor.stop()


async def test_stop_ends_every_channel_and_run_returns():
    """A stop cancels what runs and what waits for its next try, without an exception."""
    running, waiting = ScriptedChannel("a"), ScriptedChannel("b", [(0, ChannelAuthFailed("401"))])
    supervisor = supervise(running, waiting)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        await anyio.sleep(1)
        supervisor.stop()
    assert running.cancelled
    assert len(waiting.started_at) == 1
    await supervisor.run()
    assert len(running.started_at) == 1


async def test_a_defect_is_logged_with_its_traceback_and_a_lost_link_without(lines):
    """What nobody expected can be found in the log; what is usual does not fill it."""
    channel = ScriptedChannel(
        "c", [(0, ValueError("a defect")), (0, ChannelUnavailable("lost", host="h", event="x"))]
    )
    await run_for(supervise(channel), 30)
    crashed = next(line for line in lines if line["event"] == "channel.crashed")
    assert isinstance(crashed["exc_info"], ValueError)
    lost = next(line for line in lines if line["event"] == "channel.lost")
    assert lost["host"] == "h"
    assert "exc_info" not in lost


async def test_two_channels_of_one_name_are_refused():
    """A name is an identity."""
    with pytest.raises(ValueError, match="two channels"):
        supervise(ScriptedChannel("a"), ScriptedChannel("a"))


async def test_since_when_it_is_down_outlives_each_vain_try():
    """The time when the link was lost, not that of the newest try; a link that comes back is up since then."""
    lost = ChannelUnavailable("lost")
    channel = ScriptedChannel("c", [(100, lost), (0, lost), (0, lost), (0, lost)])
    supervisor = supervise(channel)
    began = anyio.current_time()
    states = {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        for _ in range(3000):
            await anyio.sleep(0.5)
            status = supervisor.status("c")
            states.setdefault((status.state.value, len(channel.started_at)), status.since)
        tasks.cancel_scope.cancel()
    away = {since for (state, _), since in states.items() if state == "down"}
    assert len(channel.started_at) == 5
    assert len(away) == 1, states
    assert supervisor.status("c").since > away.pop()
    assert anyio.current_time() - began == 1500
