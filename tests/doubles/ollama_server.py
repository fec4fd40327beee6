"""
An Ollama on loopback as the real one is: 4,096 tokens unless a request names its window, and what is longer
loses its beginning without a word (unless ``truncate`` is false, on servers that know it).

A token is a word here. The script is a function of what the model really gets to read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.doubles.openai_server import ModelServer

Say = dict[str, Any]
DEFAULT_CONTEXT = 4096


def call(name: str, **arguments: Any) -> Say:
    return {"content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


@dataclass
class Pulled:
    """A model on the server."""

    context: int = 40_960
    capabilities: tuple[str, ...] = ("completion", "tools")


@dataclass
class FakeOllama(ModelServer):
    """
    The server.

    Args:
        answer: What the model says to the text that it can read; `Say` is a message.
        knows_truncate: Whether it is new enough to refuse what is too long where it is told to.
        honours_window: Whether requests choose their window.
    """

    answer: Callable[[str], str | Say] = lambda _: "ok"
    models: dict[str, Pulled] = field(default_factory=lambda: {"qwen3:4b": Pulled()})
    knows_truncate: bool = True
    honours_window: bool = True
    breaks_with: str = ""
    done_reason: str = "stop"
    requests: list[dict[str, Any]] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    cuts: int = 0
    shown: int = 0

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/chat", self._chat),
            web.post("/api/show", self._show),
            web.get("/api/ps", self._ps),
            web.post("/v1/chat/completions", self._openai),
        ]

    async def _show(self, request: web.Request) -> web.Response:
        name = (await request.json())["model"]
        self.shown += 1
        if name not in self.models:
            return _error(404, f"model '{name}' not found")
        model = self.models[name]
        info = {"general.architecture": "qwen3", "qwen3.context_length": model.context}
        return web.json_response({"model_info": info, "capabilities": list(model.capabilities)})

    async def _ps(self, _: web.Request) -> web.Response:
        return web.json_response({"models": [{"name": name, "context_length": 4096} for name in self.models]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        name = body["model"]
        if name not in self.models:
            return _error(404, f'model "{name}" not found, try pulling it first')
        model = self.models[name]
        if body.get("tools") and "tools" not in model.capabilities:
            return _error(400, f"registry.ollama.ai/library/{name} does not support tools")
        if body.get("think") and "thinking" not in model.capabilities:
            return _error(400, f'"{name}" does not support thinking')
        wanted = body["options"].get("num_ctx", DEFAULT_CONTEXT) if self.honours_window else DEFAULT_CONTEXT
        words = _words(body)
        window = min(wanted, model.context)
        if len(words) > window:
            if self.knows_truncate and body.get("truncate") is False:
                told = f"request ({len(words)} tokens) exceeds the available context size ({window} tokens)"
                return _error(400, told)
            words = words[-window:]
            self.cuts += 1
        self.requests.append(body)
        self.read.append(" ".join(words))
        said = self.answer(self.read[-1])
        message = said if isinstance(said, dict) else {"content": said}
        end = {"done": True, "done_reason": self.done_reason}
        end |= {"prompt_eval_count": len(words), "eval_count": 5}
        if not body["stream"]:
            return web.json_response({"message": {"role": "assistant", **message}, **end})
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        text = message.get("content", "")
        pieces: list[dict[str, Any]] = (
            [{"thinking": message["thinking"], "content": ""}] if "thinking" in message else []
        )
        pieces += [{"content": text[at : at + 3]} for at in range(0, len(text), 3)]
        pieces += [{"content": "", "tool_calls": [one]} for one in message.get("tool_calls", ())]
        for piece in pieces:
            await _write(response, {"message": {"role": "assistant", **piece}, "done": False})
        if self.breaks_with:
            await _write(response, {"error": self.breaks_with})
        else:
            await _write(response, {"message": {"role": "assistant", "content": ""}, **end})
        return response

    async def _openai(self, request: web.Request) -> web.Response:
        """The same in OpenAI's protocol, where no request can choose its window."""
        body = await request.json()
        self.requests.append(body)
        words = _words(body)
        self.cuts += len(words) > DEFAULT_CONTEXT
        words = words[-DEFAULT_CONTEXT:]
        self.read.append(" ".join(words))
        said = self.answer(self.read[-1])
        message = dict(said) if isinstance(said, dict) else {"content": said}
        calls = [one["function"] for one in message.pop("tool_calls", ())]
        if calls:
            message["tool_calls"] = [
                {"id": "1", "type": "function", "function": one | {"arguments": json.dumps(one["arguments"])}}
                for one in calls
            ]
        choice = {"message": {"role": "assistant", **message}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(words), "completion_tokens": 5}
        return web.json_response({"choices": [choice], "usage": usage})


def _words(body: dict[str, Any]) -> list[str]:
    """The prompt as the template makes it: tools behind the system text, then the messages."""
    texts = [f"<{message['role']}> {message['content']}" for message in body["messages"]]
    texts[1:1] = [json.dumps(tool) for tool in body.get("tools", ())]
    return " ".join(texts).split()


async def _write(response: web.StreamResponse, value: object) -> None:
    await response.write(json.dumps(value).encode() + b"\n")


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
