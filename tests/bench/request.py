"""What goes to the model when somebody says "hello" for the first time: counted at the server, as it arrives."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anyio
import orjson

from channels.loopback import LoopbackChannel, LoopbackServer
from gateway.app import Overrides, build
from gateway.home import open_home
from gateway.logs import configure_logs
from gateway.settings import Settings
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal
from tests.fake_openai import FakeOpenAI

__all__ = ["first_request", "measure"]


def measure(rig: Rig) -> list[Figure]:
    """The whole request, and what its parts take."""
    configure_logs("error")
    headers, body = anyio.run(first_request)
    tools, messages = (len(orjson.dumps(body.get(part, []))) for part in ("tools", "messages"))
    note = f"messages {messages:,}, tools {tools:,}, HTTP {headers:,} bytes"
    return [
        Figure('the first request for "hello"', headers + body["bytes"], "bytes", Goal("<", 6000), note=note)
    ]


async def first_request(text: str = "hello") -> tuple[int, dict[str, Any]]:
    """
    Say something to a gateway on a new home whose model is a server of the OpenAI kind.

    Returns:
        The size of the request's headers, and its body with its own size as ``bytes``.
    """
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        async with FakeOpenAI() as fake:
            settings = Settings.model_validate(
                {
                    "llm": {
                        "providers": {"fake": {"api_base": fake.api_base, "api_key": "x"}},
                        "models": {"x": {"provider": "fake", "model": "openai/x"}},
                        "pools": {"main": ["x"]},
                    }
                }
            )
            server = LoopbackServer()
            overrides = Overrides(
                channels={"loopback": (LoopbackChannel(server), "merge")}, allow_from={"loopback": ("alice",)}
            )
            built = await build(settings, open_home(Path(folder) / "home"), overrides)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(built.gateway.run)
                server.say("alice", text)
                await server.answers(1)
                built.gateway.stop()
            headers = fake.headers[0]
            size = sum(len(name) + len(value) + 4 for name, value in headers.items())
            return size, fake.requests[0] | {"bytes": int(headers["Content-Length"])}
