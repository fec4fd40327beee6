"""
An ordered pool of models that looks like one: the first that works answers, and a failed one is skipped for a
while (`cool_down_s`); faults of the request cool nothing. An error before any output goes to the next member,
a later one to the caller, who alone can withdraw shown text. The window of a model is the smallest that the
owner, the model and the server state, because a server may cut a longer prompt silently.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.errors import (
    ContextTooLong,
    CreditSpent,
    ModelAuthFailed,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
    ModelUnreadable,
    StreamBroken,
)
from agent_core.models import Message, ModelChunk, ToolDefinition
from agent_core.ports import Clock, LLMPort

_COOL_DOWN = BackoffPolicy(first_s=2.0, cap_s=120.0, jitter=0)
_log = structlog.get_logger(__name__)


# ── decisions, pure ──


def cool_down_s(error: ModelError, failures: int) -> float:
    """Return the seconds to skip a member after its ``failures``-th error in a row; 0.0: not at all."""
    if needs_operator(error):
        return 300.0
    if isinstance(error, ModelRateLimited) and error.retry_after_s is not None:
        return error.retry_after_s
    if isinstance(error, ContextTooLong | ModelRefused):
        return 0.0
    if isinstance(error, StreamBroken):
        failures -= 1
    return _COOL_DOWN.ceiling(failures) if failures > 0 else 0.0


def is_firm(error: ModelError) -> bool:
    """Return True if the cool-down must be respected even if no other member is left."""
    return isinstance(error, ModelRateLimited) and error.retry_after_s is not None


def needs_operator(error: ModelError) -> bool:
    """Return True if only the operator can help: a wrong key, an unknown model, no credit."""
    return bool(error.fields.get("operator")) or isinstance(error, ModelAuthFailed)


def most_informative(
    errors: Sequence[tuple[str, ModelError]], *, pool: str, back_in_s: float | None
) -> ModelError:
    """
    The error to raise when all members failed, from (member, error) in the order of the pool.

    ``back_in_s`` is when the first of them can be asked again; it becomes the ``retry_after_s`` of a
    `ModelRateLimited`. The cause is set to the error that was chosen.
    """
    chosen = min((error for _, error in errors), key=_rank)
    members = {name: str(error) for name, error in errors}
    fields = {
        name: value for name, value in chosen.fields.items() if name not in ("retry_after_s", "members")
    }
    fields |= {"pool": pool, "members": members, "public": chosen.public}
    raised: ModelError
    if isinstance(chosen, ModelRateLimited):
        waits = [wait for wait in (chosen.retry_after_s, back_in_s) if wait is not None]
        raised = ModelRateLimited(str(chosen), retry_after_s=min(waits, default=None), **fields)
    elif isinstance(chosen, StreamBroken):
        raised = StreamBroken(str(chosen), partial=chosen.partial, **fields)
    else:
        raised = type(chosen)(str(chosen), **fields)
    raised.__cause__ = chosen
    return raised


def _rank(error: ModelError) -> int:
    if isinstance(error, ContextTooLong):
        return 0
    if isinstance(error, ModelRateLimited):
        return 1
    if error.temporary:
        return 2
    if isinstance(error, CreditSpent):
        return 4
    return 5 if needs_operator(error) else 3


@dataclass(slots=True)
class _Member:
    name: str
    llm: LLMPort
    cools_until: float = -math.inf
    losses: int = 0
    failures: int = 0
    calls: int = 0
    answers: int = 0
    error: ModelError | None = None
    unreadable: set[str] = field(default_factory=set)

    def note_failure(self, error: ModelError, now: float, *, losses_before: int) -> None:
        """Note a failure; concurrent ones count once (``losses_before``: `losses` at their start)."""
        if not (isinstance(error, ContextTooLong | ModelRefused) and not error.fields.get("operator")):
            self.failures += self.losses == losses_before
            self.losses += 1
        if isinstance(error, ModelUnreadable):
            error.fields["final"] = error.kind in self.unreadable
            self.unreadable.add(error.kind)
        cool_s = cool_down_s(error, self.failures)
        if cool_s > 0 or self.cools_until <= now:
            self.error = error
        self.cools_until = max(self.cools_until, now + cool_s)

    def note_answer(self) -> None:
        self.answers += 1
        self.failures = 0
        self.cools_until = -math.inf
        self.error = None
        self.unreadable.clear()


def _choose(members: Sequence[_Member], now: float) -> list[_Member]:
    """Return the members to call, in order; empty if all are cooling for a firm reason."""
    ready = [member for member in members if member.cools_until <= now]
    if ready:
        return ready
    mended = [member for member in members if member.error is not None and needs_operator(member.error)]
    soft = [m for m in members if m not in mended and (m.error is None or not is_firm(m.error))]
    return [*mended, *sorted(soft, key=lambda member: member.cools_until)[:1]]


# ── the pool ──


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of a member, for ``status``. ``cooling_s`` is 0.0 if it can be asked now."""

    name: str
    cooling_s: float
    failures: int
    calls: int
    answers: int
    error: str = ""
    fields: dict[str, object] = field(default_factory=dict)


class ModelPool:
    """Implements `LLMPort` over ``members`` (name, model), tried in order; ``name`` is for reports."""

    def __init__(self, name: str, members: Sequence[tuple[str, LLMPort]], clock: Clock) -> None:
        if not members:
            raise ValueError(f"the pool {name!r} has no members")
        self.name = name
        self.models = [llm for _, llm in members]
        self._members = [_Member(member, llm) for member, llm in members]
        self._clock = clock
        self.on_credit_spent: Callable[[ModelError], None] = lambda _: None
        """Called each time that a member refuses because its account has nothing left."""
        self.on_substitute: Callable[[ModelError], None] = lambda _: None
        """Called when another member answers for one that only the operator can mend, with its error."""
        self.on_recovery: Callable[[ModelError], None] = lambda _: None
        """Called when a member answers again, with the error that it had before."""

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        """Ask for one answer; see `LLMPort` and the module."""
        return self._answer(messages, tools, stream=stream)

    def state(self) -> list[MemberState]:
        """The states of the members, in their order."""
        now = self._clock.monotonic()
        return [
            MemberState(
                name=member.name,
                cooling_s=max(member.cools_until - now, 0.0),
                failures=member.failures,
                calls=member.calls,
                answers=member.answers,
                error="" if member.error is None else str(member.error),
                fields={} if member.error is None else dict(member.error.fields),
            )
            for member in self._members
        ]

    async def _answer(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool
    ) -> AsyncGenerator[ModelChunk, None]:
        errors: dict[str, ModelError] = {}
        for member in _choose(self._members, self._clock.monotonic()):
            handed_out = False
            member.calls += 1
            losses_before = member.losses
            try:
                chunks = cast(
                    "AsyncGenerator[ModelChunk, None]", await member.llm.chat(messages, tools, stream=stream)
                )
                async with aclosing(chunks):
                    async for chunk in chunks:
                        handed_out = True
                        yield chunk
            except ModelError as error:
                self._failed(member, error, losses_before)
                if handed_out:
                    raise
                errors[member.name] = error
                continue
            ended = member.error if member.failures else None
            member.note_answer()
            if ended is not None:
                self.on_recovery(ended)
            for lost in errors.values():
                if needs_operator(lost) and not isinstance(lost, CreditSpent):
                    self.on_substitute(lost)
            return
        raise self._all_failed(errors)

    def _failed(self, member: _Member, error: ModelError, losses_before: int) -> None:
        now = self._clock.monotonic()
        member.note_failure(error, now, losses_before=losses_before)
        if isinstance(error, CreditSpent):
            self.on_credit_spent(error)
        _log.warning(
            "model.failed",
            pool=self.name,
            model=member.name,
            kind=type(error).__name__,
            error=str(error),
            cooling_s=round(max(member.cools_until - now, 0.0), 1),
        )

    def _all_failed(self, errors: Mapping[str, ModelError]) -> ModelError:
        """Combine the errors of this call with those for which the other members cool down."""
        now = self._clock.monotonic()
        told = [
            (member.name, error)
            for member in self._members
            if (error := errors.get(member.name, member.error)) is not None
        ]
        if not told:
            return ModelUnavailable(f"the pool {self.name} has nobody to ask", pool=self.name)
        back_in_s = min(max(member.cools_until - now, 0.0) for member in self._members)
        return most_informative(told, pool=self.name, back_in_s=back_in_s)


HOME_TOKENS = 16_384
"""Asked of Ollama where the owner has said nothing: a model of 8 billion parameters then fits into 8 GB."""
ADDRESSES = ("/v1/models", "/props", "/api/v0/models", "/api/ps")
"""Of vLLM and llama.cpp, llama.cpp, LM Studio, and Ollama asked in OpenAI's protocol."""
_KEYS = ("max_model_len", "loaded_context_length", "context_length", "n_ctx")


def window_in(answer: object, model: str) -> int | None:
    """The window of a model in what one of `ADDRESSES` gives; None if it does not say. Pure."""
    found: list[int] = []
    for entry in _entries(answer, model):
        nested = (entry.get("meta"), entry.get("default_generation_settings"))
        for fields in (entry, *(each for each in nested if isinstance(each, dict))):
            found += [fields[key] for key in _KEYS if _is_window(fields.get(key))]
    return min(found, default=None)


def _entries(answer: object, model: str) -> Iterable[Mapping[str, Any]]:
    if not isinstance(answer, dict):
        return []
    listed = answer.get("data", answer.get("models"))
    if not isinstance(listed, list):
        return [answer]
    entries = [each for each in listed if isinstance(each, dict)]
    names = ("id", "name", "model")
    named = [each for each in entries if {model, f"{model}:latest"} & {each.get(key) for key in names}]
    return named or (entries if len(entries) == 1 else [])


def model_window(shown: Mapping[str, Any]) -> int | None:
    """The longest window that a model of Ollama can have, by ``/api/show``; None if that says nothing."""
    info = shown.get("model_info")
    found = [
        value
        for key, value in (info.items() if isinstance(info, dict) else ())
        if key.endswith(".context_length") and _is_window(value)
    ]
    return min(found, default=None)


def capabilities(shown: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the capabilities of an Ollama model; None if the server is too old to report them."""
    told = shown.get("capabilities")
    return frozenset(map(str, told)) if isinstance(told, list) else None


def least_tokens(messages: Sequence[Message]) -> int:
    """Return a lower bound of tokens: one per word, and per four characters of scripts without blanks."""
    return sum(
        max(len(text.split()), (len(text.encode(errors="replace")) - len(text)) // 8)
        for text in (message.content for message in messages)
    )


def answer_room(window: int) -> int:
    """Return the tokens of a window that are reserved for the answer."""
    return window // 8


def _is_window(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 256
