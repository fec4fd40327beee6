"""
What goes to the model at the first "hello", and how much of it comes again: counted at the server, as it
arrives.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import orjson

from agent_core.ports import ToolPort
from gateway.app import Overrides, build
from gateway.observability.logs import configure_logs
from gateway.settings import Settings
from gateway.system.home import open_home
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.doubles.openai_server import FakeOpenAI, Say

_TURNS = 20
_OWNER = "@alice:hs.test"
"""Who is offered every tool."""


def measure(rig: Rig) -> list[Figure]:
    """The whole request, and what its parts take."""
    configure_logs("error")
    headers, body = anyio.run(first_request)
    tools, messages = (len(orjson.dumps(body.get(part, []))) for part in ("tools", "messages"))
    note = f"messages {messages:,}, tools {tools:,}, HTTP {headers:,} bytes"
    share = cacheable_share(anyio.run(conversation, _TURNS))
    return [
        Figure(
            'size of the first model request for "hello"',
            headers + body["bytes"],
            "bytes",
            Goal("<", 4500),
            note=note,
        ),
        Figure(
            f"share of a conversation's requests that a provider can cache, {_TURNS} turns",
            share * 100,
            "%",
            Goal(">=", 90),
            note="tools and messages, the first turn not counted",
        ),
    ]


async def first_request(text: str = "hello", tools: Sequence[ToolPort] = ()) -> tuple[int, dict[str, Any]]:
    """
    Say something to a gateway on a new home whose model is a server of the OpenAI kind.

    Args:
        tools: Besides the usual ones.

    Returns:
        The size of the request's headers, and its body with its own size as ``bytes``.
    """
    fake = await _talked_to([text], tools=tools)
    headers = fake.headers[0]
    size = sum(len(name) + len(value) + 4 for name, value in headers.items())
    return size, fake.requests[0] | {"bytes": int(headers["Content-Length"])}


async def conversation(turns: int) -> list[dict[str, Any]]:
    """The requests of so many turns of one conversation, with questions and answers of a usual length."""
    questions = [f"Question {number}: {'what about the trains to the sea? ' * 3}" for number in range(turns)]
    answers = [
        Say(f"Answer {number}: {'they leave at the full hour, said the clerk. ' * 9}")
        for number in range(turns)
    ]
    return (await _talked_to(questions, answers)).requests


async def _talked_to(
    texts: Sequence[str], answers: Sequence[Say] = (), tools: Sequence[ToolPort] = ()
) -> FakeOpenAI:
    """The server of the model, after a person has said all of this."""
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        async with FakeOpenAI() as fake:
            fake.plan(*answers)
            settings = Settings.model_validate(
                {
                    "owner": {"aliases": [_OWNER]},
                    "llm": {
                        "providers": {"fake": {"api_base": fake.api_base, "api_key": "x"}},
                        "models": {"x": {"provider": "fake", "model": "openai/x"}},
                        "pools": {"main": ["x"]},
                    },
                }
            )
            server = LoopbackServer()
            overrides = Overrides(
                channels={"matrix": (LoopbackChannel(server, name="matrix"), "merge")},
                allow_from={"matrix": (_OWNER,)},
                tools=tools,
            )
            built = await build(settings, open_home(Path(folder) / "home"), overrides)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(built.run)
                for number, text in enumerate(texts):
                    server.say(_OWNER, text)
                    await server.answers(number + 1)
                built.stop()
            return fake


def common_beginning(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071 - characters are what is meant


def cacheable_share(requests: Sequence[Mapping[str, Any]]) -> float:
    """
    What part of all requests but the first stood at the beginning of the one before, in providers' order.
    """
    said = [orjson.dumps([request.get("tools"), request["messages"]]).decode() for request in requests]
    common = sum(common_beginning(before, after) for before, after in pairwise(said))
    return common / sum(len(text) for text in said[1:])
