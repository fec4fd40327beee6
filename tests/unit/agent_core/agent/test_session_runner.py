"""Jobs of one session run in order, those of different sessions at once, within limits. On virtual time."""

from __future__ import annotations

import tracemalloc

import anyio
import pytest

from agent_core.agent.session_runner import Behind, RunnerFull, RunnerStopped, SessionRunner
from agent_core.messages import SessionKey

pytestmark = pytest.mark.virtual_time
A, B, C = (SessionKey("test", name) for name in "abc")


class Diary:
    """Notes who begins and ends, and checks that nobody is there twice."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.inside: list[str] = []
        self.most = 0

    def job(self, session: SessionKey, name: str, takes_s: float = 1.0):
        async def run() -> None:
            key = session.conversation
            assert key not in self.inside, "two jobs of one session at once"
            self.begun.append(name)
            self.inside.append(key)
            self.most = max(self.most, len(self.inside))
            try:
                await anyio.sleep(takes_s)
            finally:
                self.inside.remove(key)

        return run


async def drained(runner: SessionRunner) -> None:
    runner.drain()
    await runner.run()


async def test_a_session_is_first_in_first_out():
    """Jobs of one session begin in the order in which they came, one at a time."""
    runner, diary = SessionRunner(concurrency=8), Diary()
    for number in range(20):
        runner.submit(A, diary.job(A, str(number), takes_s=1 / (number + 1)))
    await drained(runner)
    assert diary.begun == [str(number) for number in range(20)]
    assert diary.most == 1


async def test_sessions_run_at_once_up_to_the_limit():
    """As many sessions run at once as there are places, and no more."""
    runner, diary = SessionRunner(concurrency=3), Diary()
    sessions = [SessionKey("test", str(number)) for number in range(10)]
    for session in sessions:
        runner.submit(session, diary.job(session, session.conversation))
    begun = anyio.current_time()
    await drained(runner)
    assert diary.most == 3
    assert anyio.current_time() - begun == pytest.approx(4, abs=0.5)


async def test_a_session_with_much_work_does_not_starve_the_others():
    """With one place the sessions take turns."""
    runner, diary = SessionRunner(concurrency=1), Diary()
    for number in range(4):
        runner.submit(A, diary.job(A, f"a{number}"))
    runner.submit(B, diary.job(B, "b"))
    runner.submit(C, diary.job(C, "c"))
    await drained(runner)
    assert diary.begun == ["a0", "b", "c", "a1", "a2", "a3"]


async def test_a_job_that_raises_disturbs_nobody():
    """It is counted; the session's next job and the others run."""
    runner, diary = SessionRunner(), Diary()

    async def fail() -> None:
        raise ValueError("boom")

    runner.submit(A, fail)
    runner.submit(A, diary.job(A, "after"))
    runner.submit(B, diary.job(B, "beside"))
    await drained(runner)
    assert sorted(diary.begun) == ["after", "beside"]
    assert (runner.statistics().failed, runner.statistics().finished) == (1, 3)


async def test_idle_sessions_cost_nothing():
    """When a session has nothing to do, nothing of it is left."""
    runner, diary = SessionRunner(), Diary()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        runner.submit(A, diary.job(A, "a"))
        await anyio.sleep(0.5)
        assert (runner.statistics().sessions, runner.running()) == (1, (A,))
        await anyio.sleep(1)
        assert (runner.statistics().sessions, runner.running()) == (0, ())
        runner.submit(A, diary.job(A, "again"))
        await anyio.sleep(2)
        runner.stop()
    assert diary.begun == ["a", "again"]


async def test_stop_finishes_what_runs_and_drops_what_waits():
    """After `stop` nothing begins, `run` returns when the running jobs have ended, and new ones are refused."""
    runner, diary = SessionRunner(concurrency=1), Diary()
    begun = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        for name in ("1", "2"):
            runner.submit(A, diary.job(A, f"a{name}", takes_s=10))
            runner.submit(B, diary.job(B, f"b{name}", takes_s=10))
        await anyio.sleep(1)
        runner.stop()
        assert runner.statistics().waiting == 0
        with pytest.raises(RunnerStopped):
            runner.submit(A, diary.job(A, "late"))
    assert diary.begun == ["a1"]
    assert anyio.current_time() - begun == pytest.approx(10, abs=0.5)
    assert runner.statistics().sessions == 0


async def test_stop_before_anything_returns_at_once():
    """A runner that was stopped before it ran has nothing to do."""
    runner = SessionRunner()
    runner.stop()
    with anyio.fail_after(1):
        await runner.run()


async def test_drain_does_what_waits():
    """After `drain` new jobs are refused and the waiting ones are done."""
    runner, diary = SessionRunner(concurrency=1), Diary()
    for number in range(3):
        runner.submit(A, diary.job(A, str(number)))
    runner.drain()
    with pytest.raises(RunnerStopped):
        runner.submit(A, diary.job(A, "late"))
    await runner.run()
    assert diary.begun == ["0", "1", "2"]


async def test_cancelling_ends_what_runs_and_begins_nothing():
    """When `run` is cancelled its jobs are cancelled, and no waiting job begins in their place."""
    runner, diary = SessionRunner(concurrency=2), Diary()
    with anyio.move_on_after(1):
        for session in (A, B, C):
            runner.submit(session, diary.job(session, session.conversation, takes_s=100))
            runner.submit(session, diary.job(session, session.conversation * 2, takes_s=100))
        await runner.run()
    assert diary.begun == ["a", "b"]
    assert diary.inside == []


async def test_the_number_of_waiting_jobs_is_bounded():
    """One job more than allowed is refused, and taken again when there is room."""
    runner, diary = SessionRunner(concurrency=1, max_waiting=2), Diary()
    for session in (A, B):
        runner.submit(session, diary.job(session, session.conversation))
    with pytest.raises(RunnerFull):
        runner.submit(C, diary.job(C, "c"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        await anyio.sleep(0.5)
        runner.submit(C, diary.job(C, "c"))
        runner.drain()
    assert diary.begun == ["a", "b", "c"]


async def test_a_job_may_submit_another_one():
    """Also while the last one runs, and for its own session."""
    runner, diary = SessionRunner(), Diary()

    async def first() -> None:
        runner.submit(A, diary.job(A, "second"))
        runner.submit(B, diary.job(B, "other"))
        await anyio.sleep(1)
        diary.begun.append("first ends")
        runner.drain()

    runner.submit(A, first)
    await runner.run()
    assert diary.begun == ["other", "first ends", "second"]


def test_a_runner_needs_room():
    """No places, or no room to wait, is a mistake."""
    for wrong in ({"concurrency": 0}, {"max_waiting": 0}):
        with pytest.raises(ValueError, match="room"):
            SessionRunner(**wrong)


async def test_it_runs_once():
    """Two runs of one runner at once are a mistake."""
    runner = SessionRunner()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        await anyio.sleep(0.1)
        with pytest.raises(RuntimeError):
            await runner.run()
        runner.stop()


async def test_ten_thousand_waiting_sessions_stay_small():
    """What waits costs less than a kilobyte each, and nothing once it is done."""

    async def nothing() -> None:
        pass

    sessions = [SessionKey("test", str(number)) for number in range(10_000)]
    runner = SessionRunner(concurrency=64)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for session in sessions:
            runner.submit(session, nothing)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held / len(sessions) < 1024
    runner.drain()
    await runner.run()
    assert runner.statistics().sessions == 0
    assert runner.statistics().finished == len(sessions)


async def test_people_take_turns_and_nobody_has_more_than_half_of_the_places():
    """However many sessions one person has; who comes first is not counted."""
    runner, diary = SessionRunner(concurrency=4), Diary()
    crowd = [SessionKey("test", f"eve{number}") for number in range(9)]
    for session in crowd:
        runner.submit(session, diary.job(session, session.conversation), person="eve")
    runner.submit(A, diary.job(A, "bob"), person="bob")
    runner.submit(B, diary.job(B, "ann"), first=True, person="eve")
    begun = anyio.current_time()
    await drained(runner)
    assert diary.begun[:4] == ["ann", "eve0", "bob", "eve1"] or diary.begun[:4] == [
        "eve0",
        "eve1",
        "bob",
        "ann",
    ]
    assert sorted(diary.begun) == sorted(["ann", "bob", *(session.conversation for session in crowd)])
    assert anyio.current_time() - begun == pytest.approx(5, abs=0.5)
    assert runner.statistics().sessions == 0


async def test_what_comes_first_later_leaves_the_line_of_its_person():
    """A session that is preferred is not waited for twice, and stopping forgets what waits."""
    runner, diary = SessionRunner(concurrency=1), Diary()
    for session in (A, B, C):
        runner.submit(session, diary.job(session, session.conversation), person="eve")
    runner.prefer(B)
    await drained(runner)
    assert sorted(diary.begun) == ["a", "b", "c"]
    stopped = SessionRunner(concurrency=1)
    stopped.submit(A, diary.job(A, "never"), person="eve")
    stopped.stop()
    await stopped.run()
    assert "never" not in diary.begun


def behind(name: str, *, is_owners: bool = True) -> tuple[SessionKey, Behind]:
    """A session of a job that somebody has asked for in one of two rooms."""
    return SessionKey("test", name[0], name), Behind(name[0], is_owners)


async def test_what_comes_behind_leaves_a_place_to_people():
    """Of four places jobs get three, however many wait; a person who comes then is served at once."""
    runner, diary = SessionRunner(concurrency=4), Diary()
    for name in ("x1", "x2", "y1", "y2", "y3"):
        session, group = behind(name)
        runner.submit(session, _named(diary, name, 10.0), person=group)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        await anyio.sleep(1)
        assert diary.begun == ["x1", "y1", "x2"]
        runner.submit(A, diary.job(A, "person"), person="ann")
        await anyio.sleep(1)
        assert diary.begun == ["x1", "y1", "x2", "person"]
        runner.drain()
    assert sorted(diary.begun) == ["person", "x1", "x2", "y1", "y2", "y3"]


async def test_of_what_comes_behind_the_owner_has_a_place():
    """Guests' jobs get two of three places; one of the owner's runs at once, and theirs go on after it."""
    runner, diary = SessionRunner(concurrency=4), Diary()
    for name in ("x1", "x2", "x3", "y1"):
        session, group = behind(name, is_owners=False)
        runner.submit(session, _named(diary, name, 10.0), person=group)
    session, group = behind("z1")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        await anyio.sleep(1)
        assert diary.begun == ["x1", "y1"]
        runner.submit(session, _named(diary, "z1", 20.0), person=group)
        await anyio.sleep(1)
        assert diary.begun == ["x1", "y1", "z1"]
        await anyio.sleep(10)
        assert diary.begun == ["x1", "y1", "z1", "x2", "x3"]
        runner.drain()


async def test_people_who_wait_go_before_what_comes_behind():
    """A place that becomes free goes to a person, though a job has waited longer; a job of a person would not wait."""
    runner, diary = SessionRunner(concurrency=2), Diary()
    runner.submit(A, diary.job(A, "first"), person="ann")
    runner.submit(B, diary.job(B, "second", 3.0), person="bob")
    session, group = behind("x1")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        await anyio.sleep(0.1)
        runner.submit(session, _named(diary, "job", 1.0), person=group)
        runner.submit(C, diary.job(C, "third"), person="cid")
        await anyio.sleep(3)
        runner.drain()
    assert diary.begun == ["first", "second", "third", "job"]


async def test_three_of_one_conversation_run_at_once():
    """The fourth waits though there are places; one of another conversation does not."""
    runner, diary = SessionRunner(concurrency=16), Diary()
    for name in ("x1", "x2", "x3", "x4", "y1"):
        session, group = behind(name)
        runner.submit(session, _named(diary, name, 10.0), person=group)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        await anyio.sleep(1)
        assert sorted(diary.begun) == ["x1", "x2", "x3", "y1"]
        runner.drain()
    assert sorted(diary.begun) == ["x1", "x2", "x3", "x4", "y1"]


def _named(diary: Diary, name: str, takes_s: float):
    return diary.job(SessionKey("test", name), name, takes_s)
