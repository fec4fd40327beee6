"""
Connections to servers by the official SDK; only this module and `guarded_http` import it. That takes a second
and 30 MB, so this module is imported in a thread when a server is first needed
(`agent_core.tools.mcp.servers`). The SDK provides the protocol, in both of its eras. The streams below it are
our own: those of the SDK collect a line of any length in quadratic time, and leave children of a server
behind.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import anyio
import httpx2
import mcp_types as types
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter, ValidationError

from agent_core.children.long_running import NOT_STARTED, serving
from agent_core.errors import AgentError
from agent_core.text import one_line
from agent_core.tools.mcp.config import McpServerSettings
from agent_core.tools.mcp.definitions import (
    MAX_BYTES,
    MAX_TOOLS,
    Allowance,
    Kind,
    LineReader,
    ServerMisbehaviour,
    check_message,
    definition_from,
)
from agent_core.tools.mcp.guarded_http import End, GuardedTransport
from agent_core.tools.mcp.mcp_logins import Bearer
from agent_core.tools.mcp.offers import (
    RESULTS,
    all_pages,
    fit_lists,
    is_lost,
    list_offers,
    request_for,
    text_of,
)
from agent_core.tools.mcp.server_calls import Calls, McpCall
from agent_core.tools.mcp.server_connection import (
    Ask,
    Era,
    Link,
    Offer,
    ServerAnswer,
    ServerCouldNotAsk,
    ServerError,
    ServerLost,
    ServerUnavailable,
    Stderr,
)

_PIECE = 65536
_CONNECT_LIMIT_S = 10.0
_SAID_CHARS = 500
_HANDED_ON = ("HOME", "LANG", "LC_ALL", "PATH", "TZ", "USER")
_ELICITATION = "elicitation/create"
_NOT_AN_ANSWER = "the server's answer is not one"
# What a server sends wrong is said once, by us; the SDK would log each message of it with a traceback.
for _name in ("mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@asynccontextmanager
async def connect(
    settings: McpServerSettings, stderr: Stderr, bearer: Bearer | None = None, era: Era | None = None
) -> AsyncIterator[Link]:
    """Connect to a server, entered and left by one task. Raises ServerUnavailable with a text."""
    end = End()
    try:
        async with (
            _address(settings, end, bearer) if settings.url else _program(settings, stderr, end) as (
                reading,
                writing,
            ),
            _session(_FitMessages(reading), writing, end, era or Era()) as link,
        ):
            yield link
    except Exception as error:
        raise _unavailable(_alone(error), end) from error


def _unavailable(error: BaseException, end: End) -> BaseException:
    """Convert an exception of the SDK or the system to one with a text for the owner."""
    if isinstance(error, AgentError):
        return error
    if end.error is not None:
        return end.error
    said = end.why
    if not said and isinstance(error, httpx2.HTTPError | OSError):
        said = f"it cannot be started or reached: {one_line(str(error) or type(error).__name__, _SAID_CHARS)}"
    elif not said and isinstance(error, MCPError):
        said = end.hint or f"it says: {one_line(error.message, _SAID_CHARS)}"
    elif not said and isinstance(error, ValidationError | RuntimeError | ValueError):
        said = "it does not speak MCP as it should"
    return ServerUnavailable(said) if said else error


def _alone(error: BaseException) -> BaseException:
    """The one error in nested groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def _session(reading: Any, writing: Any, end: End, era: Era) -> AsyncIterator[Link]:
    calls = Calls()
    async with ClientSession(reading, writing, elicitation_callback=calls.elicit) as session:
        await _begin(session, era)
        yield _SdkLink(session, end, calls, reading.left_out, era)


class _FitMessages:
    """The messages of a server, with lists that the SDK takes although an entry of them is odd."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.left_out: list[str] = []
        """What was odd in lists since somebody has emptied this."""

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.__aexit__(*error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        item: SessionMessage | Exception = await self._stream.__anext__()
        if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse):
            self.left_out += fit_lists(item.message.result)
        return item


async def _begin(session: ClientSession, era: Era) -> None:
    """
    Agree on a version: the newer era is tried first, and servers of the older one know nothing of it.

    No answer within the SDK's own limit says neither: then both are tried in turns. Whoever connects has a
    limit for all of it.
    """
    if era.is_older:
        with suppress(MCPError):
            await session.initialize()
            return
    while True:
        try:
            await session.discover()
        except MCPError as error:
            is_slow = error.error.code == types.REQUEST_TIMEOUT
        except (ValidationError, RuntimeError):
            is_slow = False
        else:
            return
        try:
            await session.initialize()
        except MCPError as error:
            if not is_slow or error.error.code == types.CONNECTION_CLOSED:
                raise
        else:
            return


class _SdkLink:
    def __init__(self, session: ClientSession, end: End, calls: Calls, left_out: list[str], era: Era) -> None:
        self.is_outdated = False
        self._era = era
        self._left_out = left_out
        self._session = session
        self._end = end
        self._calls = calls

    @property
    def why(self) -> str:
        return self._end.why

    async def wait_end(self) -> None:
        await self._end.came.wait()

    async def definitions(self, *, allowed: frozenset[str]) -> Offer:
        self._left_out.clear()
        try:
            tools, are_more = await all_pages(self._session.list_tools, lambda page: page.tools, MAX_TOOLS)
            described = (definition_from(one.name, one.description, one.input_schema) for one in tools)
            found = [one for one in described if one and (not allowed or one.name in allowed)]
            names = {each.name for each in found}
            more = [each for each in await list_offers(self._session) if each.name not in names]
        except MCPError as error:
            raise self._translate_error(error) from error
        except (ValidationError, ValueError) as error:
            raise ServerUnavailable("its list of tools is malformed") from error
        if are_more or len(found) > MAX_TOOLS:
            self._left_out.append(f"all tools but the first {MAX_TOOLS}")
        found = found[:MAX_TOOLS] + [each for each in more if not allowed or each.name in allowed]
        return Offer(tuple(found), tuple(self._left_out))

    async def call(
        self, tool: str, arguments: Mapping[str, Any], ask: Ask | None = None, kind: Kind = "tool"
    ) -> ServerAnswer:
        try:
            answer = await self._call(tool, arguments, ask, kind)
        except ServerError as error:
            if self._cannot_ask(str(error)):
                raise ServerCouldNotAsk from error
            raise
        if answer.failed and self._cannot_ask(answer.text):
            raise ServerCouldNotAsk
        return answer

    def _cannot_ask(self, said: str) -> bool:
        """
        Return True if the server wanted to ask a person, and the newer era has no way for a request of its.

        The next connection is then one of the older era.
        """
        if self._era.is_older or _ELICITATION not in said:
            return False
        self._era.is_older = self.is_outdated = True
        return True

    async def _call(
        self, tool: str, arguments: Mapping[str, Any], ask: Ask | None, kind: Kind
    ) -> ServerAnswer:
        with self._calls.track_call(ask) as call:
            if kind == "resources":
                return ServerAnswer(
                    text_of(*await all_pages(self._page_of_resources, lambda page: page.resources))
                )
            # Not `call_tool`: that checks the result by a schema of the server's own, whose regular
            # expressions may take for ever.
            result = await self._finished(
                lambda given: request_for(kind, tool, arguments, given), RESULTS[kind], call
            )
        match result:
            case types.CallToolResult():
                return _answer(result.content, result.structured_content, failed=bool(result.is_error))
            case types.ReadResourceResult():
                whole = [types.EmbeddedResource(type="resource", resource=each) for each in result.contents]
                return _answer(whole)
            case types.GetPromptResult():
                return _answer([each.content for each in result.messages])
        raise ServerLost(_NOT_AN_ANSWER)

    async def _finished(
        self, request: Callable[[dict[str, Any]], Any], kind: TypeAdapter[Any], call: McpCall
    ) -> Any:
        """The result of a request, after what the server wants to know first."""
        given: dict[str, Any] = {}
        for _ in range(6):
            result = await self._sent(request(given), kind)
            if not isinstance(result, types.InputRequiredResult):
                return result
            given = {"input_responses": await call.responses(result), "request_state": result.request_state}
        raise ServerLost("the server keeps asking, so the call was abandoned")

    async def _sent(self, request: Any, kind: TypeAdapter[Any]) -> Any:
        try:
            return await self._session.send_request(request, kind)
        except MCPError as error:
            raise self._translate_error(error) from error
        except (ValidationError, ValueError) as error:
            raise ServerLost(_NOT_AN_ANSWER) from error

    async def _page_of_resources(self, *, params: Any) -> types.ListResourcesResult:
        found = await self._sent(types.ListResourcesRequest(params=params), RESULTS["resources"])
        assert isinstance(found, types.ListResourcesResult)
        return found

    def _translate_error(self, error: MCPError) -> ServerError | ServerLost:
        if self._end.why or is_lost(error):
            closed = error.error.code == types.CONNECTION_CLOSED
            said = "the connection ended" if closed else one_line(error.message, _SAID_CHARS)
            return ServerLost(self._end.why or said)
        return ServerError(one_line(error.message, _SAID_CHARS))


def _answer(content: Sequence[Any], structured: object = None, *, failed: bool = False) -> ServerAnswer:
    texts: list[str] = []
    files: list[tuple[str, bytes]] = []
    for part in content:
        match part:
            case types.TextContent():
                texts.append(part.text)
            case types.ImageContent() | types.AudioContent():
                _file(part.data, part.mime_type, texts, files)
            case types.ResourceLink():
                texts.append(f"[a link, not followed: {one_line(str(part.uri), 300)}]")
            case types.EmbeddedResource():
                inner = part.resource
                if isinstance(inner, types.TextResourceContents):
                    texts.append(inner.text)
                else:
                    _file(inner.blob, inner.mime_type or "", texts, files)
    if structured is not None and not _is_said(structured, texts):
        texts.append(json.dumps(structured, ensure_ascii=False, indent=1))
    return ServerAnswer("\n".join(texts), failed, tuple(files))


def _is_said(structured: Any, texts: Sequence[str]) -> bool:
    """Return True if the texts already contain the structured result, which servers may wrap in an object."""
    if not texts:
        return False
    said = [_value_of(text) for text in texts]
    alone = list(structured.values()) if isinstance(structured, dict) and len(structured) == 1 else []
    return structured in said or any(each in said or each in texts or each == said for each in alone)


def _value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _file(data: str, media_type: str, texts: list[str], files: list[tuple[str, bytes]]) -> None:
    try:
        files.append((one_line(media_type, 80), base64.b64decode(data, validate=True)))
    except (binascii.Error, ValueError):
        texts.append("[a file that cannot be read]")


# ── an address ──


@asynccontextmanager
async def _address(
    settings: McpServerSettings, end: End, bearer: Bearer | None
) -> AsyncIterator[tuple[Any, Any]]:
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    async with (
        httpx2.AsyncClient(
            headers={**headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(settings.timeout_s + _CONNECT_LIMIT_S, connect=_CONNECT_LIMIT_S),
            follow_redirects=False,
            trust_env=False,
            transport=GuardedTransport(end, bearer),
        ) as client,
        streamable_http_client(
            str(settings.url), http_client=client, max_sse_event_size=2 * MAX_BYTES
        ) as streams,
    ):
        yield streams


# ── a program ──

_Read = MemoryObjectReceiveStream[SessionMessage | Exception]
_Written = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def _program(
    settings: McpServerSettings, stderr: Stderr, end: End
) -> AsyncIterator[tuple[_Read, _Written]]:
    environment = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    environment |= {name: value.get_secret_value() for name, value in settings.env.items()}
    arrived, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    async with (
        arrived,
        reading,
        writing,
        leaving,
        serving([settings.command, *settings.args], environment=environment) as process,
        anyio.create_task_group() as tasks,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        tasks.start_soon(_collect, process.stderr, stderr)
        tasks.start_soon(_read_messages, process, arrived, end, stderr, settings)
        tasks.start_soon(_speak, process, leaving, arrived, end)
        try:
            yield reading, writing
        finally:
            tasks.cancel_scope.cancel()


async def _collect(stream: ByteReceiveStream, stderr: Stderr) -> None:
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        async for piece in stream:
            stderr.add(piece)


async def _read_messages(
    process: Process,
    arrived: MemoryObjectSendStream[SessionMessage | Exception],
    end: End,
    stderr: Stderr,
    settings: McpServerSettings,
) -> None:
    """Hand on what the program says; its end, or what no server should do, ends the connection."""
    assert process.stdout is not None
    lines, allowance = LineReader(), Allowance()
    async with arrived:
        try:
            while True:
                for line in lines.feed(await process.stdout.receive(_PIECE)):
                    allowance.spend(len(line), now=anyio.current_time())
                    check_message(line)
                    message = parsed_line(line, is_own=settings.trust == "own")
                    if message is not None:
                        await arrived.send(message)
        except ServerMisbehaviour as error:
            end.set(str(error))
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            with anyio.move_on_after(1):
                await process.wait()
            end.set(_ended(process, stderr))


def parsed_line(line: bytes, *, is_own: bool) -> SessionMessage | None:
    """
    Read the message of a line, or None.

    An answer behind a log text without an end of line counts, too; not from a server whose words count as
    the owner's, because a log repeats words of others.
    """
    start = 0
    if not line.lstrip().startswith(b"{"):
        start = -1 if is_own else line.find(b'{"')
        if start < 0:
            return None  # a banner
    try:
        message = types.jsonrpc_message_adapter.validate_json(line[start:], by_name=False)
    except ValueError:
        return None
    is_answer = isinstance(message, types.JSONRPCResponse | types.JSONRPCError)
    return SessionMessage(message) if is_answer or not start else None


def _ended(process: Process, stderr: Stderr) -> str:
    text = stderr.text().strip()
    last = text.rpartition("\n")[2]
    if process.returncode == NOT_STARTED and last.startswith("cannot be started"):
        return f"it {one_line(last, _SAID_CHARS)}"
    said = _last_words(text)
    code = "" if process.returncode is None else f" with exit status {process.returncode}"
    return f"it ended{code}" + (f"; its last words: {said}" if said else "")


def _last_words(text: str) -> str:
    """Return the last lines that fit: the very last one is often no reason but a hint or a version."""
    tail = text[-_SAID_CHARS:]
    whole = tail if len(tail) == len(text) else tail.partition("\n")[2] or tail
    return one_line(whole, _SAID_CHARS)


async def _speak(
    process: Process,
    leaving: MemoryObjectReceiveStream[SessionMessage],
    arrived: MemoryObjectSendStream[SessionMessage | Exception],
    end: End,
) -> None:
    """Hand the program what it is told; one that does not listen any more is given up."""
    assert process.stdin is not None
    async with leaving:
        try:
            async for message in leaving:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                with anyio.fail_after(10.0):
                    await process.stdin.send(line.encode() + b"\n")
        except TimeoutError:
            end.set("it does not read its input")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            return  # what it says until its end is still heard
    await arrived.aclose()
