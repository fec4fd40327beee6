"""The embedded dispatcher: whoever is woken runs, once, in a line, and again if it failed. On virtual time."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from agent_core.messages import SessionKey
from gateway.turns import dispatcher as dispatching
from gateway.turns.dispatcher import SessionDispatcher

pytestmark = pytest.mark.virtual_time
A, B, C = (SessionKey("test", name) for name in "abc")


class Runs:
    """A ``run_session`` that notes when it ran."""

    def __init__(self, takes_s: float = 1.0) -> None:
        self.takes_s = takes_s
        self.begun: list[tuple[str, float]] = []
        self.inside: list[SessionKey] = []
        self.most = 0
        self.zero = anyio.current_time()
        self.fail_times = 0

    async def __call__(self, session: SessionKey) -> None:
        assert session not in self.inside
        self.begun.append((session.conversation, round(anyio.current_time() - self.zero, 1)))
        self.inside.append(session)
        self.most = max(self.most, len(self.inside))
        try:
            await anyio.sleep(self.takes_s)
            if self.fail_times:
                self.fail_times -= 1
                raise ValueError("boom")
        finally:
            self.inside.remove(session)

    @property
    def names(self) -> str:
        return "".join(name for name, _ in self.begun)


@asynccontextmanager
async def running(dispatcher: SessionDispatcher, runs):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dispatcher.run, runs)
        yield
        dispatcher.stop()


async def test_whoever_is_woken_runs():
    """Also what was woken before `run`; different sessions run at once."""
    dispatcher, runs = SessionDispatcher(), Runs()
    dispatcher.wake(A)
    async with running(dispatcher, runs):
        dispatcher.wake(B)
        await anyio.sleep(0.5)
        assert set(dispatcher.running()) == {A, B}
        await anyio.sleep(5)
    assert runs.names == "ab"


async def test_wake_ups_of_one_session_are_one():
    """However often a session is woken before it runs, it runs once."""
    dispatcher, runs = SessionDispatcher(), Runs()
    for _ in range(1000):
        dispatcher.wake(A)
    assert dispatcher.waiting() == 1
    async with running(dispatcher, runs):
        await anyio.sleep(10)
    assert runs.names == "a"


async def test_a_wake_up_during_a_run_means_one_run_more():
    """What came while the session ran may have been missed by it: once more, not more often, not at once."""
    dispatcher, runs = SessionDispatcher(), Runs()
    async with running(dispatcher, runs):
        dispatcher.wake(A)
        await anyio.sleep(0.5)
        for _ in range(5):
            dispatcher.wake(A)
        await anyio.sleep(10)
    assert runs.begun == [("a", 0.0), ("a", 1.0)]


async def test_a_delayed_wake_up_comes_in_its_time():
    """Not before its time; a wake-up at once does not take it away."""
    dispatcher, runs = SessionDispatcher(), Runs(takes_s=0.1)
    async with running(dispatcher, runs):
        dispatcher.wake(A, after_s=60)
        dispatcher.wake(B, after_s=30)
        dispatcher.wake(A)
        await anyio.sleep(100)
        assert dispatcher.count_delayed_sessions() == 0
    assert [name for name, _ in runs.begun] == ["a", "b", "a"]
    assert [at for _, at in runs.begun] == pytest.approx([0, 30, 60], abs=0.3)


async def test_an_earlier_delay_is_not_lost_to_a_later_one():
    """Of several delays of one session each is kept, and equal ones are one."""
    dispatcher, runs = SessionDispatcher(), Runs(takes_s=0.1)
    async with running(dispatcher, runs):
        dispatcher.wake(A, after_s=50)
        dispatcher.wake(A, after_s=10)
        dispatcher.wake(A, after_s=30)
        await anyio.sleep(100)
    assert [at for _, at in runs.begun] == pytest.approx([10, 30, 50], abs=0.3)


async def test_many_delays_of_one_session_are_joined_never_lost():
    """The first and the last of many delays are kept, and a dropped one has a later one after it."""
    dispatcher, runs = SessionDispatcher(), Runs(takes_s=0.1)
    async with running(dispatcher, runs):
        for delay_s in range(1, 5001):
            dispatcher.wake(A, after_s=delay_s)
        assert dispatcher.count_delayed_sessions() == 1
        assert len(dispatcher._heap) < 2000
        await anyio.sleep(6000)
    times = [at for _, at in runs.begun]
    assert len(times) <= 5
    assert times[0] == pytest.approx(1, abs=0.3)
    assert times[-1] == pytest.approx(5000, abs=1)


async def test_a_run_that_raises_comes_again_later_and_later():
    """The session is woken again with a growing delay, until it works; then it begins from the start."""
    dispatcher, runs = SessionDispatcher(), Runs(takes_s=0)
    runs.fail_times = 6
    async with running(dispatcher, runs):
        dispatcher.wake(A)
        dispatcher.wake(B, after_s=5000)
        await anyio.sleep(10_000)
    gaps = [later - earlier for (_, earlier), (_, later) in zip(runs.begun, runs.begun[1:7], strict=False)]
    assert dispatcher.failed == 6
    assert runs.names == "aaaaaaab"
    for number, gap in enumerate(gaps):
        assert 0.5 * 2**number * 0.9 <= gap <= 2**number + 0.4


async def test_the_back_off_has_a_ceiling():
    """However often it failed, a session is tried at least every five minutes."""
    dispatcher, runs = SessionDispatcher(), Runs(takes_s=0)
    runs.fail_times = 1_000_000
    async with running(dispatcher, runs):
        dispatcher.wake(A)
        await anyio.sleep(5_000)
    gaps = [later - earlier for (_, earlier), (_, later) in zip(runs.begun, runs.begun[1:], strict=False)]
    assert max(gaps) <= 301
    assert len(gaps) >= 5_000 / 300


async def test_a_failing_session_disturbs_nobody():
    """The others run as if nothing had happened."""
    dispatcher = SessionDispatcher(concurrency=1)
    ran = []

    async def run_session(session: SessionKey) -> None:
        ran.append(session)
        if session == A:
            raise ValueError("boom")

    async with running(dispatcher, run_session):
        for session in (A, B, C):
            dispatcher.wake(session)
        await anyio.sleep(0.1)
    assert ran == [A, B, C]


async def test_a_hot_session_shares_its_place():
    """A session that wakes itself again after each turn stands in line behind the others."""
    dispatcher = SessionDispatcher(concurrency=1)
    ran: list[str] = []

    async def one_turn(session: SessionKey) -> None:
        ran.append(session.conversation)
        await anyio.sleep(0.01)
        if session == A and len(ran) < 50:
            dispatcher.wake(A)

    async with running(dispatcher, one_turn):
        dispatcher.wake(A)
        await anyio.sleep(0.035)
        dispatcher.wake(B)
        dispatcher.wake(C)
        await anyio.sleep(3)
    place = ran.index("b")
    assert ran[place + 1 : place + 2] == ["c"] or ran[place + 1 : place + 3] == ["a", "c"]
    assert "a" in ran[place:]


async def test_no_more_run_at_once_than_allowed():
    """The limit is over all sessions."""
    dispatcher, runs = SessionDispatcher(concurrency=5), Runs()
    async with running(dispatcher, runs):
        for number in range(50):
            dispatcher.wake(SessionKey("test", str(number)))
        await anyio.sleep(100)
    assert runs.most == 5
    assert len(runs.begun) == 50


async def test_stop_lets_the_running_ones_end():
    """After `stop` no session begins, not even one that was woken before; `run` returns when nothing runs."""
    dispatcher, runs = SessionDispatcher(concurrency=1), Runs(takes_s=10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dispatcher.run, runs)
        dispatcher.wake(A)
        dispatcher.wake(B)
        dispatcher.wake(C, after_s=2)
        await anyio.sleep(1)
        dispatcher.wake(A)
        dispatcher.stop()
        dispatcher.wake(C)
    assert runs.names == "a"
    assert round(anyio.current_time() - runs.zero) == 10
    assert dispatcher.running() == ()


async def test_what_found_no_room_is_fetched_from_the_store(monkeypatch):
    """Wake-ups beyond the bound are dropped, counted, and made good when there is room again."""
    open_sessions = {SessionKey("test", str(number)): 0.0 for number in range(20)}
    asked = []

    async def run_session(session: SessionKey) -> None:
        await anyio.sleep(0.1)
        open_sessions.pop(session, None)

    async def refill():
        asked.append(len(open_sessions))
        if len(asked) == 1:
            raise OSError("not now")
        return list(open_sessions.items())

    monkeypatch.setattr(dispatching, "MAX_SESSIONS", 6)
    dispatcher = SessionDispatcher(concurrency=2, refill=refill)
    async with running(dispatcher, run_session):
        for session in list(open_sessions):
            dispatcher.wake(session)
        dispatcher.wake(A, after_s=0.1)
        await anyio.sleep(100)
    assert open_sessions == {}
    assert dispatcher.dropped > 0
    assert 2 <= len(asked) < 20


async def test_a_naive_dispatcher_would_lose_a_wake_up():
    """The control: where a wake-up during a run is taken for done, the session does not run again."""

    class Naive(SessionDispatcher):
        def wake(self, session, *, after_s=0.0, first=False, person=""):
            if session not in self.running():
                super().wake(session, after_s=after_s, first=first)

    runs = Runs()
    dispatcher = Naive()
    async with running(dispatcher, runs):
        dispatcher.wake(A)
        await anyio.sleep(0.5)
        dispatcher.wake(A)
        await anyio.sleep(10)
    assert runs.names == "a"


CROWD = [SessionKey("test", f"guest {number}") for number in range(20)]


async def test_whoever_comes_first_waits_for_nobody():
    """All places taken by long runs, and a long line: the owner's session runs at once, and again after it."""
    dispatcher, runs = SessionDispatcher(concurrency=2), Runs(takes_s=100)
    for session in CROWD:
        dispatcher.wake(session)
    async with running(dispatcher, runs):
        await anyio.sleep(1)
        dispatcher.wake(A, first=True)
        await anyio.sleep(1)
        assert runs.begun[-1] == ("a", 1.0)
        dispatcher.wake(A)  # it has more
        dispatcher.wake(B, first=True)
        await anyio.sleep(99.5)
        assert [name for name, _ in runs.begun[3:5]] == ["b", "a"]
        assert runs.most == 3


async def test_whoever_waits_in_the_line_may_come_first_now():
    """The owner speaks in a room whose guests wait already: it does not stand in their line any more."""
    dispatcher, runs = SessionDispatcher(concurrency=1), Runs(takes_s=100)
    for session in (*CROWD, A):
        dispatcher.wake(session)
    async with running(dispatcher, runs):
        await anyio.sleep(1)
        dispatcher.wake(A, first=True)
        await anyio.sleep(1)
        assert [name for name, _ in runs.begun] == ["guest 0", "a"]


async def test_a_session_comes_first_only_as_long_as_it_has_work():
    """It keeps its precedence while it waits for a model, and stands in the line like all when it is done."""
    dispatcher, runs = SessionDispatcher(concurrency=1), Runs(takes_s=10)

    async def run(session: SessionKey) -> None:
        await runs(session)
        if session == A and len(runs.begun) == 1:
            dispatcher.wake(A, after_s=30)

    async with running(dispatcher, run):
        dispatcher.wake(A, first=True)
        await anyio.sleep(11)
        for session in CROWD:
            dispatcher.wake(session)
        await anyio.sleep(60)
        assert ("a", 40.0) in runs.begun
        dispatcher.wake(A)
        await anyio.sleep(60)
        assert [name for name, _ in runs.begun].count("a") == 2
