"""What a model's server does oddly, in chat, check-ins, scheduled and background jobs, and summaries."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from agent_core.llm.openai_client import OpenAIClient
from agent_core.memory.manager import MemoryManager
from tests.clock import LoopClock, ManualClock
from tests.doubles.in_memory_storage import InMemoryMemory
from tests.doubles.openai_server import TOO_LONG, Call, FakeOpenAI, Raw, Reply, Say, Status
from tests.integration.background_world import IS_JOB
from tests.integration.schedule_world import START, later, made
from tests.proactive_world import ANN, ANN_MAIL, Harness, house

GOOD = "All is well."
HARMONY = "<|channel|>analysis<|message|>CANARY<|end|><|start|>assistant<|channel|>final<|message|>" + GOOD
CREDIT = "Your credit balance is too low to access the API."
REFUSAL = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
QUIRKS: dict[str, list[Reply]] = {
    "reasoning only": [Say(thinking=["CANARY"])] * 9,
    "empty": [Say("\u200b")] * 9,
    "filtered": [Say("CANARY", finish="content_filter")] * 9,
    "refused": [
        Raw(json.dumps({"choices": [{"message": REFUSAL, "finish_reason": "stop"}]}).encode()),
    ],
    "cut": [Say("Half", finish="length")],
    "Harmony": [Say(HARMONY)],
    "too long": [TOO_LONG],
    "busy": [Status(429, "slow down", headers={"retry-after-ms": "50"})],
    "wrong key": [Status(401, "Incorrect API key provided")] * 9,
    "no credit": [Status(400, CREDIT)] * 9,
}
ENDS = {
    "reasoning only": "gave an empty answer",
    "empty": "gave an empty answer",
    "filtered": "withheld the answer",
    "refused": "I can't help with that.",
    "cut": "Half\n\n[This answer was cut off",
    "Harmony": GOOD,
    "too long": GOOD,
    "busy": GOOD,
    "wrong key": "does not accept my",
    "no credit": "has no credit",
}
"""What the person reads in the end."""
SILENT_ENDS = {
    "reasoning only": ("silent", "empty"),
    "empty": ("silent", "empty"),
    "filtered": ("failed", "withheld"),
    "refused": ("delivered", ""),
    "cut": ("delivered", ""),
    "wrong key": ("failed", "401"),
    "no credit": ("skipped", "credit"),
}
"""What the ledger says of a check-in; "All is well" is no news."""
PLACES = {
    "chat": "[asks]",
    "mail": "[asks]",
    "check-in": "regular check-in",
    "scheduled": "JOBTEXT",
    "background": IS_JOB,
}


class Quirky(FakeOpenAI):
    """A model that is well but for the requests of one place."""

    def __init__(self, marker: str, replies: list[Reply]) -> None:
        super().__init__()
        self.marker, self.replies = marker, list(replies)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        said = str(body["messages"][-1]["content"])
        is_job = any(IS_JOB in str(each["content"]) for each in body["messages"])
        if self.marker in said and self.replies:
            self.plan(self.replies.pop(0))
        elif not is_job and ("start it" in said or "Parameters:" in said):  # it is loaded first
            self.plan(Say(calls=[Call("start_job", '{"goal": "look around", "name": "a task"}')]))
        else:
            self.plan(Say(GOOD))
        return await super()._answer(request)


async def begin(home: Harness, place: str, clock: ManualClock) -> None:
    """Have something done at a place."""
    if place == "chat":
        home.chat.say(ANN, "[asks] something")
    elif place == "mail":
        home.mail.say(ANN_MAIL, "[asks] something")
    elif place == "background":
        home.chat.say(ANN, "start it")
    elif place == "check-in":
        await home.until(lambda: home.built.supervisor.all_up)
        await home.built.proactive.heartbeat.now()
    else:
        await made(home, "JOBTEXT", ask=True, person=ANN)
        await later(home, clock, hours=1)


@pytest.mark.parametrize("quirk", QUIRKS)
@pytest.mark.parametrize("place", PLACES)
async def test_each_quirk_has_its_end(tmp_path: Any, place: str, quirk: str) -> None:
    """An answer or a sentence that says what is wrong; what passes by itself is asked again."""
    clock = ManualClock(START)
    async with Quirky(PLACES[place], QUIRKS[quirk]) as fake:
        client = OpenAIClient("openai/tiny", api_base=fake.api_base, api_key="k", clock=LoopClock())
        given = {"clock": clock, "schedule": {"jitter_seconds": 0.0}} if place == "scheduled" else {}
        beat = {"interval_minutes": 600.0, "enabled": place == "check-in"}
        async with aclosing(client), house(tmp_path, model=client, heartbeat=beat, **given) as home:
            await home.asked(ANN, "hello")
            await begin(home, place, clock)
            if place == "check-in":
                await home.until(home.ledger)
                outcome, reason = SILENT_ENDS.get(quirk, ("silent", "all clear"))
                ((ended, why),) = await home.ledger()
                assert ended == outcome
                assert reason in why
            else:
                first = 2 if place == "background" else 1  # what the conversation says of the job

                def has_ended(first: int = first) -> bool:
                    clock.advance(1.0)
                    if place == "mail":
                        return any(ENDS[quirk] in one.text for one in home.mail.delivered)
                    return any(ENDS[quirk] in one.text for one in home.chat.seen(f"dm-{ANN}")[first:])

                await home.until(has_ended)
            assert "CANARY" not in str([*home.chat.delivered, *home.mail.delivered])


@pytest.mark.parametrize("quirk", QUIRKS)
async def test_a_summary_that_is_none_moves_nothing(quirk: str) -> None:
    """What was said stays in the prompt until there is a summary."""
    storage = InMemoryMemory()
    async with Quirky("", QUIRKS[quirk]) as fake:
        client = OpenAIClient("openai/tiny", api_base=fake.api_base, api_key="k", clock=LoopClock())
        async with aclosing(client):
            memory = MemoryManager(storage, llm=client, consolidation_threshold=10)
            for number in range(30):
                await memory.persist_exchange("a/b", f"It is nice, {number}.", "Yes.", turn=f"t{number}")
            await memory.consolidate_if_due("a/b")
            tail = await storage.load_history("a/b")
            is_good = quirk in ("Harmony", "too long")
            assert (tail.cursor > 0) is is_good, tail.summary
            assert "CANARY" not in (tail.summary or "")
            fake.replies.clear()
            await memory.consolidate_if_due("a/b")
            assert (await storage.load_history("a/b")).cursor > 0
