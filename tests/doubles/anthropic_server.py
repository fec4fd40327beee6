"""
A server on loopback that speaks Anthropic's Messages API and refuses what the real one refuses.

Each request takes the next planned answer, a list of content blocks; ``refusals`` says why requests were refused.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from aiohttp import web

from tests.doubles.openai_server import ModelServer

FIELDS = {
    "model",
    "max_tokens",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "thinking",
    "temperature",
    "output_config",
}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def thought(said: str, signature: str = "c2ln") -> dict[str, Any]:
    return {"type": "thinking", "thinking": said, "signature": signature}


def use(name: str, call_id: str = "toolu_1", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


class FakeAnthropic(ModelServer):
    """
    The server. ``requests`` holds the bodies of all requests; ``adaptive`` is a model that takes no budget
    for thinking.
    """

    def __init__(self, *, adaptive: bool = False) -> None:
        self.adaptive = adaptive
        self.requests: list[dict[str, Any]] = []
        self.refusals: list[str] = []
        self.plan: deque[tuple[list[dict[str, Any]], str]] = deque()
        self.errors: deque[tuple[int, str, str]] = deque()

    def say(self, *blocks: dict[str, Any], stop: str = "") -> None:
        calls = any(block["type"] == "tool_use" for block in blocks)
        self.plan.append((list(blocks), stop or ("tool_use" if calls else "end_turn")))

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/messages", self._answer)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if not request.headers.get("x-api-key") or request.headers.get("anthropic-version") != "2023-06-01":
            return _error(401, "authentication_error", "invalid x-api-key")
        if self.errors:
            return _error(*self.errors.popleft())
        if refusal := refusal_of(body, adaptive=self.adaptive):
            self.refusals.append(refusal)
            return _error(400, "invalid_request_error", refusal)
        blocks, stop = self.plan.popleft() if self.plan else ([text("ok")], "end_turn")
        usage = {"input_tokens": 7, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 3}
        if not body.get("stream"):
            answer = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": stop}
            return web.json_response({**answer, "usage": {**usage, "output_tokens": 5}})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in _events(blocks, stop, usage):
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return response


def _events(blocks: list[dict[str, Any]], stop: str, usage: Mapping[str, int]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {**usage, "output_tokens": 1}, "content": []}},
        {"type": "ping"},
    ]
    for index, block in enumerate(blocks):
        begun, deltas = dict(block), []
        match block["type"]:
            case "text":
                begun["text"] = ""
                deltas = [{"type": "text_delta", "text": piece} for piece in block["text"]]
            case "thinking":
                begun |= {"thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in block["thinking"]]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case "tool_use":
                begun["input"] = {}
                told = json.dumps(block["input"]) if block["input"] else ""
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", told)]
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop, "stop_sequence": None}
    return [
        *events,
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def refusal_of(body: Mapping[str, Any], *, adaptive: bool = False) -> str:
    """Why the real server refuses a request; empty if it does not."""
    if unknown := body.keys() - FIELDS:
        return f"{min(unknown)}: Extra inputs are not permitted"
    if str(body).count("'cache_control'") > 4:
        return "A maximum of 4 blocks with cache_control may be provided."
    thinking = body.get("thinking")
    budget = (thinking or {}).get("budget_tokens")
    if adaptive and budget:
        return (
            '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.'
        )
    if adaptive and "temperature" in body:
        return "`temperature` is deprecated for this model."
    if budget and body["max_tokens"] <= thinking["budget_tokens"]:
        return (
            "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at "
            "https://docs.example/extended-thinking#max-tokens-and-context-window-size"
        )
    if thinking and body.get("temperature", 1) != 1:
        return "`temperature` may only be set to 1 when thinking is enabled."
    roles = [message["role"] for message in body["messages"]]
    if not roles or roles[0] != "user" or any(a == b for a, b in pairwise(roles)):
        return "messages: roles must alternate between user and assistant"
    open_calls: list[str] = []
    for number, message in enumerate(body["messages"]):
        blocks = message["content"]
        if not blocks or any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            return f"messages.{number}: text content blocks must be non-empty"
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if open_calls != results or any(b["type"] != "tool_result" for b in blocks[: len(results)]):
            return (
                f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after"
            )
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        last_turn = number == len(roles) - 2 and open_calls
        if thinking and last_turn and blocks[0]["type"] not in ("thinking", "redacted_thinking"):
            return f"messages.{number}.content.0.type: Expected `thinking` or `redacted_thinking`"
        if any(block["type"] == "thinking" and not block.get("signature") for block in blocks):
            return f"messages.{number}: thinking.signature: Field required"
        odd = [b for b in blocks if not re.fullmatch(r"[a-zA-Z0-9_-]+", b.get("id", "_"))]
        if odd:
            return f"messages.{number}.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if open_calls:
        return "the last message may not call a tool"
    for tool in body.get("tools", ()):
        if tool["input_schema"].get("type") != "object":
            return f"tools.0.custom.input_schema.type: Field required ({tool['name']})"
    return ""


def _error(status: int, kind: str, message: str) -> web.Response:
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return web.json_response(body, status=status)
