"""
Turns that nobody asked for at this moment: check-ins of the heartbeat, and due jobs.

`TurnHandler` claims, runs, commits and fails them like any other turn and asks `HeartbeatRuns` where they
differ: whether one is run at all, with which model, prompt and limits, what goes out, and what is noted.
Nothing here claims or ends a turn. What is particular about jobs is in ``schedule/runs.py``.

A check-in is in a session of its own, and only what was worth saying leaves a trace in a history: in its own,
so that it does not say the same again, and in that of the conversation where the alert is read, in the same
transaction as the alert, so that "what did you mean?" can be answered there. So a year of silence costs no
tokens later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from agent_core.agent import TurnLimits
from agent_core.errors import AgentError
from agent_core.messages import OutboundKind, SessionKey
from agent_core.models import Message, Purpose, Session, TurnResult
from agent_core.ports import Clock, LLMPort
from channels.base import Channel
from channels.heartbeat.config import HeartbeatConfig
from channels.heartbeat.silence import URGENT, Verdict, fingerprint, judge
from gateway.proactive.owner_contact import OwnerContact, Target
from gateway.proactive.run_ledger import alert_line, failing_since, resting_until
from gateway.queue.model import Collected, Entry, Outcome
from gateway.queue.ports import Completion, NewOutbound, PlanStore, Turn
from gateway.routing.delivery import parcels
from gateway.turns.retry_policy import Failure, TurnPolicy
from gateway.turns.scheduled_job import JobRuns

__all__ = ["HeartbeatPlan", "HeartbeatRuns", "OwnerAway"]

_LOOKED_AT = 40
_URGENT_NOTE = (
    f"\n\nWhat you write is collected and sent by mail once a day. If it cannot wait, begin with {URGENT}"
)
_log = structlog.get_logger(__name__)


class OwnerAway(AgentError):
    """The place where the owner is told cannot be reached at the moment."""

    temporary = True


@dataclass(frozen=True, slots=True)
class HeartbeatPlan:
    """
    How a tick is run.

    Args:
        skip: Why it is not run at all; empty if it is run.
        reply: What is said without asking a model; None: a model is asked.
        target: Where an alert goes.
        digest: Whether an alert that is not urgent waits for the digest.
        purpose: Under which its tokens are counted; it decides the model, too.
        llm: A model for this tick; None is that of the purpose.
        prompt: What the model is asked; None is the text of the tick.
        limits: What it may cost; None is what any turn may cost.
        began: When it began, on the clock that never goes back.
    """

    skip: str = ""
    reply: str | None = None
    target: Target | None = None
    digest: bool = False
    purpose: Purpose = Purpose.HEARTBEAT
    llm: LLMPort | None = None
    prompt: str | None = None
    limits: TurnLimits | None = None
    began: float = 0.0


class HeartbeatRuns:
    """
    What is particular about ticks and jobs. One instance serves all of them.

    Args:
        plans: The ledger, and what waits for the digest.
        target: Where the owner is reached unasked.
        channels: All channels by name.
        config: The settings of the heartbeat.
        limits: What one check-in may cost.
        jobs: What is particular about jobs.
        clock: The time.
        committed: Told of other sessions whose history has got something.
    """

    def __init__(
        self,
        *,
        plans: PlanStore,
        target: OwnerContact,
        channels: Mapping[str, Channel],
        config: HeartbeatConfig,
        limits: TurnLimits,
        jobs: JobRuns,
        clock: Clock,
        committed: Callable[[SessionKey], None] = lambda _: None,
    ) -> None:
        self._plans = plans
        self._target = target
        self._channels = channels
        self._config = config
        self._limits = limits
        self._jobs = jobs
        self._clock = clock
        self._committed = committed

    def concerns(self, turn: Turn) -> bool:
        """Whether a turn is a tick or a job."""
        return turn.head.message.kind in ("tick", "job")

    async def plan(self, turn: Turn) -> HeartbeatPlan:
        """
        Whether and how to run it. Asked at every start of it, also after a crash.

        Raises:
            StoreUnavailable: Not now.
            OwnerAway: It cannot be said yet whom an alert would reach.
        """
        began = self._clock.monotonic()
        message = turn.head.message
        if message.kind == "job":
            run = await self._jobs.plan(turn)
            return HeartbeatPlan(
                skip=run.skip, reply=run.reply, prompt=run.prompt, purpose=Purpose.JOB, began=began
            )
        if not message.context.get("forced") and (resting := await self._resting(message.channel)):
            return HeartbeatPlan(skip=resting)
        reached = await self._target.reach(topic=f"alert {turn.id}")
        if reached.later:
            raise OwnerAway(reached.why)
        if reached.target is None:
            return HeartbeatPlan(skip=reached.why)
        letters = self._channels[reached.target.channel].capabilities.letters
        digest = letters and self._config.digest.enabled and bool(reached.target.person)
        return HeartbeatPlan(
            target=reached.target,
            digest=digest,
            prompt=message.text + _URGENT_NOTE if digest else None,
            limits=self._limits,
            began=began,
        )

    async def _resting(self, name: str) -> str:
        entries = await self._plans.ledger(name=name, limit=_LOOKED_AT)
        until = resting_until(entries, self._clock.now(), timedelta(minutes=self._config.interval_minutes))
        if until is None:
            return ""
        failed = failing_since(entries)
        return f"resting after {len(failed)} failures: {failed[0].reason}"

    def policy(self, turn: Turn, policy: TurnPolicy) -> TurnPolicy:
        """How much patience there is: a check-in does not wait for a model until the next one is due."""
        if turn.head.message.kind != "tick":
            return policy
        return replace(
            policy, outage_budget_s=min(policy.outage_budget_s, self._config.interval_minutes * 60 / 2, 900.0)
        )

    def said(self, turn: Turn, text: str, session: Session) -> TurnResult:
        """What is said without asking a model, as if one had said it."""
        line = Message(
            role="assistant",
            content=text,
            id=f"{turn.id}.0",
            turn=turn.id,
            timestamp=self._clock.now(),
            scope=str(session.scope),
        )
        return TurnResult(text, (line,))

    # ── ends ──

    def skipped(self, turn: Turn, plan: HeartbeatPlan) -> Completion:
        """What is committed for one that is not run."""
        _log.info("tick.skipped", kind=turn.head.message.kind, reason=plan.skip)
        return Completion(purpose=plan.purpose, entry=self._entry(turn, plan, Outcome.SKIPPED, plan.skip))

    async def completion(
        self, turn: Turn, plan: HeartbeatPlan, result: TurnResult, *, hold: bool = False
    ) -> Completion:
        """
        What is committed for one that was run: what it says, or nothing that anybody gets.

        Args:
            turn: The turn.
            plan: How it was run.
            result: What came of it.
            hold: What goes out waits for the owner's approval.

        Raises:
            StoreUnavailable: It cannot be said now.
        """
        entry = self._entry(turn, plan, Outcome.DELIVERED, result=result)
        if turn.head.message.kind == "job":
            return self._jobs.completion(turn, result, entry, hold=hold)
        verdict = await self._judged(result.reply)
        if not verdict.text and not result.attachments:
            entry = replace(entry, outcome=Outcome.SILENT, reason=verdict.reason)
            return Completion(usage=result.usage, purpose=plan.purpose, entry=entry)
        entry = replace(entry, said=fingerprint(verdict.text))
        return self._alert(turn, plan, result, verdict, entry)

    async def _judged(self, reply: str) -> Verdict:
        verdict = judge(reply)
        hours = self._config.repeat_after_hours
        if not verdict.text or not hours:
            return verdict
        since = self._clock.now() - timedelta(hours=hours)
        if await self._plans.was_said(fingerprint(verdict.text), since=since):
            return Verdict(reason="said already")
        return verdict

    def _alert(
        self, turn: Turn, plan: HeartbeatPlan, result: TurnResult, verdict: Verdict, entry: Entry
    ) -> Completion:
        target = plan.target
        if target is None:
            raise AssertionError("a check-in without a target is not run")
        own = _own_history(turn, result, verdict.text)
        # A digest is text: what comes with files is sent at once.
        if plan.digest and not verdict.urgent and not result.attachments:
            waiting = Collected(target.channel, target.person, verdict.text, self._clock.now())
            entry = replace(entry, outcome=Outcome.COLLECTED)
            return Completion(
                history=own, usage=result.usage, purpose=plan.purpose, entry=entry, collected=(waiting,)
            )
        capabilities = self._channels[target.channel].capabilities
        return Completion(
            outbound=[
                NewOutbound(
                    target.channel,
                    target.account,
                    target.session,
                    part,
                    OutboundKind.ALERT,
                    attachments=files,
                )
                for part, files in parcels(verdict.text, result.attachments, capabilities)
            ],
            history=own,
            usage=result.usage,
            purpose=plan.purpose,
            others=((target.session, (alert_line(verdict.text, f"{turn.id}.alert", self._clock.now()),)),),
            entry=entry,
        )

    def failed(self, turn: Turn, failure: Failure, plan: HeartbeatPlan | None = None) -> Completion:
        """What is committed for one that failed for good: a check-in was asked for by nobody, a job was."""
        entry = self._entry(turn, plan or HeartbeatPlan(), Outcome.FAILED, failure.error)
        _log.error("tick.failed", kind=turn.head.message.kind, turn=turn.id, error=failure.error)
        if turn.head.message.kind == "job":
            return self._jobs.failed(turn, failure, entry)
        return Completion(purpose=Purpose.HEARTBEAT, entry=entry)

    def notice(self, turn: Turn, text: str) -> list[NewOutbound]:
        """A word on a job to whoever wished it; nothing for a check-in."""
        return self._jobs.notice(turn, text) if turn.head.message.kind == "job" else []

    async def completed(self, turn: Turn, plan: HeartbeatPlan, completion: Completion) -> None:
        """The completion is committed. Raises nothing but cancellation."""
        for session, _ in completion.others:
            self._committed(session)

    def _entry(
        self,
        turn: Turn,
        plan: HeartbeatPlan,
        outcome: Outcome,
        reason: str = "",
        *,
        result: TurnResult | None = None,
    ) -> Entry:
        message = turn.head.message
        usage = result.usage if result is not None else None
        return Entry(
            name=self._jobs.name_of(turn) if message.kind == "job" else message.channel,
            instant=message.received_at,
            outcome=outcome,
            reason=reason[:300],
            tokens=usage.prompt_tokens + usage.completion_tokens if usage else 0,
            calls=usage.calls if usage else 0,
            took_s=round(self._clock.monotonic() - plan.began, 3) if plan.began else 0.0,
        )


def _own_history(turn: Turn, result: TurnResult, said: str) -> tuple[Message, ...]:
    """The lines of a check-in without its long text: when it was, and what was said."""
    at = turn.head.message.received_at
    asked = f"[The check-in of {at:%Y-%m-%d %H:%M} UTC.]"
    return tuple(
        line.model_copy(update={"content": asked if line.role == "user" else said})
        if line.role in ("user", "assistant")
        else line
        for line in result.history
    )
