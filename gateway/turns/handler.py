"""
A turn from claim to commit: what is waiting in a session becomes one question, the agent answers it, and the
answer, the history and the state of the rows become true together.

What becomes of one that failed is in ``failure.py``, how a turn ends is in ``commit.py``. Whatever happens,
a claim ends: with an answer, an apology or a retry, or it is given back. One that nobody works on would stop
its session until the next start.

Stopping a turn takes nothing away from the store: the store has taken the messages away already, and so the
claim is lost, when `TurnHandler.stop` cuts off the work that is in vain from then on. Whichever comes first,
the cut or the turn's own commit, the outcome is the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Protocol

import anyio
import structlog

from agent_core.agent import AgentLoop
from agent_core.errors import StorageUnavailable
from agent_core.messages import InboundMessage, OutboundKind, SessionKey
from agent_core.models import Purpose, Session, TurnResult
from agent_core.ports import Clock, LLMPort, ToolPort
from channels.base import AckState, Channel
from gateway.budget.metering import UsageMeter
from gateway.observability import metrics
from gateway.observability.content_redaction import quiet
from gateway.proactive.owner_contact import OwnerContact
from gateway.queue.ports import Completion, LostTurn, StoreUnavailable, Turn, WorkStore
from gateway.queue.states import Record
from gateway.routing.access import Access
from gateway.routing.acknowledgements import Acknowledgements
from gateway.routing.crash_isolation import CrashIsolation
from gateway.turns.approvals.tool_consent import ToolConsent, Waiting
from gateway.turns.budget_deferral import BudgetDeferral
from gateway.turns.commands.service import CommandService
from gateway.turns.commit import STORE_RETRY, TurnCommit
from gateway.turns.failure import TurnFailure
from gateway.turns.heartbeat import HeartbeatPlan, HeartbeatRuns
from gateway.turns.history_writer import HistoryWriter
from gateway.turns.pacing import Pacing
from gateway.turns.reply_sink import ReplySink
from gateway.turns.retry_policy import TurnPolicy, poisonous
from gateway.turns.step_journal import StoreStepJournal
from gateway.turns.user_input import facts_of, question_of, session_of, user_lines

__all__ = ["TurnHandler", "TurnPolicy", "question_of"]

_PARK_LIMIT_S = 5.0
_log = structlog.get_logger(__name__)


class ExtraTools(Protocol):
    """Makes the tools that belong to one session and one run, such as ``memory_write``."""

    def __call__(self, session: Session, messages: Sequence[InboundMessage]) -> Sequence[ToolPort]:
        """The tools of this run, which answers ``messages``."""
        ...


@dataclass(slots=True)
class _Run:
    """A session that is being worked on; ``stopped`` are turns of it that shall be left, and why."""

    scope: anyio.CancelScope | None = None
    turn: str = ""
    stopped: dict[str, str] = field(default_factory=dict)
    tally: UsageMeter | None = None


class TurnHandler:
    """
    Works on one session until nothing is due. One instance serves all sessions.

    Args:
        store, history, agent: What a turn is made with.
        channels: All channels by name.
        queue_modes: ``merge`` or ``each`` by channel.
        access: Tells the owner from others, for the memory scope.
        extra_tools: Makes the tools of a run.
        target: Where the owner is reached unasked; learns it here.
        ticks: What is particular about turns that nobody asked for.
        desk: Answers what needs no model.
        ends: Commits how turns end.
        refusals: Begins to count what a turn costs, and puts off what the budget refuses.
        pacing: Puts off what has a later place.
        zone: The time zone in which the model is told the time; None is that of this machine.
        asking: Asks people about tools.
        wake: Asks for another run of a session after so many seconds.
        pools: The model of a purpose.
        stages: Told how far messages are; by default nobody is.
        suspects: Knows what the process may have died of.
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
        target: OwnerContact,
        ticks: HeartbeatRuns,
        desk: CommandService,
        ends: TurnCommit,
        refusals: BudgetDeferral,
        pacing: Pacing,
        asking: ToolConsent,
        wake: Callable[[SessionKey, float], None],
        pools: Callable[[Purpose], LLMPort],
        stages: Acknowledgements | None = None,
        zone: tzinfo | None = None,
        suspects: CrashIsolation,
        policy: TurnPolicy = TurnPolicy(),  # noqa: B008 - a frozen value
    ) -> None:
        self._suspects = suspects
        self._store = store
        self._history = history
        self._agent = agent
        self._channels: Mapping[str, Channel] = channels
        self._queue_modes = queue_modes
        self._access = access
        self._extra_tools = extra_tools
        self._clock = clock
        self._pools = pools
        self._target = target
        self._ticks = ticks
        self._desk = desk
        self._ends = ends
        self._refusals = refusals
        self._pacing = pacing
        self._asking = asking
        self._wake = wake
        self._mishaps = TurnFailure(
            ends=ends, ticks=ticks, refusals=refusals, channels=self._channels, policy=policy
        )
        self._stages = stages or Acknowledgements({})
        self._zone = zone
        self._policy = policy
        self._running: dict[SessionKey, _Run] = {}
        self._blocked = 0

    def stop(self, session: SessionKey, why: str, *, turn: str) -> None:
        """
        Leave off a turn that the store has taken away. Returns at once.

        To be called after the commit that took it, which makes every order of events the same: a turn that
        has not begun never begins, one that runs is cut off at its next await, one that was committed before
        is none of those that the store names, and another turn of the session is not touched.
        """
        run = self._running.get(session)
        if run is None:
            return
        run.stopped[turn] = why
        if run.turn == turn and run.scope is not None:
            run.scope.cancel()

    async def run_session(self, key: SessionKey) -> None:
        """
        Answer what is due in a session: one turn, then the session goes to the end of the line again.

        While the disk takes nothing the session is woken again and again, more and more rarely. What came by
        a channel that is switched off now waits, untouched, for a start with that channel.
        """
        if key.channel not in self._channels and not self._desk.owns(key):
            _log.warning("session.channel_off", channel=key.channel)
            return
        run = self._running[key] = _Run()
        try:
            await self._history.flush(key)
            each = self._queue_modes.get(key.channel, "merge") == "each" or await self._desk.anew.waits(key)
            turn = await self._store.claim(key, merge=1 if each else self._policy.merge)
            if turn is not None:
                await self._hold(turn, run)
            due_s = await self._store.due_in(key)
        except (StoreUnavailable, StorageUnavailable) as error:
            self._blocked += 1
            due_s = STORE_RETRY.delay(self._blocked, random=random.random())
            told = {"channel": key.channel, "error": str(error), "retry_in_s": round(due_s, 1)}
            _log.error("session.blocked", **{**error.fields, **told})
        else:
            self._blocked = 0
        finally:
            del self._running[key]
        if due_s is not None:
            self._wake(key, due_s)

    async def hold(self, turn: Turn) -> None:
        """Run a claimed turn beside the one that may run in its session; whatever happens, the claim ends."""
        await self._hold(turn, _Run())

    async def _hold(self, turn: Turn, run: _Run) -> None:
        """Run a claimed turn; whatever happens, the claim ends here."""
        with anyio.CancelScope() as run.scope:
            run.turn = turn.id
            if turn.id in run.stopped:
                run.scope.cancel()
            try:
                await self._run_or_release(turn, run)
            except LostTurn:
                if turn.id not in run.stopped:
                    metrics.TURNS.labels(turn.session.channel, "lost").inc()
                    _log.warning("turn.lost", channel=turn.session.channel, turn=turn.id)
                    return
            except anyio.get_cancelled_exc_class():
                with (
                    anyio.move_on_after(_PARK_LIMIT_S, shield=True),
                    suppress(LostTurn, StoreUnavailable),  # it was ended already, or will be recovered
                ):
                    await self._store.release(turn)
                raise
            finally:
                if run.tally is not None:
                    await run.tally.end()
        if turn.id in run.stopped:
            self._ends.stopped(turn, run.stopped[turn.id])
            await self._hide(turn)

    async def _run_or_release(self, turn: Turn, run: _Run) -> None:
        try:
            await self._run_turn(turn, run)
        except StoreUnavailable:
            await self._ends.until_stored(lambda: self._store.release(turn))
            raise

    async def _run_turn(self, turn: Turn, run: _Run) -> None:
        wait_s = self._pacing.left_s(turn)
        if wait_s:
            notice = self._ends.replies(turn, self._pacing.text(wait_s), OutboundKind.NOTICE)
            await self._pacing.put_off(turn, wait_s, notice)
            return
        suspect = self._suspects.of_turn(turn.id)
        poison = poisonous(turn, self._policy, suspect.record if suspect else Record())
        if poison is not None:
            await self._mishaps.bury(turn, poison)
            return
        started = self._clock.monotonic()
        with (
            structlog.contextvars.bound_contextvars(turn=turn.id, session=str(turn.session)),
            quiet(row.message.text for row in turn.rows),
        ):
            try:
                result = None if await self._desk.serves(turn) else await self._answer(turn, run)
            except (LostTurn, StoreUnavailable):
                raise
            except Waiting as waiting:
                if run.tally is not None:
                    await run.tally.record()
                await self._asking.wait(turn, waiting)
                await self._hide(turn)
                return
            except Exception as error:  # noqa: BLE001 - every end of a turn is an answer or an apology
                await self._mishaps.end(turn, run.tally, error)
                await self._hide(turn)
                return
            if result is not None:
                self._ends.answered(turn, result, self._clock.monotonic() - started)
            await self._learn_target(turn.rows[-1].message)
            if result is not None:
                await self._hide(turn)

    async def _answer(self, turn: Turn, run: _Run) -> TurnResult | None:
        """Answer a turn with a model and commit that. None: it is a tick that was skipped."""
        await self._desk.anew.begin(turn)
        plan = await self._ticks.plan(turn) if self._ticks.concerns(turn) else None
        if plan is not None and plan.skip:
            await self._end_tick(turn, plan, self._ticks.skipped(turn, plan))
            return None
        if plan is None or plan.reply is None:
            run.tally = await self._refusals.begin(turn, plan.purpose if plan else Purpose.CHAT)
        self._stages.tell((row.message for row in turn.rows), AckState.RECEIVED)
        asked, note = self._desk.without_commands(turn)
        if plan is not None and plan.reply is not None:
            session = session_of(turn, self._access, plan.purpose)
            result = self._ticks.said(turn, plan.reply, session)
        else:
            result = await self._think(asked, run, plan)
        if plan is not None:
            hold = self._desk.holds(turn)
            completion = await self._ticks.completion(turn, plan, result, hold=hold)
            await self._end_tick(turn, plan, completion, run.tally)
            if hold:
                self._desk.look()
            return result
        text = f"{result.reply}\n\n{note}" if note else result.reply
        hold = self._desk.holds(turn)
        outbound = self._ends.replies(turn, text, attachments=result.attachments, hold=hold)
        await self._ends.complete(turn, Completion(outbound=outbound, history=result.history), run.tally)
        if hold:
            self._desk.look()
        return result

    async def _think(self, turn: Turn, run: _Run, plan: HeartbeatPlan | None) -> TurnResult:
        session = session_of(turn, self._access, plan.purpose if plan else Purpose.CHAT)
        assert run.tally is not None
        question = question_of([row.message for row in turn.rows])
        if plan is not None and plan.prompt is not None:
            question = plan.prompt
        tools = list(self._extra_tools(session, [row.message for row in turn.rows]))
        # Nobody reads along in a draft that waits for approval.
        channel = self._channels[turn.session.channel]
        sink = ReplySink(channel, turn.session, previews=not self._desk.holds(turn))
        steps = await self._store.steps(turn)
        async with sink.shown():
            return await self._agent.run(
                session,
                f"{facts_of(turn, self._zone)}\n{question}",
                sink,
                llm=run.tally.over((plan.llm if plan else None) or self._pools(session.purpose)),
                extra_tools=tools,
                journal=StoreStepJournal(self._store, turn, steps, tools),
                user_lines=user_lines(turn),
                limits=plan.limits if plan else None,
                allowance=run.tally,
                consent=self._asking.consent(turn, steps),
            )

    async def _end_tick(
        self, turn: Turn, plan: HeartbeatPlan, completion: Completion, tally: UsageMeter | None = None
    ) -> None:
        await self._ends.complete(turn, completion, tally)
        await self._ticks.completed(turn, plan, completion)

    async def _learn_target(self, message: InboundMessage) -> None:
        try:
            await self._target.learn(message, self._access.decide(message).role)
        except StoreUnavailable as error:
            _log.warning("target.not_learned", channel=message.channel, error=str(error))

    async def _hide(self, turn: Turn) -> None:
        """Nothing goes on in this conversation any more."""
        if turn.session.channel in self._channels:
            await ReplySink(self._channels[turn.session.channel], turn.session).hide()
