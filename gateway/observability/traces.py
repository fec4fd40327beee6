"""
Spans of turns, model calls, tool calls and deliveries, named by OpenTelemetry's conventions for generative AI
(`trace_export.SCHEMA_URL`). Off, which is the default, every function returns at once and nothing is
imported. Spans hold counts, names of ours and kinds of origins; what people and models say is in them only
with ``contents``, without configured secrets and what looks like one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from agent_core.models import Message, ToolCall, ToolResult, Usage
from agent_core.provenance import Origins, trust_of
from gateway.observability.redaction import Redactor
from gateway.store.stores import OutboxRow, Step, Turn

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

    from gateway.observability.trace_export import SpanSender

INSTALL = "pip install '.[otel]'"
_LINKS = 1000
"""The answers to so many messages can be linked to their turns, until the process ends."""
_log = structlog.get_logger(__name__)


@dataclass
class _Traces:
    """The state of traces that are on."""

    sender: SpanSender
    redactor: Redactor
    contents: bool
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """Nobody outside of this process can tell which conversation a name of it stands for."""
    turns: OrderedDict[int, SpanContext] = field(default_factory=OrderedDict)

    def text(self, value: object) -> str:
        """``value`` as JSON without secrets."""
        return json.dumps(self.redactor.value(value), default=str)


@dataclass(eq=False)
class _Scope:
    """The current turn or delivery, with its tool calls that have not ended."""

    span: Span
    tools: dict[int, Span] = field(default_factory=dict)


_on: list[_Traces] = []
"""One entry while traces are on."""
_current: ContextVar[_Scope | None] = ContextVar("traced", default=None)


def missing_for_traces() -> str:
    """Return the command that installs what is missing; empty if nothing is."""
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        found = found and importlib.util.find_spec("opentelemetry.sdk.trace")
    except ModuleNotFoundError:
        found = None
    return "" if found else INSTALL


def start_traces(
    endpoint: str, headers: Mapping[str, str], *, contents: bool, secret_texts: Iterable[str]
) -> None:
    """Send spans to a collector from now on; without the extra ``otel`` say so and go on without."""
    if missing := missing_for_traces():
        _log.warning("traces.off", reason="OpenTelemetry is not installed", remedy=missing)
        return
    from gateway.observability.trace_export import SpanSender  # noqa: PLC0415 - 20 MB that few want

    stop_traces()
    try:
        sender = SpanSender(endpoint, headers)
    except Exception as error:  # noqa: BLE001 - the library reads OTEL_* variables, and no answer needs it
        _log.warning("traces.off", reason=f"{type(error).__name__}: {error}", remedy="OTEL_* variables")
        return
    _on.append(_Traces(sender, Redactor(secret_texts), contents))


def stop_traces() -> None:
    """Send what waits, for some seconds at most, and stop. Raises nothing."""
    while _on:
        _on.pop().sender.stop()


def note_outcome(outcome: str) -> None:
    """Record the outcome of the current turn or delivery."""
    if (scope := _current.get()) is not None:
        scope.span.set_attribute("squidbot.outcome", outcome)


@contextmanager
def _scope(
    on: _Traces, name: str, told: Mapping[str, Any], *, kind: str = "", to: SpanContext | None = None
) -> Iterator[_Scope]:
    """A span that the calls within are below of."""
    scope, error = _Scope(on.sender.begin(name, told, kind=kind, parent=None, to=to)), ""
    token = _current.set(scope)
    try:
        yield scope
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        _current.reset(token)
        for left in scope.tools.values():
            on.sender.end(left, error or "Interrupted")
        on.sender.end(scope.span, error)


@contextmanager
def trace_turn(turn: Turn) -> Iterator[None]:
    """Within, the span of a turn."""
    if not _on:
        yield
        return
    on, ids = _on[0], [row.id for row in turn.rows]
    conversation = hashlib.blake2b(str(turn.session).encode(), key=on.key, digest_size=16).hexdigest()
    told = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "squidbot",
        "gen_ai.conversation.id": conversation,
        "squidbot.channel": turn.channel,
        "squidbot.turn.id": turn.id,
        "squidbot.turn.kind": turn.head.message.kind,
        "squidbot.turn.attempt": turn.attempts,
        "squidbot.inbox.ids": ids,
    }
    with _scope(on, "invoke_agent squidbot", told) as scope:
        for number in ids:
            on.turns[number] = scope.span.get_span_context()
        while len(on.turns) > _LINKS:
            on.turns.popitem(last=False)
        yield


@contextmanager
def trace_delivery(row: OutboxRow, channel: str) -> Iterator[None]:
    """Within, the span of one try to send a message; it is linked to the turn that it answers."""
    if not _on:
        yield
        return
    told = {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.system": channel,
        "squidbot.outbox.id": row.id,
        "squidbot.outbox.kind": row.message.kind.value,
        "squidbot.outbox.attempt": row.attempts + 1,
    } | ({} if row.inbox_id is None else {"squidbot.inbox.id": row.inbox_id})
    to = None if row.inbox_id is None else _on[0].turns.get(row.inbox_id)
    with _scope(_on[0], f"send {channel}", told, kind="producer", to=to):
        yield


class ModelTrace:
    """The span of one model call, fallbacks and retries of a pool included, until `end`."""

    def __init__(self, purpose: str, messages: Sequence[Message]) -> None:
        self._on, self._span = (_on[0] if _on else None), None
        if self._on is None:
            return
        scope = _current.get()
        parent = None if scope is None else next(reversed(scope.tools.values()), scope.span)
        told: dict[str, Any] = {"gen_ai.operation.name": "chat", "squidbot.purpose": purpose}
        if self._on.contents:
            told["gen_ai.input.messages"] = self._on.text([_parts(message) for message in messages])
        self._span = self._on.sender.begin("chat", told, kind="client", parent=parent, to=None)

    def end(
        self, texts: Sequence[str], calls: Sequence[ToolCall], cost: Usage | None, error: BaseException | None
    ) -> None:
        """End it with what was answered so far, and why that is not all."""
        if self._on is None or self._span is None:
            return
        usage = cost or Usage()
        provider, __, name = usage.model.partition("/")
        told: dict[str, Any] = {
            "gen_ai.provider.name": provider or "_OTHER",
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        }
        if name:
            told["gen_ai.request.model"] = name
            self._span.update_name(f"chat {name}")
        if error is None:
            told["gen_ai.response.finish_reasons"] = ["tool_call" if calls else "stop"]
        if self._on.contents:
            said = Message(role="assistant", content="".join(texts), tool_calls=tuple(calls))
            told["gen_ai.output.messages"] = self._on.text([_parts(said)])
        self._span.set_attributes(told)
        self._on.sender.end(self._span, "" if error is None else type(error).__name__)


def begin_tool(step: Step, call: ToolCall, effect: str, origins: Origins) -> None:
    """Begin the span of a tool call, below the current turn; ``step`` may have a receipt."""
    scope = _current.get()
    if not _on or scope is None:
        return
    on = _on[0]
    told: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.id[:100].encode("ascii", "replace").decode(),
        "squidbot.step": step.number,
        "squidbot.effect": effect,
        "squidbot.origins": sorted({origin.kind for origin in origins}),
        "squidbot.trust": trust_of(origins).name.lower(),
        "squidbot.receipt": step.receipt is not None,
        "squidbot.receipt.approved": step.receipt is not None and bool(step.receipt.approved_by),
    }
    if on.contents:
        told["gen_ai.tool.call.arguments"] = on.text(call.arguments)
    scope.tools[step.number] = on.sender.begin(
        f"execute_tool {call.name}", told, kind="", parent=scope.span, to=None
    )


def end_tool(number: int, result: ToolResult) -> None:
    """End the span of the call of this number with the outcome that its receipt gets."""
    scope = _current.get()
    if not _on or scope is None or (span := scope.tools.pop(number, None)) is None:
        return
    outcome = "unknown" if result.is_unknown else "failed" if result.is_error else "done"
    span.set_attribute("squidbot.outcome", outcome)
    span.set_attribute("squidbot.result.origins", sorted({origin.kind for origin in result.origins}))
    if _on[0].contents:
        span.set_attribute("gen_ai.tool.call.result", _on[0].text(result.content))
    _on[0].sender.end(span, "tool_error" if result.is_error else "")


def _parts(message: Message) -> dict[str, Any]:
    """A message in the form of the conventions."""
    if message.role == "tool":
        response = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [response]}
    parts: list[dict[str, Any]] = [{"type": "text", "content": message.content}] if message.content else []
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return {"role": message.role, "parts": parts}
