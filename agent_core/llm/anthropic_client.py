"""
A client for Anthropic's Messages API (version 2023-06-01), which needs no litellm and keeps thoughts within a
turn. The results of one answer's tools stand together at the beginning of the next user message, a signed
thought is sent back unchanged before the calls that it led to, and ``max_tokens`` is larger than the budget
for thinking.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_core.llm.http_client import HttpModelClient, Reader
from agent_core.llm.model_client import Request
from agent_core.llm.openai_format import (
    CACHE_CONTROL,
    Piece,
    TokenCounts,
    ToolFragment,
    cached_places,
    token_count,
)
from agent_core.llm.tool_schemas import complete_schema
from agent_core.llm.wire import Pictures, WireMessage, encodable, wire_messages
from agent_core.models import Message, ToolCall, ToolDefinition
from agent_core.ports import Clock

DEFAULT_MAX_TOKENS = 16_384
"""Newer models think unless they are told not to, and a thought counts as answer."""
_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 4096, "high": 16_384, "xhigh": 32_768}
"""Tokens of thinking for each ``reasoning_effort``; 1,024 is the provider's least."""
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


def request_body(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    stream: bool,
    max_tokens: int | None = None,
    extra: Mapping[str, Any] | None = None,
    pictures: Pictures | None = None,
    own_name: str = "",
    adaptive: bool = False,
) -> dict[str, Any]:
    """
    The request for one answer. ``extra`` wins; its ``reasoning_effort`` becomes a budget for thinking, or for
    a model that is ``adaptive`` a degree.
    """
    more = dict(extra or {})
    shaped = wire_messages(messages, pictures or {}, own_name or model)
    places = cached_places(shaped)
    longest = max_tokens or DEFAULT_MAX_TOKENS
    body: dict[str, Any] = {"model": model, "stream": stream}
    effort = more.pop("reasoning_effort", "")
    if budget := _BUDGETS.get(effort):
        if adaptive:
            body["thinking"] = {"type": "adaptive"}
            body["output_config"] = {"effort": "low" if effort == "minimal" else effort}
        else:
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        longest = max(longest, budget + 4096)
    body["max_tokens"] = longest
    if shaped and shaped[0].role == "system":
        body["system"] = [{"type": "text", "text": shaped[0].text} | (CACHE_CONTROL if 0 in places else {})]
    body["messages"] = _turns(shaped, places)
    if tools:
        body["tools"] = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": complete_schema(tool.parameters),
            }
            for tool in tools
        ]
        body["tools"][-1] |= CACHE_CONTROL
        if messages and messages[-1].ends_tools:
            body["tool_choice"] = {"type": "none"}
    return body | more


def _turns(shaped: Sequence[WireMessage], places: set[int]) -> list[dict[str, Any]]:
    """The messages without the system text; results of tools are a user's, and neighbours are one."""
    turns: list[dict[str, Any]] = []
    for number, message in enumerate(shaped):
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if number in places:
            blocks[-1] |= CACHE_CONTROL
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: WireMessage) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [
            {
                "type": "tool_result",
                "tool_use_id": _id_of(message.call_id),
                "content": message.text or "(none)",
            }
        ]
    thoughts = message.reasoning.get("thinking_blocks", ())
    blocks: list[dict[str, Any]] = [{k: v for k, v in each.items() if k != "index"} for each in thoughts]
    if message.text and not (message.calls and message.text == "…"):
        blocks.append({"type": "text", "text": message.text})
    for media_type, content in message.pictures:
        data = base64.b64encode(content).decode()
        blocks.append({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}})
    return blocks + [_call(call) for call in message.calls]


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.loads(encodable(json.dumps(call.arguments)))
    return {"type": "tool_use", "id": _id_of(call.id), "name": _id_of(call.name), "input": arguments}


def _id_of(name: str) -> str:
    """An id or a name in the letters that the provider takes, whichever model has made it."""
    return _NOT_IN_IDS.sub("_", name)[:128] or "_"


class AnswerReader:
    """Turns one answer into `Piece`s, whether it comes as events or whole."""

    def __init__(self) -> None:
        self._usage: dict[str, Any] = {}

    def __call__(self, data: Mapping[str, Any]) -> Iterator[Piece]:
        """Return the pieces of an event, or of a whole answer. Raises ValueError if it is malformed."""
        if data.get("type") == "message":
            return _whole(data)
        return iter((self._event(data),))

    def _event(self, event: Mapping[str, Any]) -> Piece:
        match event.get("type"):
            case "message_start":
                self._usage |= _object(_object(event.get("message")).get("usage"))
                return Piece()
            case "content_block_start":
                return _start_of(_number(event), _object(event.get("content_block")))
            case "content_block_delta":
                return _delta_of(_number(event), _object(event.get("delta")))
            case "message_delta":
                self._usage |= {k: v for k, v in _object(event.get("usage")).items() if v is not None}
                reason = _object(event.get("delta")).get("stop_reason")
                return Piece(finish=_finish(reason), tokens=tokens_in(self._usage))
            case str():
                return Piece()
        raise ValueError("an event without a type")


def _whole(data: Mapping[str, Any]) -> Iterator[Piece]:
    content = data.get("content")
    if not isinstance(content, list):
        raise ValueError("an answer without content")  # noqa: TRY004 - about content, not types
    for number, block in enumerate(content):
        yield _start_of(number, _object(block))
    yield Piece(finish=_finish(data.get("stop_reason")), tokens=tokens_in(_object(data.get("usage"))))


def _start_of(number: int, block: Mapping[str, Any]) -> Piece:
    match block.get("type"):
        case "text":
            return Piece(text=str(block.get("text") or ""))
        case "tool_use":
            given = block.get("input")
            arguments = json.dumps(given) if given else ""
            fragment = ToolFragment(
                number, str(block.get("id") or ""), str(block.get("name") or ""), arguments
            )
            return Piece(fragments=(fragment,))
        case "thinking" | "redacted_thinking":
            thought = dict(block)
            return Piece(thought=len(str(block.get("thinking") or "")), reasoning=_kept(number, thought))
    return Piece()


def _delta_of(number: int, delta: Mapping[str, Any]) -> Piece:
    match delta.get("type"):
        case "text_delta":
            return Piece(text=str(delta.get("text") or ""))
        case "input_json_delta":
            return Piece(fragments=(ToolFragment(number, "", "", str(delta.get("partial_json") or "")),))
        case "thinking_delta":
            text = str(delta.get("thinking") or "")
            return Piece(thought=len(text), reasoning=_kept(number, {"type": "thinking", "thinking": text}))
        case "signature_delta":
            signature = str(delta.get("signature") or "")
            return Piece(reasoning=_kept(number, {"type": "thinking", "signature": signature}))
    return Piece()


def _kept(number: int, block: Mapping[str, Any]) -> dict[str, Any]:
    return {"thinking_blocks": [{**block, "index": number}]}


def _finish(reason: object) -> str | None:
    return _FINISH.get(reason, reason) if isinstance(reason, str) else None


def tokens_in(usage: Mapping[str, Any]) -> TokenCounts | None:
    """The tokens of an answer; what was read from or written to the cache belongs to the prompt."""
    if not usage:
        return None
    cached = token_count(usage.get("cache_read_input_tokens"))
    written = token_count(usage.get("cache_creation_input_tokens"))
    prompt = token_count(usage.get("input_tokens")) + cached + written
    return TokenCounts(prompt=prompt, completion=token_count(usage.get("output_tokens")), cached=cached)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(event: Mapping[str, Any]) -> int:
    number = event.get("index")
    if not isinstance(number, int):
        raise ValueError("an event without an index")  # noqa: TRY004 - about content, not types
    return number


API_BASE = "https://api.anthropic.com"
_VERSION = "2023-06-01"


class AnthropicClient(HttpModelClient):
    """
    A client for one model ``anthropic/NAME``, or of a compatible server.

    ``api_base`` is with or without ``/v1``, "" the provider's; ``api_key`` is sent as ``x-api-key``.
    """

    def __init__(
        self, model: str, *, clock: Clock, api_base: str = "", api_key: str = "", **common: Any
    ) -> None:
        base = (api_base or API_BASE).rstrip("/").removesuffix("/messages").removesuffix("/v1")
        super().__init__(
            model,
            url=f"{base}/v1/messages",
            clock=clock,
            headers={"anthropic-version": _VERSION, **({"x-api-key": api_key} if api_key else {})},
            api_key=api_key,
            **{**common, "max_tokens": common.get("max_tokens") or DEFAULT_MAX_TOKENS},
        )

    def _body(self, asked: Request) -> Mapping[str, Any]:
        return request_body(
            self.model.partition("/")[2], **self._common(asked), adaptive=self.refusals.budget
        )

    def _reader(self) -> Reader:
        return AnswerReader()
