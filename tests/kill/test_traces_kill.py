"""A daemon that sends traces is killed at any moment: no span comes twice, and its answers are what they were without."""

from __future__ import annotations

import threading
import time

import pytest
from anyio.to_thread import run_sync

from tests.daemon import Daemon
from tests.doubles.trace_collector import TraceCollector
from tests.kill.tally import TALLY, chance
from tests.kill.test_api_kill import ask, ask_until_answered
from tests.openai_endpoint import CountingModel, endpoint_settings, make_token

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900, func_only=True)]
KILLS = 10


def kill_often(daemon: Daemon, token: str) -> list[str]:
    """The answers to all requests, each killed on its way once."""
    moments, answers = chance("traces"), list[str]()
    for number in range(KILLS):
        asking = threading.Thread(target=ask, args=(daemon, token, number), kwargs={"streams": False})
        asking.start()
        time.sleep(moments.random() * 0.09)
        daemon.kill()
        TALLY["SIGKILL around a traced turn"] += 1
        asking.join()
        daemon.up()
        answers.append(ask_until_answered(daemon, token, number))
    return answers


async def test_traced_turns_over_kills(tmp_path):
    """Every request keeps its one answer; every span has an id of its own, and what was complete has arrived."""
    async with CountingModel(pause_s=0.004) as model:
        with TraceCollector() as collector:
            settings = endpoint_settings(model.api_base, gateway={"traces": {"endpoint": collector.url}})
            with Daemon(tmp_path / "home", settings) as daemon:
                await run_sync(daemon.up)
                token = await run_sync(make_token, daemon)
                answers = await run_sync(kill_often, daemon, token)
                for number, answer in enumerate(answers):
                    assert f"question #{number}#" in answer
                    assert await run_sync(ask_until_answered, daemon, token, number) == answer
                last = await run_sync(ask_until_answered, daemon, token, KILLS)
                daemon.terminate()
                assert await run_sync(daemon.ended) == 0
            assert len({*answers, last}) == KILLS + 1
            turns, ids = collector.named("invoke_agent"), [span.id for span in collector.spans]
            assert len(ids) == len(set(ids))
            assert turns[-1].attributes["squidbot.outcome"] == "answered"
            calls = [span for span in collector.spans if span.parent == turns[-1].id]
            assert [call.name for call in calls] == ["chat m"]
            assert calls[0].attributes["gen_ai.request.model"] == "m"
            assert b"question" not in collector.raw
