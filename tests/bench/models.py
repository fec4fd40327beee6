"""
Providers that are asked in their own protocols: how often, how much of a request they can keep, and what the
daemon takes with them. Counted at servers that refuse what the real ones refuse.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread

from gateway.app import Overrides, build
from gateway.observability.logs import configure_logs
from gateway.settings import Settings
from gateway.system.home import open_home
from tests.bench.request import cacheable_share
from tests.bench.rig import Rig
from tests.bench.size import _ask
from tests.bench.table import Figure, Goal
from tests.doubles.anthropic_server import FakeAnthropic, text, thought, use
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.doubles.ollama_server import FakeOllama

_TURNS = 20
_OWNER = "@alice:hs.test"


def measure(rig: Rig) -> list[Figure]:
    """Calls, share and memory."""
    configure_logs("error")
    plain = anyio.run(thinking_conversation, _TURNS, False)
    with_tools = anyio.run(thinking_conversation, _TURNS, True)
    return [
        Figure("model calls in a turn without tools", len(plain) / _TURNS, "", Goal("=", 1)),
        Figure("model calls in a turn with one tool", len(with_tools) / _TURNS, "", Goal("=", 2)),
        Figure(
            f"share of a conversation's requests that a provider can cache, {_TURNS} turns with tools and thinking",
            cacheable_share(with_tools) * 100,
            "%",
            Goal(">=", 90),
            note="tools, system text and messages; the first request not counted, and results of tools are short",
        ),
        *(_memory(rig, name) for name in ("Ollama", "Anthropic")),
    ]


async def thinking_conversation(turns: int, tools: bool) -> list[dict[str, Any]]:
    """The requests of so many turns with a model of Anthropic that thinks, without the marks for its cache."""
    async with FakeAnthropic() as fake:
        for number in range(turns):
            if tools:
                fake.say(thought(f"hm {number}"), use("search_history", f"toolu_{number}", query="zebra"))
            fake.say(thought("so"), text(f"Answer {number}: {'they leave at the full hour. ' * 15}"))
        settings = {"owner": {"aliases": [_OWNER]}, "llm": _settings("Anthropic", fake.api_base)}
        with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
            server = LoopbackServer()
            overrides = Overrides(
                channels={"matrix": (LoopbackChannel(server, name="matrix"), "merge")},
                allow_from={"matrix": (_OWNER,)},
            )
            home = open_home(Path(folder) / "home")
            built = await build(Settings.model_validate(settings), home, overrides)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(built.run)
                for number in range(turns):
                    server.say(_OWNER, f"Question {number}: {'what about the trains to the sea? ' * 3}")
                    await server.answers(number + 1)
                built.stop()
    return [_in_order(request) for request in fake.requests]


def _in_order(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request as the provider reads it: the system text behind the tools; marks are no part of the text."""
    bare = _without_marks(request)
    return {"tools": bare["tools"], "messages": [bare["system"], *bare["messages"]]}


def _without_marks(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_marks(each) for key, each in value.items() if key != "cache_control"}
    return [_without_marks(each) for each in value] if isinstance(value, list) else value


def _settings(name: str, api_base: str) -> dict[str, Any]:
    model = {"Ollama": "ollama/qwen3:4b", "Anthropic": "anthropic/claude"}[name]
    return {
        "providers": {"fake": {"api_base": api_base, "api_key": "x"}},
        "models": {"x": {"provider": "fake", "model": model, "reasoning_effort": "low"}},
        "pools": {"main": ["x"]},
    }


def _memory(rig: Rig, name: str) -> Figure:
    """What a daemon takes after an answer of this provider; missed if it has started litellm."""
    fake: AbstractAsyncContextManager[Any] = FakeOllama() if name == "Ollama" else FakeAnthropic()
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(fake) as server,
    ):
        daemon = rig.daemon(_settings(name, server.api_base))
        daemon.start()
        _ask(rig, daemon)
        time.sleep(3.0)
        taken_mb, started = daemon.rss_mb, "child_process.started" in daemon.log()
        daemon.stop()
    what = f"resident memory of the daemon after its first answer of {name}, without litellm's process"
    return Figure(
        what, None if started else taken_mb, "MB", Goal("<", 100), note="litellm was started" * started
    )
