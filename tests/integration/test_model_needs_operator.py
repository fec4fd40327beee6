"""A model that only the operator can mend: who is told what, what waits, and that the mend is noticed at once."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import anyio

from agent_core.messages import OutboundKind, SessionKey
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.store.model import JobKind
from gateway.store.states import BUDGET
from tests.doubles.openai_server import FakeOpenAI, Say, Status
from tests.integration.command_world import ANN, BOB, CID, DM, SETTINGS
from tests.integration.gateway_world import world

CREDIT = "Your credit balance is too low to access the API. Please go to Plans & Billing."
KEY = Status(401, "Incorrect API key provided")


@asynccontextmanager
async def asking(root, *servers: FakeOpenAI, **settings: Any):
    llm = {
        "providers": {f"p{n}": {"api_base": one.api_base, "api_key": "k"} for n, one in enumerate(servers)},
        "models": {
            f"m{n}": {"provider": f"p{n}", "model": f"openai/tiny-{n}"} for n, _ in enumerate(servers)
        },
        "pools": {"main": [f"m{n}" for n, _ in enumerate(servers)]},
    }
    async with world(root, name="matrix", settings=SETTINGS | {"llm": llm} | settings) as there:
        yield there


async def test_the_owner_reads_which_model_and_others_do_not(tmp_path):
    """And the question after the mend is asked at once."""
    async with FakeOpenAI() as fake, asking(tmp_path, fake) as there:
        fake.plan(KEY, KEY)
        to_owner = await there.asked("hello", person=ANN)
        to_bob = await there.asked("hello", person=BOB)
        mended = await there.asked("again", person=BOB)

        assert "openai/tiny-0" in to_owner.text
        assert "`squidbot check`" in to_owner.text
        assert "my operator must check" in to_bob.text
        assert "tiny" not in to_bob.text
        assert [to_owner.kind, to_bob.kind] == [OutboundKind.APOLOGY] * 2
        assert mended.kind is OutboundKind.REPLY
        assert len(fake.requests) == 3


async def test_questions_wait_for_credit_and_the_owner_is_alerted_once(tmp_path):
    """Two people ask; both are told once that it waits, and both are answered when there is credit again."""
    async with FakeOpenAI() as fake, asking(tmp_path, fake) as there:
        fake.plan(*[Status(400, CREDIT)] * 2)
        there.server.say(ANN, "first")
        there.server.say(BOB, "second")
        to_bob = await there.server.answers(1, conversation=f"dm-{BOB}")
        (to_owner,) = await there.server.answers(1, conversation=DM)

        assert to_bob[0].kind is OutboundKind.NOTICE
        assert "credit" in to_bob[0].text
        assert "tiny" not in to_bob[0].text
        assert "operator" not in to_owner.text + to_bob[0].text
        assert "openai/tiny-0" in to_owner.text and CREDIT.rstrip(".") in to_owner.text
        with anyio.fail_after(60):
            while await there.inbox() != {"ready": 2}:
                await anyio.sleep(0.02)

        await there.built.store.maintenance.due_now(BUDGET)
        assert (await there.server.answers(2, conversation=DM))[-1].kind is OutboundKind.REPLY
        assert (await there.server.answers(2, conversation=f"dm-{BOB}"))[-1].kind is OutboundKind.REPLY
        await anyio.sleep(0.2)
        assert len(there.server.seen(DM)) == 2


async def test_somebody_elses_question_alerts_the_owner(tmp_path):
    """The control: who asked is told that it waits, and the owner why."""
    async with FakeOpenAI() as fake, asking(tmp_path, fake) as there:
        await there.asked("hello", person=ANN)
        fake.plan(Status(400, CREDIT))
        there.server.say(BOB, "second")
        assert (await there.server.answers(1, conversation=f"dm-{BOB}"))[0].kind is OutboundKind.NOTICE
        assert (await there.server.answers(2, conversation=DM))[-1].kind is OutboundKind.ALERT


async def test_a_job_of_the_owner_that_waits_for_credit_adds_no_second_notice(tmp_path):
    """The control is a job of somebody else, who does not read the owner's alert."""
    async with FakeOpenAI() as fake, asking(tmp_path, fake) as there:
        await there.asked("hello", person=ANN)
        await there.asked("hello", person=BOB)
        fake.plan(*[Status(400, CREDIT)] * 2)
        for person in (ANN, BOB):
            place = JobPlace(SessionKey("matrix", f"dm-{person}"), "bot", person, persons=[person])
            wish = TriggerRequest(in_minutes=0.001)
            await there.built.proactive.jobs.add(place, wish, text="what is new?", kind=JobKind.ASK)
        with anyio.fail_after(60):
            while await there.inbox() != {"ready": 2, "settled": 2}:
                await anyio.sleep(0.02)
            while not (to_owner := there.server.seen(DM)[1:]):
                await anyio.sleep(0.02)
        assert (await there.server.answers(2, conversation=f"dm-{BOB}"))[-1].text.startswith("My account")
        await there.built.store.maintenance.due_now(BUDGET)
        await there.server.answers(3, conversation=DM)
        assert [CREDIT.rstrip(".") in one.text for one in there.server.seen(DM)] == [False, True, False]
        assert len(to_owner) == 1


async def waiting_for_credit(there, fake):
    """Ann and Bob have asked, and both wait."""
    fake.plan(*[Status(400, CREDIT)] * 2)
    there.server.say(ANN, "first")
    there.server.say(BOB, "second")
    await there.server.answers(1, conversation=f"dm-{BOB}")
    await there.server.answers(1, conversation=DM)
    while await there.inbox() != {"ready": 2}:
        await anyio.sleep(0.01)


async def test_one_answer_wakes_all_that_wait_for_credit(tmp_path):
    """Whoever asks first after the top-up; nobody waits for half an hour."""
    async with FakeOpenAI() as fake, asking(tmp_path, fake) as there:
        await waiting_for_credit(there, fake)
        assert (await there.asked("third", person=CID)).kind is OutboundKind.REPLY
        assert (await there.server.answers(2, conversation=f"dm-{BOB}"))[-1].kind is OutboundKind.REPLY
        assert (await there.server.answers(2, conversation=DM))[-1].kind is OutboundKind.REPLY


async def test_the_owner_has_what_waits_tried_again(tmp_path):
    """With `!retry`, where the question waits; others wait."""
    async with FakeOpenAI() as fake, asking(tmp_path, fake) as there:
        await waiting_for_credit(there, fake)
        assert "Nothing was done" in (await there.asked("!retry", person=BOB)).text
        there.server.say(ANN, "!retry")
        said = await there.server.answers(3, conversation=DM)
        assert {one.kind for one in said[1:]} == {OutboundKind.REPLY}
        assert any("try it again now" in one.text for one in said)
        assert (await there.server.answers(3, conversation=f"dm-{BOB}"))[-1].kind is OutboundKind.REPLY


async def test_a_cut_prompt_alerts_the_owner_once(tmp_path):
    """Also in a script without blanks; nothing that was made under it is sent."""
    text = "这个房间里的每一个人都知道今天的天气很好。" * 800
    async with FakeOpenAI() as fake, asking(tmp_path, fake) as there:
        fake.plan(Say("From half of it", usage=(2048, 5)), Say("Short", usage=(900, 5)))
        answer = await there.asked(text, person=BOB)
        (alert,) = await there.server.answers(1, conversation=DM)
        assert answer.text == "Short"
        assert alert.kind is OutboundKind.ALERT
        assert "max_context_tokens: 2048" in alert.text
        await there.asked("and now?", person=BOB)
        assert len(there.server.seen(DM)) == 1


async def test_the_next_model_answers_while_the_first_has_no_credit(tmp_path):
    """Nobody waits then, and the owner is alerted all the same."""
    async with FakeOpenAI() as spent, FakeOpenAI() as other, asking(tmp_path, spent, other) as there:
        spent.plan(Status(402, "Insufficient Balance"))
        answer = await there.asked("hello", person=BOB)
        (alert,) = await there.server.answers(1, conversation=DM)

        assert answer.kind is OutboundKind.REPLY
        assert alert.kind is OutboundKind.ALERT
        assert "openai/tiny-0" in alert.text
        assert len(other.requests) == 1
