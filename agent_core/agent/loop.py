"""`AgentLoop`: the interface of a turn for its callers; ``run`` does the work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import cast
from uuid import uuid4

import structlog

from agent_core.agent.agent_run import AgentRun, RunTools
from agent_core.agent.seen_words import SeenWords
from agent_core.agent.turn_limits import CallLimits, TurnLimits
from agent_core.errors import ModelError, ModelRefused, ModelUnreadable, StreamBroken, TurnLimitReached
from agent_core.llm.model_errors import empty_answer, endless_answer
from agent_core.memory.manager import MemoryManager
from agent_core.messages import Attachment
from agent_core.models import (
    AnswerEnd,
    Message,
    ModelAnswer,
    ModelChunk,
    Session,
    ToolCall,
    ToolDefinition,
    ToolResult,
    TurnResult,
    Usage,
)
from agent_core.ports import AllowancePort, ChannelPort, Clock, LLMPort, StepJournal, ToolPort
from agent_core.provenance import Origins, join_origins
from agent_core.text import is_visible
from agent_core.tools.person_port import limit_time
from agent_core.tools.policy import ConsentPort, Permission, PolicyVerdict, Proposal, verdict_on
from agent_core.tools.tool_registry import ToolRegistry, definition_of


class AgentLoop:
    """
    Runs turns of all sessions, concurrently, with the tools of ``registry``.

    ``llm`` serves runs without a model of their own; ``approve_tools`` names tools that need an approval.
    """

    def __init__(
        self,
        memory: MemoryManager,
        registry: ToolRegistry,
        llm: LLMPort,
        *,
        system_prompt: Callable[[], str],
        clock: Clock,
        limits: TurnLimits = TurnLimits(),  # noqa: B008 - a frozen value
        approve_tools: Collection[str] = (),
    ) -> None:
        self._memory = memory
        self._registry = registry
        self._llm = llm
        self._system_prompt = system_prompt
        self._clock = clock
        self._limits = limits
        self._approve_tools = frozenset(approve_tools)

    async def run(
        self,
        session: Session,
        user_message: str,
        channel: ChannelPort,
        *,
        llm: LLMPort | None = None,
        extra_tools: Sequence[ToolPort] | None = None,
        journal: StepJournal | None = None,
        user_lines: Sequence[Message] = (),
        limits: TurnLimits | None = None,
        allowance: AllowancePort | None = None,
        consent: ConsentPort | None = None,
        permits: Callable[[str], bool] = lambda _: True,
    ) -> TurnResult:
        """
        Answer ``user_message``: call ``channel.send`` exactly once, then return the result.

        The history is not written here: the caller commits ``result.history`` in one transaction with the
        outbox, or a crash between the two would leave an answer in only one of them.

        Args:
            session: The conversation; ids of history lines are ``<session.turn>.<n>``.
            user_message: The question, after the facts of the moment (`prompt.turn_facts`).
            extra_tools: Tools for this run only; they win over the registry's. ``permits`` sorts out others.
            journal: The steps of an earlier start of this turn.
            user_lines: The history lines of the question, by default one; missing ids and times are filled
                in.
            consent: Asks a person about tools that need an approval; without it none of them runs.

        Raises:
            ModelError: No model answered. ``temporary``: a later try can help.
            AwaitsApproval: A person is to be asked first; run it again after the decision.
            TurnLimitReached: The turn took too long, or did not come to an end.
        """
        began_at = self._clock.now()
        limits = limits or self._limits
        model, shown = llm or self._llm, channel.partial
        turn = AgentRun(
            SeenWords(session, user_message, self._clock),
            partial(ask, model, stream=True, max_chars=limits.answer_chars, partial=shown),
            memory=self._memory,
            system_prompt=self._system_prompt(),
            tools=self._tools(extra_tools or (), permits),
            journal=journal,
            calls=CallLimits(limits, allowance),
            consent=consent or _RefusingApprovals(),
        )
        reply = await _think(turn, limits.seconds)
        await channel.send(reply)
        said = user_lines or [Message(role="user", content=user_message, attachments=session.attachments)]
        return self._result(turn, session, said, reply, began_at=began_at)

    def _result(
        self, turn: AgentRun, session: Session, said: Sequence[Message], reply: str, *, began_at: datetime
    ) -> TurnResult:
        history = history_of(
            session,
            said,
            reply,
            began_at=began_at,
            ended_at=self._clock.now(),
            attachments=turn.attachments,
            origins=turn.words.origins,
            quoted=turn.words.quoted,
            found=turn.loaded_tools,
        )
        return TurnResult(
            reply, history, turn.usage, turn.tool_runs, turn.steps, attachments=tuple(turn.attachments)
        )

    def _tools(self, extra: Iterable[ToolPort], permits: Callable[[str], bool]) -> RunTools:
        """The tools of one run by name, the registry's first."""
        found = [(each, self._registry.get(each.name)) for each in self._registry.get_definitions()]
        found += [(definition_of(tool), tool) for tool in extra]
        return {
            definition.name: (
                definition,
                tool,
                definition.name in self._approve_tools or getattr(tool, "needs_approval", False),
            )
            for definition, tool in found
            if tool is not None and permits(definition.name)
        }


async def _think(turn: AgentRun, seconds: float) -> str:
    """Return the answer. Raises TurnLimitReached after ``seconds``."""
    reply: str | None = None
    with limit_time(seconds):
        reply = await turn.think()
    if reply is None:
        raise TurnLimitReached(f"no answer within {seconds:g} s", steps=turn.steps)
    return reply


class _RefusingApprovals:
    """Approvals where nobody can be asked: a call that needs an approval is refused."""

    async def permission(self, number: int, digest: str, proposal: Proposal) -> Permission:
        """Permit what the policy allows without a question; refuse the rest."""
        if verdict_on(proposal) is PolicyVerdict.ALLOW:
            return Permission()
        text = "This needs a person's approval, and nobody can be asked here; it was not run."
        return Permission(ToolResult(content=text, is_error=True, tool_call_id=proposal.call.id))


def history_of(
    session: Session,
    user_lines: Sequence[Message],
    reply: str,
    *,
    began_at: datetime,
    ended_at: datetime,
    attachments: Sequence[Attachment] = (),
    origins: Origins = (),
    quoted: Origins = (),
    found: Sequence[str] = (),
) -> tuple[Message, ...]:
    """The lines of a turn for the history: those of the question, and the answer."""
    turn, scope = session.turn or uuid4().hex, str(session.scope)
    lines = [
        line.model_copy(
            update={
                "role": "user",
                "id": line.id or f"{turn}.{number}",
                "turn": line.turn or turn,
                "timestamp": line.timestamp or began_at,
                "scope": scope,
                "origins": join_origins(session.origins if line.origins is None else line.origins, quoted),
            }
        )
        for number, line in enumerate(user_lines)
    ]
    answer = Message(
        role="assistant",
        content=reply,
        id=f"{turn}.{len(lines)}",
        turn=turn,
        timestamp=ended_at,
        scope=scope,
        attachments=tuple(attachments),
        origins=origins,
        found=tuple(found),
    )
    return (*lines, answer)


_SAY_SOMETHING = "[Your answer had no words, so nobody can read it. Say now what the person should know.]"
"""After its tools Claude may have nothing to add, and says nothing as often as it is asked the same."""
_log = structlog.get_logger(__name__)


async def ask(
    llm: LLMPort,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    stream: bool,
    max_chars: int,
    partial: Callable[[str], Awaitable[None]] | None = None,
) -> ModelAnswer:
    """
    Ask for one answer; the text so far goes to ``partial`` while it grows.

    One that broke off, is unreadable or empty is asked for once more, an empty one after tools with the
    request to say something: calls come only with a whole answer, so no tool has run. One that came too
    slowly is not, because it would take as long again.

    Raises ModelRefused for a second empty answer or one over ``max_chars``, ModelUnreadable for a second
    unreadable or a slow one, and the model's own ModelError.
    """
    try:
        return await _ask_once(llm, messages, tools, stream=stream, max_chars=max_chars, partial=partial)
    except ModelError as error:
        if not _may_pass(error):
            raise
        _log.warning("model.asked_again", error=str(error))
        if error.fields.get("empty") and messages[-1].role == "tool":
            messages = [*messages, Message(role="user", content=_SAY_SOMETHING)]
    return await _ask_once(llm, messages, tools, stream=stream, max_chars=max_chars, partial=partial)


def _may_pass(error: ModelError) -> bool:
    if isinstance(error, ModelUnreadable):
        return error.kind != "slow" and not error.fields.get("final")
    return isinstance(error, StreamBroken) or bool(error.fields.get("empty"))


async def _ask_once(
    llm: LLMPort,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    stream: bool,
    max_chars: int,
    partial: Callable[[str], Awaitable[None]] | None,
) -> ModelAnswer:
    text = ""
    calls: list[ToolCall] = []
    usage: Usage | None = None
    end = AnswerEnd()
    chunks = await llm.chat(messages, tools, stream=stream)
    async with aclosing(cast("AsyncGenerator[ModelChunk, None]", chunks)) as answer:
        async for chunk in answer:
            match chunk:
                case str():
                    text += chunk
                    if len(text) > max_chars:
                        raise endless_answer("the model", f"{max_chars} characters")
                    if chunk and partial is not None:
                        await partial(text)
                case ToolCall():
                    calls.append(chunk)
                case Usage():
                    usage = chunk
                case AnswerEnd():
                    end = chunk
    if not is_visible(text) and not calls:
        raise _nothing(usage)
    return ModelAnswer(text, tuple(calls), usage, end.is_cut, end.reasoning)


def _nothing(usage: Usage | None) -> ModelRefused:
    return empty_answer(usage.model if usage and usage.model else "the model", None)
