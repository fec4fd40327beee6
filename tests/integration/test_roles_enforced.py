"""A guest and an adult on every channel: tools, models, the share of the budget, jobs, and who lets people in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.routing.household import GUEST_TOOLS
from gateway.store.background_job_rows import KIND
from gateway.store.model import JobKind
from gateway.turns.model_choice import ModelChoice
from tests.clock import ManualClock
from tests.integration.test_household import QUIET, Tell, Uses
from tests.integration.test_schedule_rules import START
from tests.proactive_world import ANN, Harness, house

pytestmark = pytest.mark.smoke

GUEST = {"matrix": "@cid:hs.test", "email": "cid@mail.test"}
ADULT = {"matrix": "@dan:hs.test", "email": "dan@mail.test"}
SECOND = {"matrix": "@bob:hs.test", "email": "bob@mail.test"}
PEOPLE: Mapping[str, Any] = {
    "bob": {"addresses": list(SECOND.values()), "role": "owner"},
    "cid": {"addresses": list(GUEST.values()), "role": "guest", "pool": "small"},
    "dan": {"addresses": list(ADULT.values())},
}
JOB = "start_job"
channels = pytest.mark.parametrize("channel", ["matrix", "email"])


def home_of(root: Path, model: Uses, tool: Tell, **more: Any) -> Any:
    settings = {"people": PEOPLE, "tools": {"jobs": {"allow": "people"}}}
    return house(root, **{**QUIET, **more}, model=model, tools=[tool], more=settings)


async def said(home: Harness, channel: str, person: str, text: str) -> str:
    """Say something on a channel, and return the next message there."""
    server, place = (home.chat if channel == "matrix" else home.mail), f"dm-{person}"
    before = len(server.seen(place))
    server.say(person, text)
    return (await server.answers(before + 1, conversation=place))[-1].text


@channels
async def test_tools_and_background_jobs(tmp_path: Path, channel: str) -> None:
    """A guest has those of talking, whatever the model calls; the control: an adult is offered all, on the same home."""
    model, tool = Uses(), Tell()
    async with home_of(tmp_path, model, tool) as home:
        await said(home, channel, ADULT[channel], "hello")
        assert {"tell", "find_tools", "schedule"} <= set(model.offered[-1])  # it finds those for jobs
        known = await said(home, channel, ADULT[channel], f"use {JOB}")
        for wanted in ("tell", JOB):
            told = await said(home, channel, GUEST[channel], f"use {wanted}")
            assert "There is no tool" in told
            assert "There is no tool" not in known
            assert set(model.offered[-1]) <= set(GUEST_TOOLS)
        assert tool.told == 0
        assert (await home.built.store.jobs.jobs()) == []
        assert not [row for row in await home.built.store.inbox.rows(limit=100) if row.message.kind == KIND]


@channels
async def test_models(tmp_path: Path, channel: str, monkeypatch: Any) -> None:
    """A guest is answered by the pool of their entry, an adult by the default; neither chooses one."""
    chosen: list[str | None] = []
    plain = ModelChoice.llm

    def llm(self: Any, session: Any, pool: str | None) -> Any:
        chosen.append(pool)
        return plain(self, session, pool)

    monkeypatch.setattr(ModelChoice, "llm", llm)
    async with home_of(tmp_path, Uses(), Tell()) as home:
        for who, pool in ((GUEST, "small"), (ADULT, "")):
            assert "Only my owner" in await said(home, channel, who[channel], "!model demo")
            await said(home, channel, who[channel], "hello")
            assert chosen[-1] == pool


@channels
async def test_the_share_of_the_budget(tmp_path: Path, channel: str) -> None:
    """A guest's ends at a quarter, that of adults at a half; the owner goes on."""
    model = Uses()
    async with home_of(tmp_path, model, Tell(), budget={"tokens_per_day": 200_000}) as home:
        spent = 0
        for upto, served in ((30_000, (GUEST, ADULT)), (60_000, (ADULT,)), (120_000, ())):
            usage = Usage(prompt_tokens=upto - spent, calls=1)
            await home.built.store.usage.add(SessionKey("matrix", "dm"), usage, Purpose.CHAT)
            spent = upto
            for who in (GUEST, ADULT):
                if who is ADULT or who in served or upto == 60_000:  # who waits is told once a day
                    before = len(model.asked)
                    told = await said(home, channel, who[channel], "hello")
                    assert ("budget" in told) is (who not in served), (upto, told)
                    assert (len(model.asked) > before) is (who in served)
        assert await home.asked(ANN, "hello") == "well"


@channels
async def test_scheduled_questions_have_no_more_rights(tmp_path: Path, channel: str) -> None:
    """They run with the tools of whom they are for."""
    model, clock = Uses(), ManualClock(START)
    async with home_of(tmp_path, model, Tell(), clock=clock, schedule={"jitter_seconds": 0.0}) as home:
        for minute, who in ((0, GUEST), (1, ADULT)):
            person = who[channel]
            await said(home, channel, person, "hello")
            server = home.chat if channel == "matrix" else home.mail
            row = (await home.built.store.inbox.rows(limit=1))[0].message
            place = JobPlace(row.session, row.account, person, context=row.context)
            wish = TriggerRequest(at=f"09:{minute:02}")
            await home.built.proactive.jobs.add(place, wish, text="use tell", kind=JobKind.ASK)
            before = len(server.seen(f"dm-{person}"))
            clock.advance(timedelta(minutes=1 if minute else 60).total_seconds())
            await home.built.proactive.scheduler.fire_due()
            await server.answers(before + 1, conversation=f"dm-{person}")
            offered = next(
                tools
                for asked, tools in zip(reversed(model.asked), reversed(model.offered), strict=True)
                if "scheduled job" in str(asked)
            )
            assert ("tell" in offered) is (who is ADULT)


@channels
@pytest.mark.parametrize("who", [GUEST, ADULT, SECOND], ids=["guest", "adult", "second owner"])
async def test_who_lets_people_in(tmp_path: Path, channel: str, who: dict[str, str]) -> None:
    """The owner alone: nobody else sees who was refused, lets anybody in or out, or looks at the quarantine."""
    stranger = "@eve:hs.test"
    allow = {each: (GUEST[each], ADULT[each], SECOND[each]) for each in ("matrix", "email")}
    async with home_of(tmp_path, Uses(), Tell(), allow=allow) as home:
        home.chat.say(stranger, "may I?")
        await home.until(lambda: home.chat.acknowledged == len(home.chat.said))
        for command in (
            "!allow",
            f"!allow {stranger}",
            "!allow m1",
            f"!allow remove {GUEST['matrix']}",
            "!approve m1",
        ):
            assert "Only my owner" in await said(home, channel, who[channel], command), command
        assert home.chat.seen(f"dm-{stranger}") == []
        assert "may write to me now" in await home.asked(ANN, f"!allow {stranger}")  # the control
        await home.chat.answers(1, conversation=f"dm-{stranger}")
