"""Reminders of a conversation that the bot is put out of, and where it may come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_core.messages import Amendment, Audience, SessionKey
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.store.model import Job, JobKind, JobState
from tests.clock import ManualClock
from tests.integration.schedule_world import START, later, said, scheduled
from tests.proactive_world import BOB, Harness

pytestmark = pytest.mark.smoke
ROOM = SessionKey("matrix", "room")


async def planned(home: Harness, request: TriggerRequest, kind: JobKind = JobKind.REMIND) -> Job:
    """A job of Bob's in a room that he shares with the bot and others."""
    home.chat.groups.add(ROOM.conversation)
    place = JobPlace(ROOM, "bot", BOB, Audience.GROUP)
    return await home.built.proactive.jobs.add(place, request, text="water the plums", kind=kind)


async def put_out(home: Harness) -> None:
    """Remove the bot from the room, as the channel says it."""
    home.chat.left.add(ROOM.conversation)
    leave = Amendment(kind="leave", session=ROOM)
    await home.built.store.inbox.accept("matrix", "bot", [], {}, [leave])


async def state(home: Harness, job: Job) -> tuple[JobState, str]:
    found = await home.plans.job(job.id)
    return found.state, found.note


async def test_a_reminder_is_told_to_its_person_if_the_bot_has_not_come_back(tmp_path: Path) -> None:
    """Once, in the conversation with that person alone."""
    clock = ManualClock(START)
    async with scheduled(tmp_path, clock) as home:
        job = await planned(home, TriggerRequest(in_minutes=60))
        await put_out(home)
        assert await state(home, job) == (JobState.ACTIVE, "")
        await later(home, clock, hours=1)
        await home.until(lambda: said(home))
        await later(home, clock, hours=1)
        assert said(home) == ["water the plums"]
        assert home.chat.seen(ROOM.conversation) == []


@pytest.mark.parametrize("hours", [1, 3])
async def test_a_reminder_is_given_where_it_was_asked_for_when_the_bot_is_back(
    tmp_path: Path, hours: int
) -> None:
    """And says that it is late, if it is."""
    clock = ManualClock(START)
    async with scheduled(tmp_path, clock) as home:
        await planned(home, TriggerRequest(in_minutes=60))
        await put_out(home)
        home.chat.left.clear()
        await later(home, clock, hours=hours)
        (told,) = await home.chat.answers(1, conversation=ROOM.conversation)
    assert told.text.startswith(f"For {BOB}: water the plums")
    assert ("is late" in told.text) is (hours > 1)


@pytest.mark.parametrize("kind", JobKind)
async def test_what_recurs_is_paused_until_the_bot_is_back(tmp_path: Path, kind: JobKind) -> None:
    """Its person is told so once, however long that takes; nobody has to resume it."""
    clock = ManualClock(START)
    async with scheduled(tmp_path, clock) as home:
        job = await planned(home, TriggerRequest(cron="0 * * * *"), kind)
        await put_out(home)
        for _ in range(3):
            await later(home, clock, hours=1)
            await home.until(lambda: said(home))
        (told,) = said(home)
        assert "paused until I am back" in told
        assert "water the plums" in told
        assert (await state(home, job))[0] is JobState.PAUSED
        home.chat.left.clear()
        await later(home, clock, minutes=20)
        assert await state(home, job) == (JobState.ACTIVE, "")
        await later(home, clock, hours=1)
        await home.chat.answers(1, conversation=ROOM.conversation)


async def test_what_a_person_has_paused_is_not_resumed_by_a_return(tmp_path: Path) -> None:
    """Only what the bot's own absence has paused."""
    clock = ManualClock(START)
    async with scheduled(tmp_path, clock) as home:
        job = await planned(home, TriggerRequest(cron="0 * * * *"))
        await home.built.proactive.jobs.set_paused(job, paused=True)
        await later(home, clock, hours=2)
        assert await state(home, job) == (JobState.PAUSED, "")
