"""
A turn from claim to commit: what is waiting in a session becomes one question, the agent answers it, and the
answer, the history and the state of the rows become true together.

What follows from a failure is decided in ``failure.py``. Whatever happens, a claim ends: with an answer, an
apology or a retry, or it is given back. One that nobody works on would stop its session until the next start.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import tzinfo
from typing import Protocol, TypeVar

import anyio
import structlog

from agent_core.agent import AgentLoop
from agent_core.errors import AgentError, StorageUnavailable
from agent_core.memory.scopes import scope_for
from agent_core.messages import Audience, InboundMessage, OutboundKind, SessionKey
from agent_core.models import Message, Purpose, Session, TurnResult
from agent_core.ports import Clock, LLMPort, ToolPort
from agent_core.prompt import turn_facts, user_text
from channels.base import Channel
from channels.heartbeat.silence import is_silence
from channels.split import split_markdown
from gateway import metrics
from gateway.access import Access, Role
from gateway.backoff import BackoffPolicy
from gateway.failure import Failure, TurnPolicy, decide_failure, poisonous
from gateway.history import HistoryWriter
from gateway.sink import TurnSink
from gateway.steps import StoreStepJournal
from gateway.target import OwnerTarget, Target
from gateway.work.port import Completion, LostTurn, NewOutbound, StoreUnavailable, Turn, WorkStore

__all__ = ["TurnHandler", "TurnPolicy", "question_of"]

_PARK_LIMIT_S = 5.0
_STORE_RETRY = BackoffPolicy(first_s=0.5, cap_s=30.0)
_log = structlog.get_logger(__name__)
_Result = TypeVar("_Result")


class ExtraTools(Protocol):
    """Makes the tools that belong to one session and one run, such as ``memory_write``."""

    def __call__(self, session: Session) -> Sequence[ToolPort]:
        """The tools of this run."""
        ...


def question_of(messages: Sequence[InboundMessage]) -> str:
    """
    What was said in a turn: its messages, and in a shared conversation who said them.

    The sender's address stands in front, not the name that people choose for themselves.
    """
    shared = any(message.audience is Audience.GROUP for message in messages)
    return user_text([(message.sender.address, message.text) for message in messages], shared=shared)


class TurnHandler:
    """
    Works on one session until nothing is due. One instance serves all sessions.

    Args:
        store, history, agent: What a turn is made with.
        channels: All channels by name.
        queue_modes: ``merge`` or ``each`` by channel.
        access: Tells the owner from others, for the memory scope.
        extra_tools: Makes the tools of a run.
        target: Where the owner is reached unasked.
        zone: The time zone in which the model is told the time; None is that of this machine.
        wake: Asks for another run of a session after so many seconds.
        pools: The model of a purpose; None is the agent's own.
        on_outbox: Called with a channel's name when something was put into its outbox.
        completed: Called when a turn of a session was committed; must return at once.
    """

    def __init__(
        self,
        *,
        store: WorkStore,
        history: HistoryWriter,
        agent: AgentLoop,
        channels: dict[str, Channel],
        queue_modes: dict[str, str],
        access: Access,
        extra_tools: ExtraTools,
        clock: Clock,
        target: OwnerTarget,
        wake: Callable[[SessionKey, float], None],
        pools: Callable[[Purpose], LLMPort | None] = lambda _: None,
        on_outbox: Callable[[str], None] = lambda _: None,
        completed: Callable[[SessionKey], None] = lambda _: None,
        zone: tzinfo | None = None,
        policy: TurnPolicy = TurnPolicy(),  # noqa: B008 - a frozen value
    ) -> None:
        self._store = store
        self._history = history
        self._agent = agent
        self._channels = channels
        self._queue_modes = queue_modes
        self._access = access
        self._extra_tools = extra_tools
        self._clock = clock
        self._pools = pools
        self._target = target
        self._wake = wake
        self._on_outbox = on_outbox
        self._completed = completed
        self._zone = zone
        self._policy = policy
        self._blocked = 0

    async def run_session(self, key: SessionKey) -> None:
        """
        Answer what is due in a session: one turn, then the session goes to the end of the line again.

        While the disk takes nothing the session is woken again and again, more and more rarely. What came by
        a channel that is switched off now waits, untouched, for a start with that channel.
        """
        if key.channel not in self._channels:
            _log.warning("session.channel_off", channel=key.channel)
            return
        try:
            await self._history.flush(key)
            merging = self._queue_modes.get(key.channel, "merge") == "merge"
            turn = await self._store.claim(key, merge=self._policy.merge if merging else 1)
            if turn is not None:
                await self._hold(turn)
            due_s = await self._store.due_in(key)
        except (StoreUnavailable, StorageUnavailable) as error:
            self._blocked += 1
            due_s = _STORE_RETRY.delay(self._blocked, random=random.random())
            told = {"channel": key.channel, "error": str(error), "retry_in_s": round(due_s, 1)}
            _log.error("session.blocked", **{**error.fields, **told})
        else:
            self._blocked = 0
        if due_s is not None:
            self._wake(key, due_s)

    async def _hold(self, turn: Turn) -> None:
        """Run a claimed turn; whatever happens, the claim ends here."""
        try:
            try:
                await self._run_turn(turn)
            except StoreUnavailable:
                await self._until_stored(lambda: self._store.release(turn))
                raise
        except LostTurn:
            metrics.TURNS.labels(turn.session.channel, "lost").inc()
            _log.warning("turn.lost", channel=turn.session.channel, turn=turn.id)
        except anyio.get_cancelled_exc_class():
            with (
                anyio.move_on_after(_PARK_LIMIT_S, shield=True),
                suppress(LostTurn, StoreUnavailable),  # it was ended already, or will be recovered
            ):
                await self._store.release(turn)
            raise

    async def _run_turn(self, turn: Turn) -> None:
        started = self._clock.monotonic()
        channel = turn.session.channel
        poison = poisonous(turn, self._policy)
        if poison is not None:
            await self._bury(turn, poison)
            return
        target = await self._target.get() if turn.head.message.kind == "tick" else None
        if target is not None and target.channel not in self._channels:
            target = None
        if turn.head.message.kind == "tick" and target is None:
            await self._until_stored(
                lambda: self._store.complete(turn, Completion(purpose=Purpose.HEARTBEAT))
            )
            _log.info("heartbeat.skipped", reason="the owner has no direct conversation yet")
            return
        sink = TurnSink(self._channels[channel], turn.session)
        with structlog.contextvars.bound_contextvars(turn=turn.id, session=str(turn.session)):
            try:
                result = await self._think(turn, sink)
                await self._complete(turn, result, target)
            except (LostTurn, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - every end of a turn is an answer or an apology
                await self._fail(turn, error)
            else:
                took_s = self._clock.monotonic() - started
                metrics.TURNS.labels(channel, "answered").inc()
                metrics.TURN_SECONDS.labels(channel).observe(took_s)
                _log.info(
                    "turn.answered",
                    channel=channel,
                    messages=len(turn.rows),
                    steps=result.steps,
                    tools=result.tool_runs,
                    tokens=result.usage.prompt_tokens + result.usage.completion_tokens,
                    took_s=round(took_s, 3),
                )
                await self._learn_target(turn.rows[-1].message)
            await sink.hide()

    async def _learn_target(self, message: InboundMessage) -> None:
        try:
            await self._target.learn(message, self._access.decide(message).role)
        except StoreUnavailable as error:
            _log.warning("target.not_learned", channel=message.channel, error=str(error))

    async def _think(self, turn: Turn, sink: TurnSink) -> TurnResult:
        messages = [row.message for row in turn.rows]
        session = self._session(turn, messages)
        tools = list(self._extra_tools(session))
        async with sink.shown():
            return await self._agent.run(
                session,
                f"{self._facts(turn)}\n{question_of(messages)}",
                sink,
                llm=self._pools(session.purpose),
                extra_tools=tools,
                journal=await StoreStepJournal.load(self._store, turn, tools),
                user_lines=self._user_lines(turn),
                stream=self._channels[turn.session.channel].capabilities.previews,
            )

    def _session(self, turn: Turn, messages: Sequence[InboundMessage]) -> Session:
        roles = [self._access.decide(message).role for message in messages]
        group = any(message.audience is Audience.GROUP for message in messages)
        audience = Audience.GROUP if group else Audience.DIRECT
        scope = scope_for(
            turn.session,
            audience,
            sender_is_owner=all(role is Role.OWNER for role in roles),
            sender_address=messages[-1].sender.address,
            sender_verified=all(message.sender.verified for message in messages),
        )
        purpose = Purpose.HEARTBEAT if messages[0].kind == "tick" else Purpose.CHAT
        return Session(turn.session, scope, audience, purpose, turn.id)

    def _facts(self, turn: Turn) -> str:
        last = turn.rows[-1].message
        at = last.received_at.astimezone(self._zone)
        shared = last.audience is Audience.GROUP
        subject = str(last.context.get("subject") or "")
        return turn_facts(at, channel=turn.session.channel, shared=shared, subject=subject)

    def _user_lines(self, turn: Turn) -> list[Message]:
        return [
            Message(
                role="user",
                content=question_of([row.message]),
                id=f"{turn.id}.{number}",
                turn=turn.id,
                timestamp=row.message.received_at,
                sender=row.message.sender.address,
            )
            for number, row in enumerate(turn.rows)
        ]

    async def _complete(self, turn: Turn, result: TurnResult, target: Target | None) -> None:
        tick = turn.head.message.kind == "tick"
        completion = Completion(
            outbound=self._alert(target, result.reply)
            if tick
            else self._outbound(turn, result.reply, OutboundKind.REPLY),
            history=result.history,
            usage=result.usage,
            purpose=Purpose.HEARTBEAT if tick else Purpose.CHAT,
        )
        await self._until_stored(lambda: self._store.complete(turn, completion))
        self._history.committed(turn.session)
        self._on_outbox(target.channel if target else turn.session.channel)
        self._completed(turn.session)
        metrics.TOKENS.labels(completion.purpose, "prompt").inc(result.usage.prompt_tokens)
        metrics.TOKENS.labels(completion.purpose, "completion").inc(result.usage.completion_tokens)

    def _outbound(self, turn: Turn, text: str, kind: OutboundKind) -> list[NewOutbound]:
        message = turn.rows[-1].message
        limit = self._channels[turn.session.channel].capabilities.max_text_bytes
        return [
            NewOutbound(
                channel=turn.session.channel,
                account=message.account,
                session=turn.session,
                text=part,
                kind=kind,
                context=message.context,
            )
            for part in split_markdown(text, limit)
        ]

    def _alert(self, target: Target | None, text: str) -> list[NewOutbound]:
        if target is None or is_silence(text):
            return []
        limit = self._channels[target.channel].capabilities.max_text_bytes
        return [
            NewOutbound(target.channel, target.account, target.session, part, OutboundKind.ALERT)
            for part in split_markdown(text, limit)
        ]

    async def _fail(self, turn: Turn, error: Exception) -> None:
        failure = decide_failure(error, turn, self._policy, jitter=random.random())
        channel = turn.session.channel
        if not isinstance(error, AgentError):
            _log.error("turn.defect", channel=channel, exc_info=error)
        if failure.delay_s is None:
            await self._bury(turn, failure)
            return
        delay_s = failure.delay_s
        metrics.TURNS.labels(channel, "deferred").inc()
        _log.warning("turn.deferred", channel=channel, error=failure.error, retry_in_s=round(delay_s, 1))
        await self._until_stored(
            lambda: self._store.retry(turn, failure.error, delay_s=delay_s, deferral=True)
        )

    async def _bury(self, turn: Turn, failure: Failure) -> None:
        text = f"Sorry, I could not answer this. {failure.public}"
        tick = turn.head.message.kind == "tick"
        outbound = [] if tick else self._outbound(turn, text, OutboundKind.APOLOGY)
        await self._until_stored(lambda: self._store.bury(turn, failure.error, outbound))
        self._on_outbox(turn.session.channel)
        metrics.TURNS.labels(turn.session.channel, "buried").inc()
        _log.error(
            "turn.buried",
            channel=turn.session.channel,
            turn=turn.id,
            attempts=turn.attempts,
            error=failure.error,
        )

    async def _until_stored(self, write: Callable[[], Awaitable[_Result]]) -> _Result:
        """The work is done and must not be lost to a full disk: keep it in hand until it is stored."""
        attempt = 0
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                attempt += 1
                delay_s = _STORE_RETRY.delay(attempt, random=random.random())
                _log.error(
                    "turn.blocked", **{**error.fields, "error": str(error), "retry_in_s": round(delay_s, 1)}
                )
                await anyio.sleep(delay_s)
