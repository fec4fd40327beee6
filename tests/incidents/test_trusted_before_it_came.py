"""
``!trust`` is for what has come into a conversation until then. What a background job or a check-in had read before that
came in with its answer later, with the time at which it had been read: it counted as the owner's own words at once.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from agent_core.messages import SessionKey
from agent_core.models import ToolCall
from agent_core.provenance import since, untrusted_origin
from gateway.proactive.owner_notifier import alert_line
from gateway.turns.user_input import trust_topic, trusted_before
from tests.clock import EPOCH
from tests.integration.background_world import ANN, Worker, until
from tests.integration.gateway_world import world
from tests.integration.test_background_jobs import Page, texts

PLACE = SessionKey("matrix", f"dm-{ANN}")


@pytest.mark.integration
async def test_the_answer_of_a_job_that_had_read_it_before(tmp_path: Path) -> None:
    model = Worker()
    model.gate = anyio.Event()
    model.in_job = lambda said, messages: ToolCall(id="1", name="read_page", arguments={})
    owner = {"aliases": [{"channel": "matrix", "address": ANN}]}
    async with world(
        tmp_path, name="matrix", settings={"owner": owner}, models={"demo": model}, tools=[Page()]
    ) as one:
        await one.asked("start read it", person=ANN)
        await until(lambda: bool(model.began))  # the page is read
        await one.asked("!trust", person=ANN)
        model.gate.set()
        await until(lambda: any("is done:" in text for text in texts(one)))
        await one.built.history.flush(PLACE)
        kept = (await one.built.memory.load_history(str(PLACE), max_messages=10)).messages
        noted = await one.built.store.state.read(trust_topic(PLACE))
    told = next(line for line in kept if "is done:" in line.content)
    trusted = trusted_before(noted, told.timestamp)
    assert trusted is not None
    assert [each.where for each in since(told.sources, trusted)] == ["https://evil.example/"]


def test_an_alert_of_what_was_read_before() -> None:
    """The control is the time at which it comes."""
    page = untrusted_origin("web", "https://evil.example/", EPOCH - timedelta(days=1))
    line = alert_line("Look!", "turn.alert", EPOCH, (page,))
    assert since(line.sources, EPOCH - timedelta(minutes=1)) == line.sources != ()
    assert since(line.sources, EPOCH) == ()
