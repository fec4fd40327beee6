"""
A guest of a domain that is let in as a whole (`*@domain`) wrote from one address after the other, each with its own
number of jobs: after a day the bot sent hundreds of thousands of reminders, and its mailbox was closed by the provider.
"""

from __future__ import annotations

import pytest

from agent_core.messages import SessionKey
from gateway.proactive.jobs.config import ScheduleConfig
from gateway.proactive.jobs.job_service import JobPlace, JobService
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.proactive.jobs.triggers import TriggerInvalid
from gateway.routing.access import Access, Alias
from gateway.store.model import Job, JobKind
from tests.clock import ManualClock
from tests.incidents.test_job_made_of_others_words import Plans

ACCESS = Access(
    [Alias("email", "ann@home.test")],
    {"email": ["*@guest.test", "*@other.test", "bob@guest.test"], "matrix": ["*"]},
)
OFTEN = TriggerRequest(every_minutes=30)


def desk(**settings: int) -> JobService:
    return JobService(
        Plans(),  # type: ignore[arg-type]
        ScheduleConfig(**settings),
        zone="UTC",
        clock=ManualClock(),
        crowd=ACCESS.server_group,
    )


async def add(one: JobService, person: str, when: TriggerRequest, *, owner: bool = False) -> Job:
    channel = "matrix" if person.startswith("@") else "email"
    place = JobPlace(SessionKey(channel, "t", person), "bot", person, persons=[person] if owner else ())
    return await one.add(place, when, text="hello", kind=JobKind.REMIND)


@pytest.mark.parametrize(("server", "sign"), [("guest.test", "u{}@{}"), ("hs.test", "@u{}:{}")])
async def test_all_whom_a_pattern_lets_in_have_a_limit_together(server: str, sign: str) -> None:
    """Of jobs and of their runs, on each server by itself; who is let in by name, and the owner, have their own."""
    runs, jobs = desk(runs_per_day=50), desk(jobs_per_person=2)
    for number in range(10):
        await add(runs, sign.format(number, server), OFTEN)
    for number in range(20):
        await add(jobs, sign.format(number, server), TriggerRequest(in_minutes=60))
    for one in (runs, jobs):
        with pytest.raises(TriggerInvalid, match="people at your server"):
            await add(one, sign.format("x", server), OFTEN)
        for free in ("bob@guest.test", "eve@other.test", "@eve:else.test"):
            await add(one, free, OFTEN)
        await add(one, "ann@home.test", OFTEN, owner=True)


async def test_one_guest_has_the_limit_of_one() -> None:
    """As before; and without limits there are none."""
    one = desk(runs_per_day=50)
    await add(one, "bob@guest.test", OFTEN)
    with pytest.raises(TriggerInvalid, match="your jobs would run more than 50 times"):
        await add(one, "bob@guest.test", OFTEN)
    free = desk(runs_per_day=0)
    for _ in range(4):
        await add(free, "bob@guest.test", OFTEN)
