"""
A turn from claim to commit: what is waiting in a session becomes one question, the agent answers it, and the
answer, the history and the state of the rows become true together.

What can go wrong has one of four ends, decided by `decide_failure`: try again because it was not the
message's fault (a deferral, within a budget of time), try again because the process may have died of it (an
attempt), bury it with an apology, or throw the work away because somebody else owns the turn now.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Protocol, TypeVar

import anyio
import structlog

from agent_core.agent import AgentLoop
from agent_core.errors import AgentError, ModelRateLimited
from agent_core.memory.scopes import scope_for
from agent_core.messages import Audience, InboundMessage, OutboundKind, SessionKey
from agent_core.models import Message, Purpose, Session, TurnResult
from agent_core.ports import Clock, LLMPort, ToolPort
from agent_core.prompt import turn_facts, user_text
from channels.base import Channel
from channels.heartbeat.silence import is_silence
from channels.markup import split_markdown
from gateway import metrics
from gateway.access import Access, Role
from gateway.backoff import BackoffPolicy
from gateway.errors import describe
from gateway.history import HistoryWriter
from gateway.sink import TurnSink
from gateway.steps import StoreStepJournal
from gateway.target import OwnerTarget, Target
from gateway.work.port import Completion, LostTurn, NewOutbound, StoreUnavailable, Turn, WorkStore

__all__ = ["Failure", "TurnHandler", "TurnPolicy", "decide_failure", "question_of"]

_MODEL_RETRY = BackoffPolicy(first_s=2.0, cap_s=300.0)
_STORE_RETRY = BackoffPolicy(first_s=0.5, cap_s=30.0)
_log = structlog.get_logger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """
    How much is done for one turn.

    Args:
        max_attempts: After so many starts that ended with the process a turn is buried.
        outage_budget_s: So long a turn waits for a model that is away before it is buried.
        merge: How many waiting messages of a merging channel become one turn at the most.
    """

    max_attempts: int = 3
    outage_budget_s: float = 3600.0
    merge: int = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """What to do about a failed turn: ``delay_s`` None means bury it."""

    delay_s: float | None
    public: str
    error: str


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


def decide_failure(error: Exception, turn: Turn, policy: TurnPolicy, *, jitter: float) -> Failure:
    """
    Pure: what follows from an error.

    A temporary error of the model or the disk is waited for within the budget; everything else, known or
    not, is final, and its text for strangers goes into the apology.
    """
    told = describe(error)
    if told.temporary and turn.first_deferred_s < policy.outage_budget_s:
        delay_s = _MODEL_RETRY.delay(turn.deferrals + 1, random=jitter)
        if isinstance(error, ModelRateLimited) and error.retry_after_s is not None:
            delay_s = max(delay_s, min(error.retry_after_s, policy.outage_budget_s))
        return Failure(delay_s, told.public, str(error))
    return Failure(None, told.public, str(error) or type(error).__name__)


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
        self._zone = zone
        self._policy = policy

    async def run_session(self, key: SessionKey) -> None:
        """
        Answer what is due in a session: one turn, then the session goes to the end of the line again.

        Raises:
            StoreUnavailable, StorageUnavailable: The disk takes nothing; the dispatcher comes again later.
        """
        merge = self._policy.merge if self._queue_modes.get(key.channel, "merge") == "merge" else 1
        await self._history.flush(key)
        turn = await self._store.claim(key, merge=merge)
        if turn is not None:
            try:
                await self._run_turn(turn)
            except LostTurn:
                metrics.TURNS.labels(key.channel, "lost").inc()
                _log.warning("turn.lost", channel=key.channel, turn=turn.id)
        due_s = await self._store.due_in(key)
        if due_s is not None:
            self._wake(key, due_s)

    async def _run_turn(self, turn: Turn) -> None:
        started = self._clock.monotonic()
        channel = turn.session.channel
        if turn.attempts > self._policy.max_attempts:
            _log.error("turn.poisonous", channel=channel, turn=turn.id, attempts=turn.attempts)
            await self._bury(
                turn, Failure(None, _POISON, f"the process ended on it {turn.attempts - 1} times")
            )
            return
        target = await self._target.get() if turn.head.message.kind == "tick" else None
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
            except (LostTurn, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it was, it ends in one apology
                await self._fail(turn, error)
            except BaseException:
                with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                    await self._store.release(turn)
                raise
            else:
                await self._complete(turn, result, target)
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
                await self._target.learn(
                    turn.rows[-1].message, self._access.decide(turn.rows[-1].message).role
                )
            await sink.hide()

    async def _think(self, turn: Turn, sink: TurnSink) -> TurnResult:
        messages = [row.message for row in turn.rows]
        session = self._session(turn, messages)
        async with sink.shown():
            return await self._agent.run(
                session,
                f"{self._facts(turn)}\n{question_of(messages)}",
                sink,
                llm=self._pools(session.purpose),
                extra_tools=list(self._extra_tools(session)),
                journal=await StoreStepJournal.load(self._store, turn),
                user_lines=self._user_lines(turn),
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
        return turn_facts(at, channel=turn.session.channel, shared=shared)

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
        _log.error("turn.buried", channel=turn.session.channel, turn=turn.id, error=failure.error)

    async def _until_stored(self, write: Callable[[], Awaitable[_Result]]) -> _Result:
        """The work is done and must not be lost to a full disk: keep it in hand until it is stored."""
        attempt = 0
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                attempt += 1
                delay_s = _STORE_RETRY.delay(attempt, random=random.random())
                _log.error("turn.blocked", error=str(error), retry_in_s=round(delay_s, 1), **error.fields)
                await anyio.sleep(delay_s)


_POISON = "Each time I tried, I came to a sudden end; so I stopped trying."
