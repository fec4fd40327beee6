"""
A client for Ollama's own chat API (``/api/chat``): only there the context window of a request can be set.
Ollama silently cuts off the beginning of whatever exceeds it (4,096 tokens by default), so every request
names its window, and nothing longer is sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agent_core.errors import ModelError, ModelRefused
from agent_core.language import _
from agent_core.llm.http_client import HttpModelClient, Reader
from agent_core.llm.model_client import Request
from agent_core.llm.openai_format import Piece, TokenCounts, ToolFragment, function_tools, token_count
from agent_core.llm.pools import HOME_TOKENS, capabilities, model_window
from agent_core.llm.wire import Pictures, WireMessage, wire_messages
from agent_core.models import Message, ToolDefinition
from agent_core.ports import Clock

_TOP = frozenset({"think", "format", "keep_alive", "truncate", "shift"})
"""Fields of a request; all other parameters are options of the model."""
_OTHER_NAMES = {"max_tokens": "num_predict", "max_completion_tokens": "num_predict"}


def request_body(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    stream: bool,
    window: int | None,
    max_tokens: int | None = None,
    extra: Mapping[str, Any] | None = None,
    pictures: Pictures | None = None,
    own_name: str = "",
    thinks: bool = True,
) -> dict[str, Any]:
    """
    The request for one answer. ``extra`` wins; ``thinks`` is false for a model that refuses ``think``.

    ``truncate`` and ``shift`` forbid what Ollama does unless it is told otherwise: to cut off the beginning
    of what does not fit, in silence. Servers before 0.12.6 do not know them.
    """
    names: dict[str, str] = {}
    shaped = wire_messages(messages, pictures or {}, own_name or model)
    body: dict[str, Any] = {"model": model, "messages": [_message(each, names) for each in shaped]}
    if tools and not (messages and messages[-1].ends_tools):
        body["tools"] = function_tools(tools)
    body |= {"stream": stream, "truncate": False, "shift": False}
    options: dict[str, Any] = {} if max_tokens is None else {"num_predict": max_tokens}
    for name, value in (extra or {}).items():
        if name == "reasoning_effort":
            body |= {"think": think_value(model, value)} if thinks else {}
        elif name == "options" and isinstance(value, Mapping):
            options |= value
        elif name in _TOP:
            body[name] = value
        else:
            options[_OTHER_NAMES.get(name, name)] = value
    if window is not None:
        options["num_ctx"] = window  # the smaller of what anybody has said, `extra` too
    return body | {"options": options}


def think_value(model: str, effort: object) -> bool | str:
    """Return the value of Ollama's ``think``: only gpt-oss has degrees."""
    if "gpt-oss" in model:
        return {"medium": "medium", "high": "high", "xhigh": "high"}.get(str(effort), "low")
    return effort != "none"


def _message(message: WireMessage, names: dict[str, str]) -> dict[str, Any]:
    """One message; ``names`` are those of the tools by id of call, and are added to."""
    out: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.pictures:
        out["images"] = [base64.b64encode(content).decode() for _, content in message.pictures]
    if message.calls:
        names.update({call.id: call.name for call in message.calls})
        out["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.role == "tool":
        out |= {"tool_name": names.get(message.call_id, ""), "tool_call_id": message.call_id}
    return out | dict(message.reasoning)


def read(data: Mapping[str, Any]) -> Iterator[Piece]:
    """Read one line of a stream, or one whole answer. Raises `ValueError`: it is neither."""
    message = data.get("message")
    if not isinstance(message, dict):
        raise ValueError("an answer without a message")  # noqa: TRY004 - about content, not types
    content, thinking = message.get("content"), message.get("thinking")
    thinking = thinking if isinstance(thinking, str) else ""
    reason = data.get("done_reason")
    yield Piece(
        text=content if isinstance(content, str) else "",
        fragments=tuple(_fragments(message.get("tool_calls"))),
        tokens=_tokens(data),
        finish=(reason if isinstance(reason, str) and reason else "stop") if data.get("done") else None,
        thought=len(thinking),
        reasoning={"thinking": thinking} if thinking else {},
    )


def _tokens(data: Mapping[str, Any]) -> TokenCounts | None:
    """The usage; None where the server leaves out the prompt, as old ones do for one that they have kept."""
    prompt = token_count(data.get("prompt_eval_count"))
    return TokenCounts(prompt, token_count(data.get("eval_count"))) if prompt else None


def _fragments(calls: object) -> Iterator[ToolFragment]:
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise ValueError("a tool call without a function")  # noqa: TRY004 - about content, not types
        arguments = function.get("arguments")
        yield ToolFragment(
            index=None,
            id=str(call.get("id") or ""),
            name=str(function.get("name") or ""),
            arguments=arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
        )


API_BASE = "http://127.0.0.1:11434"


class OllamaClient(HttpModelClient):
    """
    A client for one model ``ollama/NAME``.

    ``api_base`` is with or without ``/v1``, "" this machine; ``window`` is the owner's, else the smaller of
    `HOME_TOKENS` and the model's.
    """

    at_home = True

    def __init__(
        self,
        model: str,
        *,
        clock: Clock,
        api_base: str = "",
        api_key: str = "",
        window: int | None = None,
        **common: Any,
    ) -> None:
        base = (api_base or API_BASE).rstrip("/").removesuffix("/api").removesuffix("/v1")
        extra = dict(common.pop("extra", None) or {})
        options = extra.get("options")
        told = (window, extra.pop("num_ctx", None), options.get("num_ctx") if options else None)
        wished = [int(each) for each in told if each]
        super().__init__(
            model,
            url=f"{base}/api/chat",
            clock=clock,
            headers={},
            api_key=api_key,
            window=min(wished, default=HOME_TOKENS),
            extra=extra,
            **common,
        )
        self._base = base
        self._is_wished = bool(wished)
        self._name = model.partition("/")[2]
        self._known = False
        self._thinks = True

    async def _prepare(self) -> None:
        """Look the model up, until the server has said what it is."""
        if self._known:
            return
        try:
            shown = await self._server.fetch_json(f"{self._base}/api/show", {"model": self._name})
        except ModelError as error:
            if (missing := self._missing(error)) is not None:
                raise missing from error
            return  # whatever it is, asking the question will say it
        if not isinstance(shown, Mapping):
            return
        self._known = True
        self._learn_window(model_window(shown), wished=self._is_wished)
        able = capabilities(shown)
        if able is None:
            return
        self._thinks = "thinking" in able
        if "tools" not in able:
            self.refusals.all_tools = True
            self._note(
                f"{self._name} cannot use tools: it only talks; those at ollama.com/search?c=tools can"
            )
        if "vision" not in able and self._pictures is not None:
            self._pictures = None
            self._note(
                f"{self._name} cannot look at pictures, whatever the configuration says; set vision: false"
            )

    def _body(self, asked: Request) -> Mapping[str, Any]:
        return request_body(self._name, **self._common(asked), window=self.window, thinks=self._thinks)

    def _reader(self) -> Reader:
        return read

    async def _pieces(self, asked: Request) -> AsyncGenerator[Piece, None]:
        try:
            async with aclosing(super()._pieces(asked)) as pieces:
                async for piece in pieces:
                    yield piece
        except ModelRefused as error:
            self._known = self._known and error.fields.get("status") != 404
            raise self._missing(error) or error from error

    def _missing(self, error: ModelError) -> ModelError | None:
        """The error for a model that is not there, with the command that loads it; it cools nothing."""
        if error.fields.get("status") != 404 or "not found" not in str(error) or self._name not in str(error):
            return None
        load = f"ollama pull {self._name}"
        return ModelRefused(
            f"{error}; load it with: {load}",
            public=_(
                "The language model is not on its server. My operator can load it with: {load}", load=load
            ),
            **{**error.fields, "cool_s": 0.0},
        )
