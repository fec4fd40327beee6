"""
Requests of OpenAI's own client to a real daemon that is killed at any moment: each has one answer, for good.

The client repeats a request with its Idempotency-Key until it has an answer. Whatever answer it was given once, it is
given again, over kills; half of the requests stream.
"""

from __future__ import annotations

import threading
import time

import httpx
import openai
import pytest
from anyio.to_thread import run_sync

from tests.daemon import Daemon
from tests.kill.tally import TALLY, THOROUGH, chance
from tests.openai_endpoint import CountingModel, endpoint_settings, history_of, make_token

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800, func_only=True)]
KILLS = 60 if THOROUGH else 15


def ask(daemon: Daemon, token: str, number: int, *, streams: bool) -> str:
    """The answer to a request, or why there is none."""
    given = {
        "model": "squidbot",
        "messages": [{"role": "user", "content": f"question #{number}#"}],
        "extra_headers": {"Idempotency-Key": f"key {number}"},
        "metadata": {"conversation": f"c{number % 3}"},
    }
    try:
        with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=token, max_retries=0, timeout=120) as client:
            if not streams:
                return client.chat.completions.create(**given).choices[0].message.content or ""
            with client.chat.completions.create(stream=True, **given) as stream:
                chunks = list(stream)
    except (openai.OpenAIError, httpx.HTTPError) as error:
        return f"? {error}"
    if not chunks or chunks[-1].choices[0].finish_reason != "stop":
        return "?"
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def ask_until_answered(daemon: Daemon, token: str, number: int, *, streams: bool = False) -> str:
    deadline = time.monotonic() + 60
    while (said := ask(daemon, token, number, streams=streams)).startswith("?"):
        assert time.monotonic() < deadline, f"{said} {daemon.log()[-2000:]}"
        time.sleep(0.05)
    return said


def kill_often(daemon: Daemon, token: str) -> dict[int, str]:
    """The answers to all requests; each daemon is killed while the newest is on its way."""
    moments, answers = chance("endpoint"), dict[int, str]()
    for number in range(KILLS):
        streams, first = bool(number % 2), list[str]()
        asking = threading.Thread(
            target=lambda number=number, streams=streams, first=first: first.append(
                ask(daemon, token, number, streams=streams)
            )
        )
        asking.start()
        time.sleep(moments.random() * 0.09)
        daemon.kill()
        TALLY["SIGKILL around a request of the endpoint"] += 1
        asking.join()
        daemon.up()
        answers[number] = ask_until_answered(daemon, token, number, streams=not streams)
        if not first[0].startswith("?"):
            assert first[0] == answers[number]
    return answers


async def test_requests_over_kills(tmp_path):
    """Every request has one answer, the same for each repetition, and stands in the history once."""
    async with CountingModel(pause_s=0.004) as model:
        with Daemon(tmp_path / "home", endpoint_settings(model.api_base)) as daemon:
            await run_sync(daemon.up)
            token = await run_sync(make_token, daemon)
            answers = await run_sync(kill_often, daemon, token)
            for number, answer in answers.items():
                assert f"question #{number}#" in answer
                assert await run_sync(ask_until_answered, daemon, token, number) == answer
            assert len(set(answers.values())) == KILLS
            await run_sync(daemon.wait_until, lambda: daemon.work("inbox", "settled") == KILLS)
            daemon.terminate()
            assert await run_sync(daemon.ended) == 0
            lines = [line for line in history_of(daemon.home).splitlines() if '"assistant"' in line]
            for answer in answers.values():
                assert sum(answer in line for line in lines) == 1
            assert token not in daemon.log()


async def test_a_daemon_that_ignores_the_key_is_noticed(tmp_path):
    """The control: a repetition has another answer there."""
    async with CountingModel() as model:
        with Daemon(tmp_path / "home", endpoint_settings(model.api_base)) as daemon:
            daemon.module = "tests.kill.keyless_daemon"
            await run_sync(daemon.up)
            token = await run_sync(make_token, daemon)
            first = await run_sync(ask_until_answered, daemon, token, 0)
            await run_sync(daemon.kill)
            await run_sync(daemon.up)
            assert await run_sync(ask_until_answered, daemon, token, 0) != first
