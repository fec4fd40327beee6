"""
Bob's words are quoted to the owner's assistant, which makes a job of them; that lasts, and is allowed unasked after a
known person's words. When the job came due it was the owner's: a program that Bob had thought of ran unasked.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent_core.messages import MessageContext, MessageNotes, SessionKey
from agent_core.models import Purpose
from agent_core.provenance import Origins, Trust, person, trust_of, untrusted_origin, use_origins
from agent_core.tools.schedule_tool import ScheduleTool
from gateway.proactive.jobs.config import ScheduleConfig
from gateway.proactive.jobs.job_service import JobPlace, JobService, SessionJobs
from gateway.proactive.jobs.scheduler import job_message
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.routing.access import Access, Alias
from gateway.store.model import Job, JobKind
from gateway.store.sql.row_codec import context_or_empty, dump_context
from gateway.store.stores import Turn
from gateway.turns.user_input import session_of, user_lines
from tests.clock import EPOCH, ManualClock

ANN, BOB = "@ann:hs.test", "@bob:hs.test"
PLACE = SessionKey("matrix", "dm")


class Plans:
    """Keeps what the database would."""

    def __init__(self) -> None:
        self.kept: list[Job] = []

    async def add_job(self, job: Job, **_: Any) -> None:
        self.kept.append(job)

    async def jobs(self) -> list[Job]:
        return self.kept


@pytest.mark.parametrize(
    ("origins", "trust"),
    [
        ((), Trust.OWNER),  # the control: the owner's own wish, or one that the owner has approved
        ((person(BOB),), Trust.KNOWN),
        ((person(BOB), untrusted_origin("web", "https://evil.example/")), Trust.UNTRUSTED),
    ],
)
async def test_its_run_has_the_origins_of_the_call_that_made_it(origins: Origins, trust: Trust) -> None:
    """Its question, its line in the history, and a list of jobs alike. Nobody's name is in it: who is forgotten is nowhere else."""
    plans = Plans()
    desk = JobService(plans, ScheduleConfig(), zone="UTC", clock=ManualClock())  # type: ignore[arg-type]
    place = JobPlace(PLACE, "@bot:hs.test", ANN, context=MessageContext(others_words=True), persons=[ANN])
    with use_origins(origins):
        await desk.add(place, TriggerRequest(in_minutes=5), text="run it", kind=JobKind.ASK)
    (job,) = plans.kept
    assert context_or_empty(dump_context(job.context)) == job.context
    assert BOB not in dump_context(job.context)
    listed = await ScheduleTool(SessionJobs(desk, place)).execute(action="list")
    assert "run it" in listed.content
    assert trust_of(listed.origins) is trust
    due = job_message(job, EPOCH, late=False)
    assert not due.context.others_words
    assert due.notes == MessageNotes(job=due.notes.job)
    row = SimpleNamespace(id=1, message=due, accepted_at=EPOCH)
    turn = Turn("t", PLACE, 1, (row,), 1, 0)  # type: ignore[arg-type]
    access = Access([Alias("matrix", ANN)], {})
    assert trust_of(session_of(turn, access, Purpose.JOB).origins) is trust
    assert trust_of(user_lines(turn, access)[0].sources) is trust
