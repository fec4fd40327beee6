"""A real daemon with the endpoint for OpenAI's clients, its tokens, and a model whose answers all differ."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.command_line import squidbot
from tests.daemon import Daemon
from tests.doubles.openai_server import FakeOpenAI, Say

OWNER = "@you:example.org"


class CountingModel(FakeOpenAI):
    """Answers with the last message and a number that is never used again; ``pause_s`` before each of five pieces."""

    def __init__(self, pause_s: float = 0.0) -> None:
        super().__init__()
        self.pause_s = pause_s
        self._numbers = itertools.count()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        asked = str(body["messages"][-1]["content"]).strip().splitlines()[-1]
        words = (f"to {asked}: ", "answer ", "number ", f"<{next(self._numbers)}>", ".")
        return await self._give(Say(*words, pause_s=self.pause_s), request, body)


def endpoint_settings(api_base: str = "", **more: Any) -> dict[str, Any]:
    """Settings with the endpoint alone; without an ``api_base`` the demo model answers."""
    model = {"model": "demo/rules"} if not api_base else {"provider": "p", "model": "openai/m"}
    providers = {"providers": {"p": {"api_base": api_base, "api_key": "x"}}} if api_base else {}
    return {
        "owner": {"aliases": [OWNER]},
        "llm": {**providers, "models": {"m": model}, "pools": {"main": ["m"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {"api": {}},
        **more,
    }


def make_token(daemon: Daemon, name: str = "phone", *arguments: str) -> str:
    """The text of a new token."""
    done = squidbot(daemon.home, "tokens", "add", name, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["token"])


def history_of(home: Path) -> str:
    """All histories of a home."""
    return "\n".join(path.read_text() for path in sorted((home / "sessions").rglob("*.jsonl")))
