"""
The process in which litellm runs, started by `LiteLLMProcess`; only its translation between providers is
used. Before the import it confines itself (`confinement`), and disables litellm's price download and ``.env``
loading. A warm-up call against loopback loads the rest. Traps: 401 arrives as "bad request" and a refused
connection as status 500 (``model_errors`` decides); the openai SDK retries twice under two names; a stream
left with ``break`` stays open until ``aclose``; without reported usage it counts tokens, which loads 100 MiB.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import logging
import os
import socket
import sys
import time
import warnings
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio

from agent_core.children.service_child import begin_child, load_reporting, serve
from agent_core.children.service_confinement import confine, library_paths
from agent_core.llm.litellm.litellm_client import frame_of
from agent_core.llm.model_errors import failure_of
from agent_core.llm.openai_format import Piece, TokenCounts, ToolFragment, request_body, token_count
from agent_core.models import Message, ToolDefinition

_CHUNK = (
    b'data: {"id":"w","object":"chat.completion.chunk","created":1,"model":"w","choices":'
    b'[{"index":0,"delta":{"role":"assistant","content":"x"},"finish_reason":null}]}\n\n'
    b'data: {"id":"w","object":"chat.completion.chunk","created":1,"model":"w","choices":'
    b'[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"w","object":"chat.completion.chunk","created":1,"model":"w","choices":[],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


_MEMORY_BYTES = 1_500_000_000
_WARM_UP_LIMIT_S = 20.0
_MAX_SOUND_BYTES = 5_500_000
"""In base64 the daemon takes it as one frame."""


# ── loading ──


def _load() -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_MODE"] = "PRODUCTION"
    gc.disable()  # collecting while half a million objects are made only for good costs a seventh of the time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _import_and_quieten()


def _import_and_quieten() -> None:
    import litellm  # noqa: PLC0415 - after the process was confined

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.turn_off_message_logging = True
    litellm.drop_params = True  # a parameter that a provider does not know is no reason to fail
    litellm.modify_params = True  # Anthropic: a conversation with tool calls, asked without tools
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.setLevel(logging.WARNING)


async def _warm_up() -> str:
    """One streamed call with a tool; what went wrong, which makes the first call slow and no more."""
    tool = ToolDefinition(name="t", description="d", parameters={"type": "object", "properties": {}})
    said = [Message(role="user", content="x")]
    request = request_body("openai/warm-up", said, [tool], stream=True, max_tokens=1)
    request |= {"api_key": "none", "max_retries": 0, "num_retries": 0, "timeout": _WARM_UP_LIMIT_S}
    try:
        with anyio.fail_after(_WARM_UP_LIMIT_S):
            async with warm_up_responder() as api_base:
                async for _ in _pieces(request | {"api_base": api_base}, stream=True, cost=False):
                    pass
    except Exception as error:  # noqa: BLE001 - see the docstring
        return f"{type(error).__name__}: {error}"[:300]
    return ""


# ── asking ──


async def _answers(frame: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
    """The pieces of what is asked for."""
    if frame["task"] == "transcription":
        yield frame_of(await _transcribe(frame["request"]))
        return
    if frame["task"] == "speech":
        yield frame_of(await _said(frame["request"]))
        return
    if frame["task"] == "image":
        yield frame_of(await _drawn(frame["request"], cost=frame["cost"]))
        return
    async with contextlib.aclosing(
        _pieces(frame["request"], stream=frame["stream"], cost=frame["cost"])
    ) as pieces:
        async for piece in pieces:
            yield frame_of(piece)


async def _pieces(request: Mapping[str, Any], *, stream: bool, cost: bool) -> AsyncGenerator[Piece, None]:
    import litellm  # noqa: PLC0415 - see `_load`

    response: Any = None
    try:
        response = await litellm.acompletion(**request)
        if not stream:
            message = response.choices[0].message if response.choices else None
            yield _piece(response, message, request, cost=cost)
            return
        async for chunk in response:
            delta = chunk.choices[0].delta if chunk.choices else None
            yield _piece(chunk, delta, request, cost=cost)
    finally:
        if stream and response is not None:
            await response.aclose()


async def _transcribe(request: Mapping[str, Any]) -> Piece:
    """Transcribe the sound file in ``request["file"]``: name, base64 content and media type."""
    import litellm  # noqa: PLC0415 - see `_load`

    name, content, media_type = request["file"]
    file = (name, base64.b64decode(content), media_type)
    answer = await litellm.atranscription(**{**request, "file": file})
    return Piece(text=str(answer.text or ""))


async def _said(request: Mapping[str, Any]) -> Piece:
    """A text as sound, in base64: whatever the provider gives, as far as anybody would take it."""
    import litellm  # noqa: PLC0415 - see `_load`

    answer = await litellm.aspeech(**request)
    content = bytes(answer.content)
    if len(content) > _MAX_SOUND_BYTES:
        raise ValueError("a sound without end")
    return Piece(text=base64.b64encode(content).decode())


async def _drawn(request: Mapping[str, Any], *, cost: bool) -> Piece:
    """A picture, as the JSON of OpenAI's protocol, and what it has cost."""
    import litellm  # noqa: PLC0415 - see `_load`

    made = await litellm.aimage_generation(**request)
    data = [{"b64_json": each.b64_json, "url": each.url} for each in made.data or ()]
    usage = getattr(made, "usage", None)
    told = {name: getattr(usage, name, 0) for name in ("input_tokens", "output_tokens")}
    cost_usd = _cost_of_image(made, request["model"]) if cost else None
    return Piece(text=json.dumps({"data": data, "usage": told}), cost_usd=cost_usd)


def _cost_of_image(made: Any, model: str) -> float | None:
    import litellm  # noqa: PLC0415 - see `_load`

    try:
        kind = "image_generation"
        return float(litellm.completion_cost(completion_response=made, model=model, call_type=kind))
    except Exception:  # noqa: BLE001 - it raises all kinds for a model that it does not know
        return None


def _piece(chunk: Any, body: Any, request: Mapping[str, Any], *, cost: bool) -> Piece:
    usage = getattr(chunk, "usage", None)
    tokens = None
    if usage is not None:
        tokens = _tokens(usage)
    fragments = tuple(
        ToolFragment(
            index=getattr(call, "index", None),
            id=call.id or "",
            name=call.function.name or "",
            arguments=call.function.arguments or "",
        )
        for call in (getattr(body, "tool_calls", None) or ())
    )
    return Piece(
        text=getattr(body, "content", None) or "",
        fragments=fragments,
        tokens=tokens,
        finish=chunk.choices[0].finish_reason if chunk.choices else None,
        cost_usd=_cost_or_none(request["model"], usage) if cost and usage is not None else None,
        thought=len(getattr(body, "reasoning_content", None) or ""),
        reasoning={
            name: value
            for name in ("reasoning_content", "thinking_blocks")
            if (value := getattr(body, name, None))
        },
    )


def _tokens(usage: Any) -> TokenCounts:
    read = getattr(usage, "prompt_tokens_details", None)
    written = getattr(usage, "completion_tokens_details", None)
    prompt, completion = token_count(usage.prompt_tokens), token_count(usage.completion_tokens)
    return TokenCounts(
        prompt,
        completion,
        cached=min(token_count(getattr(read, "cached_tokens", 0)), prompt),
        thinking=min(token_count(getattr(written, "reasoning_tokens", 0)), completion),
    )


def _cost_or_none(model: str, usage: Any) -> float | None:
    import litellm  # noqa: PLC0415 - see `_load`

    try:
        paid = litellm.ModelResponse(model=model, usage=usage)
        return float(litellm.completion_cost(completion_response=paid, model=model))
    except Exception:  # noqa: BLE001 - it raises all kinds for a model that it does not know
        return None


# ── serving ──


async def _serve(link: socket.socket, gave: Mapping[str, int], began: float) -> None:
    imported = time.monotonic()
    trouble = await _warm_up()
    gc.enable()
    gc.collect()
    gc.freeze()
    took = {"import_s": round(imported - began, 2), "warm_up_s": round(time.monotonic() - imported, 2)}
    await serve(link, _answers, {**gave, **took, "trouble": trouble}, failure=failure_of)


def main() -> None:
    """Serve the socket that is named on the command line."""
    begin_child(memory_bytes=_MEMORY_BYTES)
    link = socket.socket(fileno=int(sys.argv[1]))
    began = time.monotonic()
    gave = confine(library_paths("agent_core", "litellm"))
    load_reporting(link, _load)
    asyncio.run(_serve(link, gave, began))
    os._exit(0)  # what litellm leaves behind is not waited for


_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nContent-Length: "
    + str(len(_CHUNK)).encode()
    + b"\r\n\r\n"
    + _CHUNK
)


async def _respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b"0"
        )
        await reader.readexactly(int(length))
        writer.write(_ANSWER)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def warm_up_responder() -> AsyncGenerator[str, None]:
    """The ``api_base`` of a responder that lives as long as the block."""
    server = await asyncio.start_server(_respond, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


if __name__ == "__main__":
    main()
