"""
What speaking an answer costs beyond the provider's own time: from the commit of the answer until the voice message
is at its server, without the time between request and sound.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from devservers import SpeechServer
from gateway.app import Overrides, build
from gateway.observability.logs import configure_logs
from gateway.settings import Settings
from gateway.system.home import open_home
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal, median
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.doubles.queue import wrapping

_ANSWER = "This is one of the sentences of an answer that takes ten seconds. " * 2 + "It is over now, sir."
"""150 characters."""
_OWNER = "@alice:hs.test"
_PROVIDER_S = 0.05


def measure(rig: Rig) -> list[Figure]:
    """The median of some answers, and a bare request beside it."""
    configure_logs("error")
    took, bare = anyio.run(overheads, 5 if rig.quick else 40)
    return [
        Figure(
            "speaking an answer of 10 s, beyond the provider's time: p50",
            median(took) * 1000,
            "ms",
            Goal("<", 100),
            floor=median(bare) * 1000,
            floor_is="the bare request, without the provider's time",
            note="from the commit of the answer until the voice message is sent; on a loopback channel",
        )
    ]


class _Provider(SpeechServer):
    """Notes when it was asked and when the sound was on its way."""

    def __init__(self) -> None:
        super().__init__(wait_s=_PROVIDER_S)
        self.times: list[float] = []

    def _answer(self, handler: Any) -> None:
        began = time.monotonic()
        super()._answer(handler)
        self.times.append(time.monotonic() - began)

    async def own_time(self, number: int) -> float:
        """Seconds that the request of this number, from 0, took here; noted just after its answer has gone out."""
        with anyio.fail_after(5):
            while len(self.times) <= number:
                await anyio.sleep(0.001)
        return self.times[number]


class _Commits:
    """Notes when answers were committed."""

    def __init__(self, turns: Any) -> None:
        self._turns = turns
        self.at: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turns, name)

    async def complete(self, *args: Any, **named: Any) -> Any:
        rows = await self._turns.complete(*args, **named)
        self.at.append(time.monotonic())
        return rows


async def overheads(count: int) -> tuple[list[float], list[float]]:
    """For each of so many answers the seconds beyond the provider's, and those of as many bare requests."""
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder, _Provider() as provider:
        took = await _spoken(Path(folder), provider, count)
        provider.times.clear()
        return took, await _bare(provider, count)


async def _spoken(folder: Path, provider: _Provider, count: int) -> list[float]:
    settings = Settings.model_validate(
        {
            "owner": {"aliases": [_OWNER]},
            "llm": {
                "providers": {"p": {"api_base": provider.api_base}},
                "models": {"demo": {"model": "demo/echo"}},
                "pools": {"main": ["demo"]},
            },
            "voice": {"speak": {"when": "always", "provider": "p", "model": "openai/tts-x"}},
        }
    )
    server, commits = LoopbackServer(), []

    def noted(turns: Any) -> Any:
        commits.append(_Commits(turns))
        return commits[-1]

    overrides = Overrides(
        channels={"matrix": (LoopbackChannel(server, name="matrix"), "merge")},
        allow_from={"matrix": (_OWNER,)},
        wrap_queue=wrapping(turns=noted),
    )
    built = await build(settings, open_home(folder / "home"), overrides)
    took = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        for number in range(count + 2):
            server.say(_OWNER, _ANSWER)
            seen = await server.answers(2 * number + 2)
            sent = time.monotonic()
            assert seen[-1].attachments, seen[-1]
            took.append(sent - commits[0].at[-1] - await provider.own_time(number))
        built.stop()
    return took[2:]  # the first ones load what is needed


async def _bare(provider: _Provider, count: int) -> list[float]:
    took = []
    async with aiohttp.ClientSession() as session:
        for number in range(count + 1):
            began = time.monotonic()
            async with session.post(f"{provider.api_base}/audio/speech", json={"input": _ANSWER}) as answer:
                await answer.read()
            ended = time.monotonic()
            took.append(ended - began - await provider.own_time(number))
    return took[1:]
